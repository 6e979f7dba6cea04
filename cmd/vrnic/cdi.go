package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/k8s"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/sysfs"
	"github.com/vrnic/vrnic/shm"
)

// cdiOutput is where runtimes look for what does not outlive the machine's next start.
const cdiOutput = "/var/run/cdi"

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:  "cdi",
		Usage: "give the devices to containers",
		Subcommands: []*cli.Command{{
			Name:      "generate",
			Usage:     "write the specification by which podman and docker give a device to a container",
			UsageText: "vrnic cdi generate [--output FILE|DIR|-] [--watch]",
			Description: "For a daemon of vrnic up --containers DIR. Each of its devices, and all of them " +
				"together, become\ndevices of the Container Device Interface:\n\n" +
				"   vrnic cdi generate\n" +
				"   podman run --device vrnic.io/rnic=vrnic0 IMAGE ibv_devices\n" +
				"   podman run --device vrnic.io/rnic=all IMAGE ibv_devices\n\n" +
				"An image needs nothing of vrnic's, only verbs programs for glibc 2.28 or later, or musl. " +
				"What it needs is\nmounted: libraries, which are in a directory of this user's, " +
				"and the daemon's\nsocket. Do it again when devices have come or gone; a daemon that starts anew " +
				"needs nothing.",
			Flags: []cli.Flag{socketFlag(), &cli.StringFlag{Name: "output", Value: cdiOutput,
				Usage: "write to `FILE`, whose name ends with .json or .yaml, or into a directory; - is " +
					"standard output"},
				&cli.BoolFlag{Name: "watch", Usage: "stay, and keep all of it as the daemon is: devices that " +
					"come and go, and their states and counters in /sys, once a second"}},
			Action: asking(generateCDI),
		}, {
			Name:      "options",
			Usage:     "print the options by which a docker that knows no such devices is given one",
			UsageText: "vrnic cdi options [--spec FILE|DIR] NAME",
			Description: "Of a device of the specification that vrnic cdi generate has written. They are " +
				"mounts and environment, in\none line:\n\n" +
				"   docker run $(vrnic cdi options vrnic0) IMAGE ibv_devices\n\n" +
				"Docker from version 25 on has --device vrnic.io/rnic=NAME, as podman has.",
			Flags: []cli.Flag{&cli.StringFlag{Name: "spec", Value: cdiOutput,
				Usage: "where the specification is: `FILE` or a directory"}},
			Action: cdiOptions,
		}},
	}
}

func cdiOptions(c *cli.Context) error {
	if c.Args().Len() != 1 {
		return usagef("of which device? See %s --help", commandName(c))
	}
	file, err := cdi.File(c.String("spec"))
	if err != nil {
		return usagef("--spec %v", err)
	}
	words, err := cdi.Options(file, c.Args().First())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.App.Writer, strings.Join(words, " "))
	return err
}

func generateCDI(c *cli.Context, client *shm.Client) error {
	output := c.String("output")
	watch := c.Bool("watch")
	if output == "-" {
		if watch {
			return usagef("--watch wants a file that it can keep: not --output -")
		}
		output = ""
	} else {
		var err error
		if output, err = cdi.File(output); err != nil {
			return usagef("--output %v", err)
		}
	}
	g, err := newGenerator(c, output)
	if err != nil {
		return err
	}
	if err := g.Generate(client); err != nil {
		return err
	}
	if output == "" {
		e := json.NewEncoder(c.App.Writer)
		e.SetIndent("", "  ")
		return e.Encode(g.Spec())
	}
	if !watch {
		return nil
	}
	ctx, stop := signal.NotifyContext(c.Context, endSignals(false)...)
	defer stop()
	tick := time.NewTicker(sysfs.Interval)
	defer tick.Stop()
	g.Say = nil // it was said
	said := ""
	for {
		// Without a daemon it waits for the next one.
		if _, err := g.Follow(socketPath(c)); err != nil && err.Error() != said {
			said = err.Error()
			fmt.Fprintf(c.App.ErrWriter, "vrnic: %s\n", oneLine(said))
		} else if err == nil {
			said = ""
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return g.Close()
		}
	}
}

// newGenerator finds the libraries for containers, and a place for them.
func newGenerator(c *cli.Context, output string) (*cdi.Generator, error) {
	say := func(line string) { fmt.Fprintf(c.App.ErrWriter, "vrnic: %s\n", line) }
	libs, err := verbsLibs("", false, say)
	if err != nil {
		return nil, err
	}
	g := &cdi.Generator{Output: output, Say: say}
	if g.Libraries, err = libs.Contents(cdi.Loaded); err != nil {
		return nil, err
	}
	// Where there are none for musl, its programs run as without the device.
	if libs, err := verbsLibs("", true, say); err == nil {
		if g.Musl, err = libs.Contents(cdi.Loaded); err != nil {
			return nil, err
		}
	}
	if g.Own, err = launch.Own(launch.Bases(os.Geteuid(), os.Getenv)); err != nil {
		return nil, fmt.Errorf("nowhere to put what containers need: %w", err)
	}
	return g, nil
}

