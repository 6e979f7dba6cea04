package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/config"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/lab"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/vnic/fault"
)

func forceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "force", DisableDefaultText: true,
		Usage: "also if programs lose connections"}
}

// changeCommands are those that change a daemon that runs.
func changeCommands() []*cli.Command {
	sub := func(name, words, usage, description string, change shm.Change,
		check func(string) error) *cli.Command {
		c := &cli.Command{Name: name, Usage: usage, Description: description,
			UsageText: fmt.Sprintf("vrnic %s %s %s", flagOf(change.Key), name, words),
			Flags:     []cli.Flag{socketFlag()},
			Action:    func(c *cli.Context) error { return changeBy(c, change, check) },
		}
		if change.Verb != shm.Add {
			c.Flags = append(c.Flags, forceFlag())
			c.UsageText = fmt.Sprintf("vrnic %s %s [--force] %s", flagOf(change.Key), name, words)
		}
		return c
	}
	device := func(s string) error { _, err := daemon.ParseDevice(s); return err }
	aPort := func(s string) error { _, err := daemon.ParsePort(s); return err }
	const inUse = "It is refused while programs use the device. With --force they get the " +
		"asynchronous event\nDEVICE_FATAL, their connections end, and what they do with that session " +
		"fails from " +
		"then on."
	return []*cli.Command{
		{Name: "dev", Usage: "add, change or delete a device of a daemon that runs",
			Subcommands: []*cli.Command{
				sub("add", "SPEC", "add a device",
					"SPEC is as in vrnic up --device. Programs see it, also those that run.",
					shm.Change{Verb: shm.Add, Key: "device"}, device),
				sub("del", "NAME", "delete a device", inUse,
					shm.Change{Verb: shm.Del, Key: "device"}, nil),
				sub("set", "NAME,OPTION=VALUE[,OPTION=VALUE]...", "make a device anew with other options",
					"What is not given stays as it is. "+inUse, shm.Change{Verb: shm.Set, Key: "device"}, nil),
			}},
		{Name: "port", Usage: "add or delete a port of a daemon that runs",
			Subcommands: []*cli.Command{
				sub("add", "SPEC", "add a port",
					"SPEC is as in vrnic up --port. A TAP is made by this command, with the rights of its "+
						"user, and\nhanded to the daemon, which needs none.",
					shm.Change{Verb: shm.Add, Key: "port"}, aPort),
				sub("del", "NAME", "delete a port",
					"NAME is as vrnic show port has it. It is refused while somebody is behind the port and "+
						"there are\nconnections with the outside.",
					shm.Change{Verb: shm.Del, Key: "port"}, nil),
			}},
		{Name: "limit", Usage: "change a limit of a daemon that runs",
			UsageText: "vrnic limit NAME=N",
			Description: "Limits are those of vrnic up --limit. What a session may have, sessions have " +
				"that begin from now on;\nwhat all together may have holds at once; what peers may have, " +
				"devices " +
				"have that are added later.",
			Flags: []cli.Flag{socketFlag()},
			Action: func(c *cli.Context) error {
				var cfg daemon.Config
				return changeBy(c, shm.Change{Verb: shm.Set, Key: "limit"}, cfg.SetLimit)
			}},
		{Name: "reload", Usage: "have a daemon read its file again",
			UsageText: "vrnic reload [--force]",
			Description: "As SIGHUP does for a daemon of vrnic up --config. What is different is made so, " +
				"as a whole or not at\nall. It is refused if programs would lose connections.",
			Flags: []cli.Flag{socketFlag(), forceFlag()},
			Action: func(c *cli.Context) error {
				if err := noArgs(c); err != nil {
					return err
				}
				return change(c, shm.Change{Verb: shm.Reload})
			}},
		{Name: "save", Usage: "print what a daemon is made of now, as a file for vrnic up --config",
			UsageText: "vrnic save > FILE", Flags: []cli.Flag{socketFlag()}, Action: asking(save)},
	}
}

// flagOf is the word for the key of a change.
func flagOf(key string) string { return strings.TrimSuffix(key, "ice") }

// changeBy changes what the argument says, if check does not refuse it, which is wrong usage.
func changeBy(c *cli.Context, ch shm.Change, check func(string) error) error {
	if c.Args().Len() != 1 {
		return usagef("what? See %s --help", commandName(c))
	}
	ch.Value = c.Args().First()
	if check != nil {
		if err := check(ch.Value); err != nil {
			return usagef("%v", err)
		}
	}
	return change(c, ch)
}

