package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/shm"
)

// showKinds are the kinds of objects that a daemon lists.
var showKinds = []struct{ name, usage string }{
	{"dev", "devices: addresses, MTU, limits"},
	{"qp", "queue pairs: state, peer, negotiated parameters"},
	{"mr", "registered memory regions, and windows"},
	{"cq", "completion queues"},
	{"gid", "addresses of RoCE devices as their GID tables have them"},
	{"cm", "listeners and connection requests"},
	{"client", "programs that use the daemon"},
	{"user", "users with programs that use the daemon, and what each has in all"},
	{"port", "ports of the daemon's switch"},
	{"daemon", "the daemon itself: memory, goroutines, objects allocated so far"},
}

func showCommand() *cli.Command {
	show := &cli.Command{
		Name:      "show",
		Usage:     "list objects, one line each",
		UsageText: "vrnic show dev|qp|mr|cq|gid|cm|client|user|port|daemon [--json]",
		Description: "Lists what the daemon holds. Root and the daemon's own user see everything, " +
			"others what is theirs.\n" +
			"A line is made of names and values in turn, as `rdma resource show` prints them.",
	}
	for _, kind := range showKinds {
		show.Subcommands = append(show.Subcommands, &cli.Command{
			Name:  kind.name,
			Usage: kind.usage,
			Flags: []cli.Flag{socketFlag(), jsonFlag()},
			Action: asking(func(c *cli.Context, client *shm.Client) error {
				if err := printRows(c, client.Rows(c.Context, kind.name)); err != nil {
					return fmt.Errorf("show %s: %w", kind.name, err)
				}
				return nil
			}),
		})
	}
	return show
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print a JSON array instead of lines"}
}

func printRows(c *cli.Context, rows iter.Seq2[json.RawMessage, error]) error {
	if c.Bool("json") {
		return writeJSON(c.App.Writer, rows)
	}
	return writeRows(c.App.Writer, rows)
}

// asking is an action without arguments that asks the daemon.
func asking(ask func(*cli.Context, *shm.Client) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArgs(c); err != nil {
			return err
		}
		client, err := dial(c)
		if err != nil {
			return err
		}
		defer client.Close()
		return ask(c, client)
	}
}

// dial connects to the daemon and says what to do if that fails.
func dial(c *cli.Context) (*shm.Client, error) { return dialPath(socketPath(c)) }

func dialPath(path string) (*shm.Client, error) {
	client, err := shm.Dial(path)
	switch {
	case err == nil:
		return client, nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no daemon runs at %s: start one with `vrnic up`, or name its socket "+
			"with --socket", path)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%s may not be used by you: ask for `vrnic up --socket-mode` or "+
			"`--socket-group` that let you in", path)
	}
	return nil, err
}
