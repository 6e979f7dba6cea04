package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/ping"
	"github.com/vrnic/vrnic/rdma"
)

func pingCommand() *cli.Command {
	return &cli.Command{
		Name:  "ping",
		Usage: "moves data to a peer and back; rping's protocol, so that either side can be rping",
		UsageText: "vrnic ping -s [-a ADDR] [-p PORT] [-S SIZE] [-v] [-P] [-d DEVICE]\nvrnic ping -c " +
			"-a ADDR [-p PORT] [-C COUNT] [-S SIZE] [-v] [-V] [-d DEVICE]",
		Flags: []cli.Flag{
			socketFlag(),
			&cli.BoolFlag{Name: "server", Aliases: []string{"s"}, Usage: "be the server"},
			&cli.BoolFlag{Name: "client", Aliases: []string{"c"}, Usage: "be the client"},
			&cli.StringFlag{Name: "address", Aliases: []string{"a"},
				Usage: "`ADDR`ess of the server; for the server itself, where to listen (default: all of the " +
					"device's)"},
			&cli.IntFlag{Name: "port", Aliases: []string{"p"}, Value: ping.DefaultPort,
				Usage: "`PORT` of the server"},
			&cli.IntFlag{Name: "count", Aliases: []string{"C"},
				Usage: "client: `COUNT` of rounds (default: until interrupted)"},
			&cli.IntFlag{Name: "size", Aliases: []string{"S"}, Value: ping.DefaultSize,
				Usage: fmt.Sprintf("`SIZE` of the data in octets, %d to %d; rping takes at most %d",
					ping.MinSize, ping.MaxSize, ping.RpingMaxSize)},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "print the data of each round"},
			&cli.BoolFlag{Name: "validate", Aliases: []string{"V"}, Usage: "client: compare what came back"},
			&cli.BoolFlag{Name: "persistent", Aliases: []string{"P"},
				Usage: "server: serve any number of clients, also at once, until interrupted"},
			&cli.StringFlag{Name: "device", Aliases: []string{"d"},
				Usage: "`DEVICE` to use (default: the daemon's first)"},
			&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second,
				Usage: "client: give up when an answer takes longer; 0 waits for ever"},
			&cli.IntFlag{Name: "mpa", Usage: "client: MPA `REVISION`, 1 or 2 (default: 2)"},
			&cli.StringFlag{Name: "crc", Value: "wanted",
				Usage: "CRCs of MPA: off (unless the peer asks), wanted or required (of the client: the peer " +
					"has to confirm)"},
			&cli.BoolFlag{Name: "markers", Usage: "ask for MPA markers in what the peer sends"},
			&cli.StringFlag{Name: "rtr", Usage: "`KINDS` of ready-to-receive message, some of " +
				"write,read,send (default: all)"},
			&cli.BoolFlag{Name: "client-server",
				Usage: "client: no ready-to-receive message (RFC 6581's client-server model)"},
			&cli.IntFlag{Name: "mulpdu", Usage: "longest segment sent in `OCTETS`, 128 to 64768 (default: " +
				"what fits a TCP segment)"},
			&cli.BoolFlag{Name: "sctp", Usage: "client: over SCTP (RFC 5043) in place of TCP; a server " +
				"takes both"},
			&cli.BoolFlag{Name: "roi", Usage: "client: speak draft-bailey-roi-rdma-00 in place of iWARP " +
				"(experimental, between two vrnics: docs/roi.md); a server takes both"},
		},
		UseShortOptionHandling: true, // as rping's getopt: -svV
		Action:                 runPing,
	}
}

