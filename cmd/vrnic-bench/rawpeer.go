package main

import (
	"net/netip"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

// rawPeerCommand is one end of the netstack TCP baseline; compare starts it.
func rawPeerCommand() *cli.Command {
	return &cli.Command{
		Name: "raw-peer", Hidden: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "netns"}, &cli.StringFlag{Name: "tap", Required: true},
			&cli.StringFlag{Name: "addr", Required: true}, &cli.StringFlag{Name: "peer"},
		},
		Action: func(c *cli.Context) error {
			r := paths.RawPeer{NetNS: c.String("netns"), Tap: c.String("tap")}
			var err error
			if r.Addr, err = netip.ParsePrefix(c.String("addr")); err != nil {
				return usagef("--addr: %v", err)
			}
			if c.IsSet("peer") {
				if r.Peer, err = netip.ParseAddrPort(c.String("peer")); err != nil {
					return usagef("--peer: %v", err)
				}
			}
			return r.Run(c.App.Reader, c.App.Writer)
		},
	}
}
