package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/trace"
	"github.com/vrnic/vrnic/internal/terminal"
	"github.com/vrnic/vrnic/internal/version"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/shm"
)

func captureCommand() *cli.Command {
	return &cli.Command{
		Name:  "capture",
		Usage: "write the packets of devices and ports as pcapng",
		UsageText: "vrnic capture [-d DEVICE]... [-p PORT]... [--peer ADDR] [--qp N] " +
			"[--proto NAME] -w FILE\nvrnic capture -w - | wireshark -k -i -",
		Description: "Writes what goes through devices, all of them if none is named, and through " +
			"ports of the switch, until\ninterrupted. Packets are as they are on a wire: what goes " +
			"through the daemon in one piece is cut, with\nchecksums. A comment says of which queue pair, " +
			"program and operation a packet is, as far as that is known.\n" +
			"Root and the daemon's own user may do it. The daemon does not wait for who looks: packets " +
			"that find no room\nare dropped here, not on their way, and counted at the end.\n\n" +
			"Queue pairs of RoCE of one daemon, which copy otherwise, send packets meanwhile, and so do " +
			"connections\nwithin a device of iWARP that begin then. Of those that were there before is " +
			"shown what they would send.",
		Flags: []cli.Flag{
			socketFlag(),
			&cli.StringSliceFlag{Name: "device", Aliases: []string{"d"}, Usage: "packets of `DEVICE`"},
			&cli.StringSliceFlag{Name: "port", Aliases: []string{"p"},
				Usage: "packets of `PORT`, as vrnic show port has it"},
			&cli.StringFlag{Name: "write", Aliases: []string{"w"},
				Usage: "to `FILE`, or with - to stdout"},
			&cli.IntFlag{Name: "files", DefaultText: "one file",
				Usage: "keep the last `N` files, whose names have a number"},
			&cli.Int64Flag{Name: "filesize", DefaultText: "no bound",
				Usage: "with --files: begin the next file at so many `KB`"},
			&cli.Int64Flag{Name: "count", Aliases: []string{"c"}, DefaultText: "until interrupted",
				Usage: "end after `N` packets"},
			&cli.IntFlag{Name: "snaplen", Aliases: []string{"s"}, Value: frame.MaxLen,
				Usage: "the first `N` octets of each packet"},
			&cli.StringFlag{Name: "peer", Usage: "only packets from or to `ADDR`"},
			&cli.UintFlag{Name: "qp", DefaultText: "all",
				Usage: "only packets of queue pair `N`, as far as that is known"},
			&cli.BoolFlag{Name: "wr", Usage: "comments also have the wr_id of requests: it costs each " +
				"request some time, and wants whole packets"},
			&cli.StringFlag{Name: "proto", Usage: "only packets of protocol `NAME`: " +
				strings.Join(capture.Protocols, ", ")},
		},
		Action: asking(capturePackets),
	}
}

// A recording is a capture as the command line asks for it.
type recording struct {
	ports  []string // devices and ports
	filter capture.Filter
	snap   int
	wr     bool  // of which requests packets are
	count  int64 // packets; 0: no end
	open   func(*capture.Section) (*capture.Files, error)
	told   io.Writer
}

// capturePackets is the command.
func capturePackets(c *cli.Context, client *shm.Client) error {
	r := recording{ports: append(c.StringSlice("device"), c.StringSlice("port")...),
		snap: c.Int("snaplen"), count: c.Int64("count"), wr: c.Bool("wr"), told: c.App.ErrWriter}
	qp := c.Uint("qp")
	r.filter.Proto, r.filter.QP = c.String("proto"), uint32(qp)
	if s := c.String("peer"); s != "" {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return usagef("--peer: %v", err)
		}
		r.filter.Peer = a.Unmap()
	}
	if err := r.filter.Check(); err != nil {
		return usagef("%v", err)
	}
	path, files, size := c.String("write"), c.Int("files"), c.Int64("filesize")
	switch {
	case path == "":
		return usagef("where to? --write names a file, - is stdout")
	case qp > math.MaxUint32:
		return usagef("--qp: at most %d", uint32(math.MaxUint32))
	case r.count < 0:
		return usagef("--count is not below 0")
	case (files > 0) != (size > 0) || files < 0 || size < 0:
		return usagef("--files and --filesize go together")
	case size > math.MaxInt64/1000:
		return usagef("--filesize: at most %d", int64(math.MaxInt64/1000))
	case files > 0 && path == "-":
		return usagef("--files takes a file's name")
	case r.snap < 1 || r.snap > frame.MaxLen:
		return usagef("--snaplen: from 1 to %d", frame.MaxLen)
	case r.wr && c.IsSet("snaplen"):
		return usagef("--wr wants whole packets: leave out --snaplen")
	}
	r.open = func(s *capture.Section) (*capture.Files, error) {
		if path != "-" {
			return capture.NewFiles(path, files, size*1000, s)
		}
		if terminal.Is(c.App.Writer) {
			return nil, usagef("stdout is a terminal: pipe it into wireshark -k -i -, or name a file")
		}
		return capture.NewStream(c.App.Writer, s)
	}
	ctx, stop := interruptible(c.Context)
	defer stop()
	return r.run(ctx, client)
}