// change has the daemon changed. A TAP it makes itself, with the rights of who has called it.
func change(c *cli.Context, ch shm.Change) (err error) {
	client, err := dial(c)
	if err != nil {
		return err
	}
	defer client.Close()
	ch.Force = c.Bool("force")
	if spec, err := daemon.ParsePort(ch.Value); err == nil && ch.Verb == shm.Add &&
		ch.Key == "port" && spec.Kind == daemon.PortTap && !spec.Share {
		fd, kind, end, err := port.LendTAP(port.TAPConfig{Name: spec.Name, NetNS: spec.NetNS,
			Addrs: spec.Addrs, MTU: spec.MTU})
		if err != nil {
			return err
		}
		ch.TAP, ch.Offloads, ch.UDP = fd, kind.Offloads, kind.UDP
		err = client.Change(c.Context, ch)
		return errors.Join(inWords(err), end(err != nil))
	}
	return inWords(client.Change(c.Context, ch))
}

// inWords is the daemon's answer as it is.
func inWords(err error) error {
	if refused := (*shm.CallError)(nil); errors.As(err, &refused) && refused.Why != "" {
		return errors.New(refused.Why)
	}
	return err
}

// save prints the state of the daemon.
func save(c *cli.Context, client *shm.Client) error {
	rows, err := client.Settings()
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errors.New("only root and the daemon's own user are told what it is made of")
	}
	settings := make([]config.Setting, len(rows))
	for i, s := range rows {
		settings[i] = config.Flag(s[0], s[1])
	}
	_, err = c.App.Writer.Write(config.Format(settings))
	return err
}

// impairCommand has packets lost, late and wrong.
func impairCommand() *cli.Command {
	return &cli.Command{
		Name:      "impair",
		Usage:     "make the network of a device, port or queue pair a bad one",
		ArgsUsage: "TARGET [out|in|both] [WHAT]...",
		UsageText: "vrnic impair [--seed N] [--file FILE] TARGET [out|in|both] [WHAT]...\n" +
			"vrnic impair show [--json]\nvrnic impair off [TARGET]",
		Description: "TARGET is a device, a port as vrnic show port has it, or a queue pair that is " +
			"connected, DEVICE/QPN.\nWHAT are the words of tc-netem(8), with its units and defaults:\n\n" +
			"  delay TIME [JITTER [CORRELATION]] [distribution uniform|normal]\n" +
			"  loss [random] PERCENT [CORRELATION] [burst FRAMES]\n" +
			"  loss gemodel P [R [1-H [1-K]]]\n" +
			"  duplicate PERCENT [CORRELATION]\n" +
			"  corrupt PERCENT [CORRELATION]\n" +
			"  reorder PERCENT [CORRELATION] [gap DISTANCE]\n" +
			"  rate RATE [queue SIZE] [mark SIZE]\n" +
			"  ecn\n" +
			"  limit PACKETS\n\n" +
			"FILE has them in lines; behind at TIME [for TIME] they hold then, read over those of the other " +
			"lines.\nout, the default, are packets that the device sends, or that leave the daemon by the " +
			"port. What becomes\nof them repeats with the seed. docs/laboratory.md has it all. Root and the " +
			"daemon's own user may do it.",
		Flags: []cli.Flag{socketFlag(),
			&cli.Uint64Flag{Name: "seed", DefaultText: "another one each time",
				Usage: "of all that is by chance: `N`"},
			&cli.StringFlag{Name: "file", Usage: "read what is done, and when, from `FILE`"},
		},
		Subcommands: []*cli.Command{
			{Name: "show", Usage: "print what is done, and to how many packets it was",
				Flags: []cli.Flag{socketFlag(), jsonFlag()},
				Action: asking(func(c *cli.Context, client *shm.Client) error {
					return printRows(c, client.Rows(c.Context, "impair"))
				})},
			{Name: "off", Usage: "end that of a target, or all", UsageText: "vrnic impair off [TARGET]",
				Flags: []cli.Flag{socketFlag()},
				Action: func(c *cli.Context) error {
					if c.Args().Len() > 1 {
						return usagef("one target at a time, or none for all; see %s --help", commandName(c))
					}
					return change(c, shm.Change{Verb: shm.Del, Key: "impair", Value: c.Args().First()})
				}},
		},
		Action: beginImpairment,
	}
}