// pingConfig makes a Config of the flags; an error is wrong usage.
func pingConfig(c *cli.Context) (cfg ping.Config, server bool, err error) {
	server = c.Bool("server")
	switch {
	case c.NArg() > 0:
		return cfg, server, usagef("ping takes no argument %q", c.Args().First())
	case server == c.Bool("client"):
		return cfg, server, usagef("ping wants one of -s (server) and -c (client)")
	case !server && !c.IsSet("address"):
		return cfg, server, usagef("ping -c wants the server's address: -a ADDR")
	case !server && c.Bool("persistent"):
		return cfg, server, usagef("-P is for the server")
	}
	if p := c.Int("port"); p < 0 || p > 65535 || p == 0 && !server {
		return cfg, server, usagef("-p %d: want 1 to 65535", p)
	}
	addr := netip.IPv4Unspecified()
	if c.IsSet("address") {
		if addr, err = netip.ParseAddr(c.String("address")); err != nil {
			return cfg, server, usagef("-a %q: want an IPv4 or IPv6 address", c.String("address"))
		}
		if addr.IsUnspecified() && !server {
			return cfg, server, usagef("-a %v: a client wants the server's own address", addr)
		}
	}
	if err := ping.CheckSize(c.Int("size")); err != nil {
		return cfg, server, usagef("-S: %v", err)
	}
	if c.Int("count") < 0 {
		return cfg, server, usagef("-C %d: want 0 (no end) or more", c.Int("count"))
	}
	if c.Duration("timeout") < 0 {
		return cfg, server, usagef("--timeout %v: want 0 (none) or more", c.Duration("timeout"))
	}
	mpa, err := mpaFlags(c)
	if err != nil {
		return cfg, server, err
	}
	return ping.Config{
		MPA:          mpa,
		SCTP:         c.Bool("sctp"),
		ROI:          c.Bool("roi"),
		Addr:         netip.AddrPortFrom(addr.Unmap(), uint16(c.Int("port"))),
		Size:         c.Int("size"),
		Count:        c.Int("count"),
		Verbose:      c.Bool("verbose"),
		Validate:     c.Bool("validate"),
		Persistent:   c.Bool("persistent"),
		RoundTimeout: c.Duration("timeout"),
		Out:          c.App.Writer,
	}, server, nil
}

// mpaFlags reads what is said of MPA; an error is wrong usage.
func mpaFlags(c *cli.Context) (p rdma.MPAParam, err error) {
	rev, mulpdu := c.Int("mpa"), c.Int("mulpdu")
	crc, ok := map[string]rdma.CRCMode{"off": rdma.CRCOff, "wanted": rdma.CRCWanted,
		"required": rdma.CRCRequired}[c.String("crc")]
	switch {
	case c.IsSet("mpa") && rev != 1 && rev != 2:
		return p, usagef("--mpa %d: want 1 or 2", rev)
	case c.IsSet("mpa") && c.Bool("server"):
		return p, usagef("--mpa is for the client; the server takes both")
	case !ok:
		return p, usagef("--crc %q: want off, wanted or required", c.String("crc"))
	case c.Bool("roi") && c.Bool("server"):
		return p, usagef("--roi is for the client; the server takes both")
	case c.Bool("roi") && c.Bool("markers"):
		return p, usagef("--markers: --roi has none")
	case c.Bool("client-server") && c.Bool("server"):
		return p, usagef("--client-server is for the client")
	case mulpdu != 0 && (mulpdu < 128 || mulpdu > 64768):
		return p, usagef("--mulpdu %d: want 128 to 64768", mulpdu)
	}
	p = rdma.MPAParam{Revision: uint8(rev), CRC: crc, Markers: c.Bool("markers"),
		ClientServer: c.Bool("client-server"), MULPDU: uint16(mulpdu)}
	if !c.IsSet("rtr") {
		return p, nil
	}
	for _, s := range strings.Split(c.String("rtr"), ",") {
		kind, ok := map[string]rdma.RTRKinds{"write": rdma.RTRWrite, "read": rdma.RTRRead,
			"send": rdma.RTRSend}[s]
		if !ok {
			return p, usagef("--rtr %q: want write, read or send", s)
		}
		p.RTR |= kind
	}
	return p, nil
}

func runPing(c *cli.Context) error {
	cfg, server, err := pingConfig(c)
	if err != nil {
		return err
	}
	dev, done, err := openDevice(c, c.String("device"))
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if server {
		return explainDevice(dev, ping.RunServer(ctx, dev, cfg))
	}
	res, err := ping.RunClient(ctx, dev, cfg)
	if err != nil {
		return explainDevice(dev, err)
	}
	fmt.Fprintf(c.App.Writer, "client: %v\n", res)
	return nil
}

// openDevice opens a device of the daemon, "" for its first; done gives it back.
func openDevice(c *cli.Context, name string) (dev rdma.Device, done func(), err error) {
	client, err := dial(c)
	if err != nil {
		return nil, nil, err
	}
	dev, err = client.Open(name)
	if err != nil {
		client.Close()
		return nil, nil, err // it names the devices there are
	}
	return dev, func() { client.Close() }, nil
}

func explainDevice(dev rdma.Device, err error) error {
	if errors.Is(err, rdma.ErrDeviceGone) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("device %s: the daemon has gone: %w", dev.Name(), err)
	}
	return err
}