func k8sCommand() *cli.Command {
	return &cli.Command{
		Name:  "k8s",
		Usage: "offer the devices to Kubernetes' pods, as a plugin of its kubelet's",
		UsageText: "vrnic k8s [--share N] [--net N] [--mounts] [--kubelet DIR] [--output FILE|DIR]\n" +
			"vrnic k8s --dra [--node NAME] [--share N] [--net N] [--kubelet DIR] [--output FILE|DIR]",
		Description: "For a daemon of vrnic up --containers DIR on a node. Pods ask for devices as for " +
			"memory:\n\n" +
			"   resources:\n     limits:\n       vrnic.io/rnic: 1\n\n" +
			"It does what vrnic cdi generate --watch does, and tells the kubelet of the devices. Daemon " +
			"and\nkubelet may end and begin again meanwhile.\n\n" +
			"With --dra it is a driver of Dynamic Resource Allocation in place of a device plugin, in a " +
			"pod\nof its own: pods have devices by claims of the driver vrnic.io.",
		Flags: []cli.Flag{socketFlag(),
			&cli.IntFlag{Name: "share", Value: 1, Usage: "`N` containers may have a device at once"},
			&cli.IntFlag{Name: "net", Usage: "offer vrnic.io/net, too, to `N` containers: the device that " +
				"vrnic-cni has made for their pod"},
			&cli.BoolFlag{Name: "mounts", Usage: "give containers mounts and environment: for runtimes " +
				"that do not know the Container Device Interface"},
			&cli.BoolFlag{Name: "dra", Usage: "be a driver of Dynamic Resource Allocation"},
			&cli.StringFlag{Name: "node", EnvVars: []string{"NODE_NAME"},
				Usage: "with --dra the `NAME` of this node"},
			&cli.StringFlag{Name: "kubelet", Usage: "where the kubelet finds plugins, `DIR` (default: " +
				kubeletPlugins + ", with --dra " + kubeletRegistry + ")"},
			&cli.StringFlag{Name: "output", Value: cdiOutput,
				Usage: "write the specification to `FILE`, or into a directory"}},
		Action: runK8s,
	}
}

// Where the kubelet finds device plugins, and those of other kinds.
const (
	kubeletPlugins  = "/var/lib/kubelet/device-plugins"
	kubeletRegistry = "/var/lib/kubelet/plugins_registry"
)

// maxShares bounds how many IDs the kubelet is told of a device: its messages are of 4 MiB at most.
const maxShares = 1000

func runK8s(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	if n := c.Int("share"); n < 1 || n > maxShares {
		return usagef("--share %d is not between 1 and %d", n, maxShares)
	}
	if n := c.Int("net"); n < 0 || n > maxShares {
		return usagef("--net %d is not between 0 and %d", n, maxShares)
	}
	if c.Bool("dra") && c.String("node") == "" {
		return usagef("--dra wants the name of this node, --node or NODE_NAME")
	}
	if c.Bool("dra") && c.Bool("mounts") {
		return usagef("--mounts does not go with --dra: the kubelet asks for names there")
	}
	output, err := cdi.File(c.String("output"))
	if err != nil {
		return usagef("--output %v", err)
	}
	g, err := newGenerator(c, output)
	if err != nil {
		return err
	}
	g.Say = nil // nobody is there to hear it
	ctx, stop := signal.NotifyContext(c.Context, endSignals(false)...)
	defer stop()
	tick := time.NewTicker(sysfs.Interval)
	defer tick.Stop()
	k := k8s.Config{Socket: socketPath(c), Dir: cmp.Or(c.String("kubelet"), kubeletPlugins),
		Share: c.Int("share"), Pods: c.Int("net"), Mounts: c.Bool("mounts"), Generator: g, Tick: tick.C,
		Log: slog.New(slog.NewTextHandler(c.App.ErrWriter, nil))}
	if !c.Bool("dra") {
		return k8s.New(k).Run(ctx)
	}
	k.Dir, k.Node = cmp.Or(c.String("kubelet"), kubeletRegistry), c.String("node")
	if k.API, err = k8s.NewAPI(os.Getenv, k8s.AccountDir); err != nil {
		return fmt.Errorf("--dra: %w", err)
	}
	d, err := k8s.NewDRA(k, g.Own)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
