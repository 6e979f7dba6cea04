// Package torture is the command `vrnic torture`.
package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/lab/torture/roce"
	"github.com/vrnic/vrnic/lab/torture/sctp"
)

// formats are how a report is written.
var formats = map[string]func(*torture.Report, io.Writer) error{
	"text": nil, "json": (*torture.Report).JSON, "junit": (*torture.Report).JUnit}

// Command is it. What is wrong in how it was used goes through usage.
func Command(usage func(format string, args ...any) error) *cli.Command {
	return &cli.Command{
		Name:  "torture",
		Usage: "lie to an RDMA endpoint in all ways, and look at what it answers",
		UsageText: "vrnic torture [--transport iwarp|roce|sctp] [--port PORT] [--only WORDS]... " +
			"[--timeout TIME] [--format FORMAT] ADDR\n" +
			"vrnic torture --list [--transport iwarp|roce|sctp] [--only WORDS]...",
		Description: "Connects to ADDR, and to nobody else, again and again: peers that err, lie or " +
			"leave. A case passes if the\nanswer is that of the RFCs as docs/conformance.md has them; " +
			"it differs if what is wrong was refused in\nanother way. No case needs to know the " +
			"endpoint's memory, and none writes to it. It can end a program or\nkernel that is not up to " +
			"it: torture what is yours.\n\n" +
			"There, a program has to take one connection after the other and post receives of less than " +
			"1400 octets:\nrping -s -P, or vrnic ping -s -P. No daemon is needed here: the host's own TCP " +
			"is used, for SCTP its UDP, and\nfor RoCE its UDP's port 4791, which must be free.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "transport", Value: "iwarp", Usage: "iwarp, over TCP, roce, or sctp: " +
				"DDP over SCTP"},
			&cli.StringFlag{Name: "from", Usage: "with roce: this `ADDR` of the host is the peer's"},
			&cli.UintFlag{Name: "udp", Value: rawsctp.EncapsulationPort,
				Usage: "with sctp: the endpoint has it in UDP, at `PORT`; 0: on IP, which takes root"},
			&cli.UintFlag{Name: "port", Aliases: []string{"p"}, Value: 7174,
				Usage: "`PORT` of the endpoint"},
			&cli.BoolFlag{Name: "list", Usage: "list the cases, and what each wants"},
			&cli.StringSliceFlag{Name: "only", Usage: "only cases whose name has `WORDS`, or that are " +
				"about the requirement of this ID"},
			&cli.DurationFlag{Name: "timeout", Value: 15 * time.Second,
				Usage: "the endpoint may take so long for each thing it has to do"},
			&cli.StringFlag{Name: "format", Value: "text", Usage: "text, json or junit"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"},
				Usage: "with text: what went over the connection, of cases that did not pass"},
		},
		Action: func(c *cli.Context) error { return run(c, usage) },
	}
}

func run(c *cli.Context, usage func(format string, args ...any) error) error {
	write, ok := formats[c.String("format")]
	if !ok {
		return usage("--format %q: there are text, json and junit", c.String("format"))
	}
	suite, err := suiteOf(c)
	if err != nil {
		return usage("%v", err)
	}
	suite.Cases = torture.Select(suite.Cases, c.StringSlice("only"))
	if len(suite.Cases) == 0 {
		return usage("no case is about %s; see vrnic torture --list", strings.Join(c.StringSlice("only"),
			", "))
	}
	if c.Bool("list") {
		if c.NArg() > 0 {
			return usage("--list takes no address")
		}
		for _, x := range suite.Cases {
			if _, err := fmt.Fprintf(c.App.Writer, "%s [%s]: %s\n", x.Name, strings.Join(x.IDs, ", "),
				x.Want); err != nil {
				return err
			}
		}
		return nil
	}
	t, err := target(c)
	if err != nil {
		return usage("%v", err)
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the command at once
	r := torture.Report{Target: t.Addr.String(), Transport: suite.Transport}
	var failed error
	err = torture.Run(ctx, t, suite, func(x torture.Result) {
		r.Add(x)
		if write == nil {
			failed = errors.Join(failed, x.Line(c.App.Writer, c.Bool("verbose")))
		}
	})
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if err != nil {
		r.Ended = err.Error()
	}
	switch { // a report is whole, however far the run has come
	case write != nil:
		failed = write(&r, c.App.Writer)
	case len(r.Results) > 0 && failed == nil:
		_, failed = fmt.Fprintln(c.App.Writer, r.Summary())
	}
	if err = errors.Join(err, failed); err == nil && !r.Good() {
		err = cli.Exit("", 1)
	}
	return err
}

// suiteOf has the cases of a transport.
func suiteOf(c *cli.Context) (s torture.Suite, err error) {
	name := c.String("transport")
	var from netip.Addr
	if text := c.String("from"); text != "" {
		if name != "roce" {
			return s, errors.New("--from is for --transport roce")
		}
		if from, err = netip.ParseAddr(text); err != nil {
			return s, fmt.Errorf("--from %q is no address of IPv4 or IPv6", text)
		}
		if from = from.Unmap(); from.IsUnspecified() {
			return s, fmt.Errorf("--from %v is nobody's address", from)
		}
	}
	if udp := c.Uint("udp"); c.IsSet("udp") && name != "sctp" {
		return s, errors.New("--udp is for --transport sctp")
	} else if udp > 65535 {
		return s, fmt.Errorf("--udp: there is no port %d", udp)
	}
	switch name {
	case "sctp":
		return sctp.Suite(sctp.Host(uint16(c.Uint("udp")))), nil
	case "iwarp":
		return iwarp.Suite(iwarp.DialHost), nil
	case "roce":
		return roce.Suite(roce.Host(from)), nil
	}
	return s, fmt.Errorf("--transport %q: there are iwarp, roce and sctp", name)
}

// target is whom the command names.
func target(c *cli.Context) (torture.Target, error) {
	t := torture.Target{Timeout: c.Duration("timeout"), Settle: 100 * time.Millisecond}
	if c.NArg() != 1 {
		return t, errors.New("whom? Name one address")
	}
	a, err := netip.ParseAddr(c.Args().First())
	if err != nil {
		return t, fmt.Errorf("%q is no address of IPv4 or IPv6", c.Args().First())
	}
	port := c.Uint("port")
	if port > 65535 {
		return t, fmt.Errorf("there is no port %d", port)
	}
	if t.Timeout <= 0 {
		return t, errors.New("--timeout is above 0")
	}
	t.Addr = netip.AddrPortFrom(a.Unmap(), uint16(port))
	return t, t.Check()
}
