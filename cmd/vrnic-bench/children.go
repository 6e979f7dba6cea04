package main

import (
	"net/netip"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/badnet"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/worker"
	"github.com/vrnic/vrnic/shm"
)

// Commands that this program starts itself with.
const (
	workerName = "worker"
	peerName   = "raw-peer"
	bridgeName = "bad-bridge"
)

// selfCommand is the command line of one of them; flags come behind it.
func selfCommand(name string) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, name}
}

// workerCommand is an end of a measurement, a client of the daemon.
func workerCommand() *cli.Command {
	return &cli.Command{
		Name: workerName, Hidden: true,
		Flags: []cli.Flag{&cli.StringFlag{Name: "socket", Required: true},
			&cli.StringFlag{Name: "device"}},
		Action: func(c *cli.Context) error {
			client, err := shm.Dial(c.String("socket"))
			if err != nil {
				return err
			}
			defer client.Close()
			dev, err := client.Open(c.String("device"))
			if err != nil {
				return err
			}
			return worker.Serve(c.Context, dev, c.App.Reader, c.App.Writer)
		},
	}
}

// peerCommand is an end of a baseline over TCP or UDP.
func peerCommand() *cli.Command {
	return &cli.Command{
		Name: peerName, Hidden: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "netns"}, &cli.StringFlag{Name: "tap"},
			&cli.StringFlag{Name: "addr", Required: true}, &cli.StringFlag{Name: "peer"},
			&cli.BoolFlag{Name: "udp"}, &cli.IntFlag{Name: "mtu"},
		},
		Action: func(c *cli.Context) error {
			r := baseline.Peer{NetNS: c.String("netns"), Tap: c.String("tap"), UDP: c.Bool("udp"),
				MTU: c.Int("mtu")}
			var err error
			if r.Addr, err = netip.ParsePrefix(c.String("addr")); err != nil {
				return usagef("--addr: %v", err)
			}
			if c.IsSet("peer") {
				if r.Peer, err = netip.ParseAddrPort(c.String("peer")); err != nil {
					return usagef("--peer: %v", err)
				}
			}
			return r.Run(c.Context, c.App.Reader, c.App.Writer)
		},
	}
}

// bridgeCommand is the bad network of badnet.
func bridgeCommand() *cli.Command {
	return &cli.Command{
		Name: bridgeName, Hidden: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "a", Required: true}, &cli.StringFlag{Name: "b", Required: true},
			&cli.StringFlag{Name: "tap", Required: true},
		},
		Action: func(c *cli.Context) error {
			return badnet.RunBridge(c.String("a"), c.String("b"), c.String("tap"), c.App.Reader,
				c.App.Writer)
		},
	}
}
