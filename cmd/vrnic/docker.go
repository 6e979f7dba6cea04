package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/docker"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/unixsocket"
)

// dockerPlugin is where docker looks for a driver called vrnic.
const dockerPlugin = "/run/docker/plugins/vrnic.sock"

func dockerCommand() *cli.Command {
	return &cli.Command{
		Name:      "docker",
		Usage:     "be the driver of docker's networks of the kind vrnic",
		UsageText: "vrnic docker [--plugin PATH] [--device OPTION=VALUE[,OPTION=VALUE]...]",
		Description: "Each container of such a network has an interface on the switch of a daemon, and " +
			"a device of the\nsame address:\n\n" +
			"   vrnic up --containers DIR & vrnic docker & vrnic cdi generate\n" +
			"   docker network create --driver=vrnic --subnet 10.60.0.0/24 rdma\n" +
			"   docker run --network rdma --device vrnic.io/rnic=net IMAGE ibv_devices\n\n" +
			"It makes TAPs, as root. It may end and begin again while containers run.",
		Flags: []cli.Flag{socketFlag(),
			&cli.StringFlag{Name: "plugin", Value: dockerPlugin,
				Usage: "the socket that docker finds it by, `PATH`; the driver is called as the file, " +
					"without .sock"},
			&cli.StringFlag{Name: "device", Value: "transport=roce",
				Usage: "what devices are like beside name, address and MAC, `OPTIONS` of vrnic up --device"},
		},
		Action: runDocker,
	}
}

func runDocker(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(c.App.ErrWriter, nil))
	d, err := docker.New(docker.Config{Socket: socketPath(c), Device: c.String("device"), Log: log})
	if err != nil {
		return usagef("--device %v", err)
	}
	path := c.String("plugin")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	l, err := unixsocket.Listen(path)
	if err != nil {
		return fmt.Errorf("--plugin %s: %w", path, err)
	}
	ctx, stop := signal.NotifyContext(c.Context, endSignals(false)...)
	defer stop()
	if _, err := fmt.Fprintf(c.App.Writer, "ready plugin=%s\n", path); err != nil {
		return errors.Join(err, l.Close())
	}
	return d.Serve(ctx, l)
}