// interruptible ends with the first signal. A second one ends the program: who reads what is
// captured may never take it.
func interruptible(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// run captures until ctx ends.
func (r *recording) run(ctx context.Context, client *shm.Client) error {
	names, addrs, err := deviceNames(client)
	if err != nil {
		return err
	}
	if len(r.ports) == 0 {
		r.ports = client.Devices()
	}
	conn, err := client.Capture(ctx, r.ports, r.snap, r.wr)
	if err != nil {
		return fmt.Errorf("capture: %w", inWords(err))
	}
	defer conn.Close()
	in, err := capture.NewReader(conn)
	if err != nil {
		return err
	}
	files, err := r.open(&capture.Section{Version: version.String(), Ports: in.Ports, Names: names,
		Filter: r.filter.String(), Snap: r.snap})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })() // it may be closed already
	table := capture.NewTable(addrs, func() ([]json.RawMessage, error) { return client.List("qp") },
		time.Now)
	n, err := r.copy(in, files, table, conn.CloseWrite)
	err = errors.Join(err, files.Close(in.Dropped))
	fmt.Fprintf(r.told, "%d packets captured, %d dropped for want of time\n", n, in.Dropped)
	return err
}

// copy copies packets that are wanted until there are no more, or as many as asked for: then it has
// the daemon end.
func (r *recording) copy(in *capture.Reader, out *capture.Files, table *capture.Table,
	end func() error) (n int64, err error) {
	parser, numbers, begun := capture.NewParser(), trace.NewNumbers(table), trace.NewBegun()
	for {
		if in.Waits() {
			if err := out.Flush(); err != nil {
				return n, err
			}
		}
		p, err := in.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if r.count > 0 && n == r.count {
			continue
		}
		if p.Event != nil {
			if err := numbers.Event(&p); err != nil {
				return n, err
			}
			continue
		}
		parsed := parser.Parse(p.Data)
		from, to, err := table.Find(&parsed)
		if err != nil {
			return n, err
		}
		var requests []string
		if in.Ports[p.Port].Kind == "stack" { // at another port it is seen again
			if requests, err = numbers.Packet(&p, from, to); err != nil {
				return n, err
			}
		}
		if !r.filter.Wants(&parsed, from, to) {
			continue
		}
		before, err := begun.Before(&p, &parsed, from, to)
		if err != nil {
			return n, err
		}
		for _, b := range before {
			if err := out.Packet(&b, []string{trace.MadeUp}); err != nil {
				return n, err
			}
		}
		if err := out.Packet(&p, capture.Comments(&parsed, from, to, requests...)); err != nil {
			return n, err
		}
		if n++; n == r.count {
			if err := end(); err != nil {
				return n, err
			}
		}
	}
}

func traceCommand() *cli.Command {
	return &cli.Command{
		Name:      "trace",
		Usage:     "show the conversation of a queue pair as it happens",
		UsageText: "vrnic trace [-d DEVICE] [--json] [--for TIME] QP",
		Description: "A line is a request that the daemon has taken (post), one that has ended " +
			"(complete, receive), or what of it\nis on the wire: an FPDU of MPA, a DDP segment on SCTP, a " +
			"packet of RoCE (out, in), with the number that\nthe program has given the request, as far as " +
			"that is known.\nRoot and the daemon's own user may " +
			"do it, until interrupted. What the daemon has no room for is counted.",
		Flags: []cli.Flag{
			socketFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print an object a line"},
			&cli.StringFlag{Name: "device", Aliases: []string{"d"}, Usage: "the queue pair of `DEVICE`"},
			&cli.DurationFlag{Name: "for", DefaultText: "until interrupted", Usage: "end after `TIME`"},
		},
		Action: traceQP,
	}
}

func traceQP(c *cli.Context) error {
	length := c.Duration("for")
	switch {
	case c.Args().Len() != 1:
		return usagef("which queue pair? See %s --help", commandName(c))
	case c.IsSet("for") && length <= 0:
		return usagef("--for is above 0")
	}
	client, err := dial(c)
	if err != nil {
		return err
	}
	defer client.Close()
	of, err := findTarget(client, c.Args().First(), c.String("device"))
	if err != nil {
		return err
	}
	if of.qpn == 0 {
		return usagef("%s is a device: a queue pair has a number", of.dev)
	}
	_, addrs, err := deviceNames(client)
	if err != nil {
		return err
	}
	ctx, stop := interruptible(c.Context)
	defer stop()
	conn, err := client.Trace(ctx, of.String())
	if err != nil {
		return fmt.Errorf("trace: %w", inWords(err))
	}
	defer conn.Close()
	if length > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, length)
		defer done()
	}
	in, err := capture.NewReader(conn)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })() // it may be closed already
	out := bufio.NewWriter(c.App.Writer)
	emit := func(l *trace.Line) error {
		_, err := fmt.Fprintln(out, l)
		return err
	}
	if c.Bool("json") {
		e := json.NewEncoder(out)
		emit = func(l *trace.Line) error { return e.Encode(l) }
	}
	t := trace.New(of.dev, of.qpn, capture.NewTable(addrs,
		func() ([]json.RawMessage, error) { return client.List("qp") }, time.Now), emit)
	for {
		if in.Waits() {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		p, err := in.Next()
		if err == nil {
			err = t.Take(&p)
		}
		switch {
		case errors.Is(err, io.EOF):
			return errors.Join(t.End(in.Dropped), out.Flush())
		case err != nil:
			return errors.Join(err, out.Flush())
		}
	}
}

