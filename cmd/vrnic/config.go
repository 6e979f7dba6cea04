package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/config"
)

func configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "look over the file of vrnic up --config",
		Subcommands: []*cli.Command{{
			Name:      "check",
			Usage:     "say whether a daemon could be as FILE has it, and if not, why",
			UsageText: "vrnic config check FILE",
			Description: "A key of FILE, which is YAML, is a flag of vrnic up; see there. Its value is " +
				"one, or a list, each\nas on the command line or by its parts:\n\n" +
				"   socket-mode: 0660\n" +
				"   device:\n" +
				"     - vrnic0,addr=10.77.0.2/24\n" +
				"     - name: vrnic1\n" +
				"       addr: [10.77.0.3/24, fd77::3/64]\n" +
				"       transport: roce\n" +
				"   port:\n" +
				"     - tap: va\n" +
				"       addr: 10.77.0.1/24\n" +
				"   limit:\n" +
				"     qps: 1000",
			Action: checkConfig,
		}},
	}
}

// checkConfig builds what the file asks for, as vrnic up does, and makes nothing of it.
func checkConfig(c *cli.Context) error {
	if c.Args().Len() != 1 {
		return usagef("which file? See %s --help", commandName(c))
	}
	path := c.Args().First()
	settings, err := config.ReadFile(path)
	if err != nil {
		return asUsage(err)
	}
	u, err := config.Build(settings)
	if err != nil {
		return asUsage(err)
	}
	if err := u.Daemon.Check(); err != nil {
		return asUsage(err)
	}
	if _, err := sandboxConfig(u, path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: good: %d devices, %d ports\n", path,
		max(len(u.Daemon.Devices), 1), len(u.Daemon.Ports))
	return err
}
