package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/shm"
)

// A showKind is a kind of objects that a daemon lists.
type showKind struct {
	name, usage string
	whole       bool // of the daemon, and no device's
}

var showKinds = []showKind{
	{"dev", "devices: addresses, MTU, limits", false},
	{"qp", "queue pairs: state, peer, negotiated parameters", false},
	{"pd", "protection domains, and how much is in each", false},
	{"mr", "registered memory regions, and windows", false},
	{"mw", "memory windows alone", false},
	{"cq", "completion queues", false},
	{"srq", "shared receive queues", false},
	{"gid", "addresses of RoCE devices as their GID tables have them", false},
	{"ipoib", "IP interfaces over devices: counters, and their neighbours", false},
	{"cm", "listeners and connection requests", false},
	{"peer", "peers that have asked for connections, those with most first", false},
	{"client", "programs that use the daemon", true},
	{"user", "users with programs that use the daemon, and what each has in all", true},
	{"port", "ports of the daemon's switch", true},
	{"daemon", "the daemon itself: memory, goroutines, objects allocated so far", true},
}

func showCommand() *cli.Command {
	names := make([]string, len(showKinds))
	for i, kind := range showKinds {
		names[i] = kind.name
	}
	names = append(names, "link", "resource")
	show := &cli.Command{
		Name:      "show",
		Usage:     "list objects, one line each",
		UsageText: "vrnic show " + strings.Join(names, "|") + " [-d DEVICE] [--json]",
		Description: "Lists what the daemon holds. Root and the daemon's own user see everything, " +
			"others what is theirs.\n" +
			"A line is made of names and values in turn, as `rdma resource show` prints them.",
		Flags: []cli.Flag{socketFlag(), jsonFlag(), onlyDeviceFlag()},
	}
	for i := range showKinds {
		kind := &showKinds[i]
		flags := []cli.Flag{socketFlag(), jsonFlag()}
		if !kind.whole {
			flags = append(flags, onlyDeviceFlag())
		}
		show.Subcommands = append(show.Subcommands, &cli.Command{Name: kind.name, Usage: kind.usage,
			Flags: flags, Action: kind.show})
	}
	show.Subcommands = append(show.Subcommands, rdmaCommands()...)
	return show
}

func onlyDeviceFlag() cli.Flag {
	return &cli.StringFlag{Name: "device", Aliases: []string{"d"},
		Usage: "only what is of `DEVICE`"}
}

func (k *showKind) show(c *cli.Context) error {
	device := given(c, "device").String("device")
	switch {
	case k.whole && device != "":
		return usagef("%s lists what is of no device: leave -d %s out", commandName(c), device)
	case !k.whole && c.Args().Present():
		return usagef("unexpected argument %q; what is of one device alone shows %s -d DEVICE",
			c.Args().First(), commandName(c))
	}
	return asking(func(c *cli.Context, client *shm.Client) error {
		rows := client.Rows(c.Context, k.name)
		if device != "" {
			if names := client.Devices(); !slices.Contains(names, device) {
				return noDevice(device, names)
			}
			rows = rowsOf(rows, device)
		}
		if err := printRows(c, rows); err != nil {
			return fmt.Errorf("show %s: %w", k.name, err)
		}
		return nil
	})(c)
}

// rowsOf are the rows of a device.
func rowsOf(rows iter.Seq2[json.RawMessage, error],
	device string) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for raw, err := range rows {
			var row struct{ Dev string }
			if err == nil {
				err = json.Unmarshal(raw, &row)
			}
			if (err != nil || row.Dev == device) && !yield(raw, err) {
				return
			}
		}
	}
}

// noDevice says what devices there are.
func noDevice(device string, names []string) error {
	return usagef("no device %q; there are: %s", device, strings.Join(names, ", "))
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print a JSON array instead of lines"}
}

func printRows(c *cli.Context, rows iter.Seq2[json.RawMessage, error]) error {
	if given(c, "json").Bool("json") {
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