// deviceNames are the devices' names for their addresses, and their addresses.
func deviceNames(client *shm.Client) (names []capture.Name, addrs map[string][]netip.Addr,
	err error) {
	rows, err := client.List("dev")
	if err != nil {
		return nil, nil, err
	}
	addrs = make(map[string][]netip.Addr)
	for _, raw := range rows {
		var row struct {
			Dev   string
			Addrs []netip.Prefix
		}
		if err := json.Unmarshal(raw, &row); err != nil {
			return nil, nil, fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		for _, p := range row.Addrs {
			addrs[row.Dev] = append(addrs[row.Dev], p.Addr())
			if !slices.ContainsFunc(names, func(n capture.Name) bool { return n.Addr == p.Addr() }) {
				names = append(names, capture.Name{Addr: p.Addr(), Name: row.Dev})
			}
		}
	}
	return names, addrs, nil
}

// extcapPrefix begins the names that Wireshark has for devices.
const extcapPrefix = "vrnic-"

// extcapCommand speaks Wireshark's extcap interface, by which programs offer interfaces to capture
// from (extcap(4)): contrib/wireshark/vrnic calls it.
func extcapCommand() *cli.Command {
	flag := func(name, usage string) cli.Flag { return &cli.StringFlag{Name: name, Usage: usage} }
	return &cli.Command{
		Name:      "extcap",
		Usage:     "offer the devices to Wireshark",
		UsageText: "vrnic extcap --extcap-interfaces|--extcap-dlts|--extcap-config|--capture ...",
		Hidden:    true,
		Flags: []cli.Flag{
			socketFlag(),
			&cli.BoolFlag{Name: "extcap-interfaces", Usage: "list the devices"},
			&cli.BoolFlag{Name: "extcap-dlts", Usage: "say what packets of a device are"},
			&cli.BoolFlag{Name: "extcap-config", Usage: "say what can be set: nothing"},
			&cli.BoolFlag{Name: "capture", Usage: "capture to --fifo"},
			flag("extcap-version", "of Wireshark"), flag("extcap-interface", "the device"),
			flag("fifo", "where packets go"),
			flag("extcap-capture-filter", "none can be set"),
		},
		Action: extcap,
	}
}

func extcap(c *cli.Context) error {
	device, named := strings.CutPrefix(c.String("extcap-interface"), extcapPrefix)
	switch {
	case c.Bool("extcap-interfaces"):
		return extcapInterfaces(c)
	case c.Bool("extcap-config"):
		return nil
	case !named:
		return usagef("which interface? Wireshark names it with --extcap-interface")
	case c.Bool("extcap-dlts"):
		_, err := fmt.Fprintln(c.App.Writer, "dlt {number=1}{name=EN10MB}{display=Ethernet}")
		return err
	case c.Bool("capture") && c.String("fifo") != "":
		return asking(func(c *cli.Context, client *shm.Client) error {
			ctx, stop := interruptible(c.Context)
			defer stop()
			// Wireshark takes what is on stderr for an error.
			r := recording{ports: []string{device}, snap: frame.MaxLen, told: io.Discard}
			r.open = func(s *capture.Section) (*capture.Files, error) {
				fifo, err := os.OpenFile(c.String("fifo"), os.O_WRONLY, 0)
				if err != nil {
					return nil, err
				}
				return capture.NewStream(fifo, s)
			}
			if err := r.run(ctx, client); !errors.Is(err, syscall.EPIPE) { // Wireshark has ended it
				return err
			}
			return nil
		})(c)
	}
	return usagef("what? See extcap(4)")
}

// extcapInterfaces lists the devices that have packets here; none without a daemon: Wireshark
// starts all the same.
func extcapInterfaces(c *cli.Context) error {
	fmt.Fprintf(c.App.Writer, "extcap {version=%s}{display=virtual RNICs}\n", version.String())
	client, err := dial(c)
	if err != nil {
		return nil
	}
	defer client.Close()
	for _, name := range client.Devices() {
		fmt.Fprintf(c.App.Writer, "interface {value=%s%s}{display=vrnic: device %s}\n", extcapPrefix,
			name, name)
	}
	return nil
}