func beginImpairment(c *cli.Context) error {
	args := c.Args().Slice()
	if len(args) == 0 {
		return usagef("what is to be impaired? See %s --help", commandName(c))
	}
	o := &lab.Order{Target: args[0], Direction: "out", Seed: c.Uint64("seed")}
	if args = args[1:]; len(args) > 0 && slices.Contains(lab.Directions, args[0]) {
		o.Direction, args = args[0], args[1:]
	}
	o.Words = strings.Join(args, " ")
	if !c.IsSet("seed") {
		o.Seed = uint64(rand.Uint32())
	}
	if path := c.String("file"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		o.Words = behind(string(text), o.Words)
	}
	if err := o.Check(); err != nil {
		return usagef("%v", err)
	}
	if err := change(c, shm.Change{Verb: shm.Set, Key: "impair", Value: o.String()}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s %s, seed %d\n", o.Target, o.Direction, o.Seed)
	return err
}

// faultCommand has a card fail.
func faultCommand() *cli.Command {
	return &cli.Command{
		Name:      "fault",
		Usage:     "make a device fail: its calls, requests, receives or all of it",
		ArgsUsage: "DEVICE[/QPN] WHAT HOW [after N] [count N] [percent P] [at TIME] [for TIME]",
		UsageText: "vrnic fault [--seed N] DEVICE[/QPN] WHAT HOW [after N] [count N] [percent P]\n" +
			"                     [at TIME] [for TIME]\n" +
			"vrnic fault [--seed N] --file FILE\nvrnic fault check FILE\nvrnic fault show [--json]\n" +
			"vrnic fault off [DEVICE]",
		Description: "WHAT and HOW are\n\n" +
			"  alloc_pd, reg_mr, alloc_mw, create_cq, create_srq, create_qp\n" +
			"      ENOMEM, EINVAL, EAGAIN, ENOSPC, EPERM, EFAULT, EIO\n" +
			"  send, write, read, atomic, key, request\n" +
			"      retry_exc_err, rem_access_err and so on, terminate L/T/C, terminated L/T/C, ird,\n" +
			"      invalidate, cq_err\n" +
			"  recv\n" +
			"      loc_prot_err and so on, terminate L/T/C, nak invalid|access|operation, cq_err\n" +
			"  doorbell\n" +
			"      late TIME, lost\n" +
			"  connect\n" +
			"      reject, refused, stale, timeout, unreachable, error\n" +
			"  device\n" +
			"      port_down, gid_change, fatal, gone, quiet, invalidate, cq_err\n\n" +
			"The first N do as ever, of those behind them P percent fail, N at most, from TIME on and for " +
			"TIME. It is\nfor all programs that use the device, or for one queue pair. FILE has a fault a " +
			"line. docs/laboratory.md\nhas it all. Root and the daemon's own user may do it.",
		Flags: []cli.Flag{socketFlag(),
			&cli.Uint64Flag{Name: "seed", DefaultText: "another one each time",
				Usage: "of all that is by chance: `N`"},
			&cli.StringFlag{Name: "file", Usage: "read faults from `FILE`"},
		},
		Subcommands: []*cli.Command{
			{Name: "check", Usage: "say what of a file is wrong, without a daemon",
				UsageText: "vrnic fault check FILE",
				Action: func(c *cli.Context) error {
					if c.Args().Len() != 1 {
						return usagef("which file? See %s --help", commandName(c))
					}
					_, err := readFaults(c.Args().First(), "")
					return err
				}},
			{Name: "show", Usage: "print faults, and how often each has fired",
				Flags: []cli.Flag{socketFlag(), jsonFlag()},
				Action: asking(func(c *cli.Context, client *shm.Client) error {
					return printRows(c, client.Rows(c.Context, "fault"))
				})},
			{Name: "off", Usage: "end those of a device, or all", UsageText: "vrnic fault off [DEVICE]",
				Flags: []cli.Flag{socketFlag()},
				Action: func(c *cli.Context) error {
					if c.Args().Len() > 1 {
						return usagef("one device at a time, or none for all; see %s --help", commandName(c))
					}
					return change(c, shm.Change{Verb: shm.Del, Key: "fault", Value: c.Args().First()})
				}},
		},
		Action: func(c *cli.Context) error {
			lines, err := readFaults(c.String("file"), strings.Join(c.Args().Slice(), " "))
			if err != nil {
				return err
			}
			seed := c.Uint64("seed")
			if !c.IsSet("seed") {
				seed = uint64(rand.Uint32())
			}
			if err := change(c, shm.Change{Verb: shm.Set, Key: "fault",
				Value: fmt.Sprintf("%d\n%s", seed, lines)}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.App.Writer, "seed %d\n", seed)
			return err
		},
	}
}

// readFaults is a line and the lines of a file, either of which may be "", if they are faults.
func readFaults(path, line string) (lines string, err error) {
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		line = behind(string(text), line)
	}
	if _, err := fault.Parse(line); err != nil {
		return "", usagef("%v", err)
	}
	return line, nil
}

// behind is a line behind those of a file, so that errors number these as they are there.
func behind(text, line string) string {
	if line == "" {
		return text
	}
	return strings.TrimSuffix(text, "\n") + "\n" + line
}
