package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/top"
	"github.com/vrnic/vrnic/internal/terminal"
	"github.com/vrnic/vrnic/shm"
)

// watchInterval is how long `vrnic stat --watch` waits between two looks.
const watchInterval = time.Second

func statCommand() *cli.Command {
	return &cli.Command{
		Name:  "stat",
		Usage: "print counters of devices, ports and QPs",
		UsageText: "vrnic stat [-d DEVICE] [--watch] [--json]\n" +
			"vrnic stat --histogram QP|DEVICE|all [--for TIME] [--json]",
		Description: "Prints one line per device, port of the switch, QP and SRQ. Counters start at 0 " +
			"and only grow.\n" +
			"--watch prints each second the lines that changed, with the increase behind each counter.\n\n" +
			"--histogram measures, until interrupted or --for is over, how long send requests take: from " +
			"when the\ndaemon takes one from its ring until it completes. It prints for each queue pair " +
			"and operation what half\nof them took at most, nine of ten, and so on. Root and the " +
			"daemon's own user may do it.",
		Flags: []cli.Flag{
			socketFlag(), jsonFlag(),
			&cli.StringFlag{Name: "device", Aliases: []string{"d"}, Usage: "only `DEVICE` and its QPs"},
			&cli.BoolFlag{Name: "watch", Usage: "go on each second, until interrupted"},
			&cli.StringFlag{Name: "histogram",
				Usage: "of queue pair or device `WHAT`, or all: what requests take"},
			&cli.DurationFlag{Name: "for", DefaultText: "until interrupted",
				Usage: "with --histogram: measure for `TIME`"},
		},
		Action: asking(stat),
	}
}

func stat(c *cli.Context, client *shm.Client) error {
	if c.IsSet("histogram") || c.IsSet("for") {
		return histogram(c, client)
	}
	look := func() ([]json.RawMessage, error) {
		rows, err := client.Stat()
		if err != nil {
			return nil, fmt.Errorf("stat: %w", err)
		}
		return ofDevice(rows, c.String("device"))
	}
	rows, err := look()
	if err != nil {
		return err
	}
	if !c.Bool("watch") {
		return printRows(c, allOf(rows))
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	before := make(map[string]map[string]string)
	for first := true; ; first = false {
		if c.Bool("json") {
			err = writeJSONLine(c.App.Writer, rows)
		} else {
			err = writeChanges(c.App.Writer, before, rows, first)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if rows, err = look(); err != nil {
			return err
		}
	}
}

// histogram has the daemon measure what requests take.
func histogram(c *cli.Context, client *shm.Client) error {
	what, length := c.String("histogram"), c.Duration("for")
	switch {
	case what == "":
		return usagef("of what? --histogram names a queue pair or a device, or all")
	case c.Bool("watch"):
		return usagef("--watch and --histogram do not go together")
	case c.IsSet("for") && length <= 0:
		return usagef("--for is above 0")
	}
	var of []string
	if what != "all" {
		one, err := findTarget(client, what, c.String("device"))
		if err != nil {
			return err
		}
		of = []string{one.String()}
	}
	ctx, stop := interruptible(c.Context)
	defer stop()
	conn, err := client.Latency(ctx, of)
	if err != nil {
		return fmt.Errorf("histogram: %w", inWords(err))
	}
	defer conn.Close()
	if length > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, length)
		defer done()
	}
	defer context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })() // it may be closed already
	var rows []latency.Row
	if err := json.NewDecoder(conn).Decode(&rows); err != nil {
		return fmt.Errorf("histogram: the daemon has gone: %w", err)
	}
	if !given(c, "json").Bool("json") {
		return latency.Write(c.App.Writer, rows)
	}
	e := json.NewEncoder(c.App.Writer)
	e.SetIndent("", "  ")
	return e.Encode(rows)
}

// A target is a device, or a queue pair of one.
type target struct {
	dev string
	qpn uint32 // 0: all of them
}

// String is t as the daemon is asked for it.
func (t target) String() string {
	if t.qpn == 0 {
		return t.dev
	}
	return fmt.Sprintf("%s,qp=%d", t.dev, t.qpn)
}

// findTarget is what is meant by the number of a queue pair, of dev unless that is "", or by the
// name of a device.
func findTarget(client *shm.Client, what, dev string) (target, error) {
	qpn, err := strconv.ParseUint(what, 10, 32)
	if err != nil {
		if !slices.Contains(client.Devices(), what) {
			return target{}, noDevice(what, client.Devices())
		}
		return target{dev: what}, nil
	}
	rows, err := client.List("qp")
	if err != nil {
		return target{}, err
	}
	var at []string
	for _, raw := range rows {
		var row struct {
			Dev string
			QPN uint32
		}
		if err := json.Unmarshal(raw, &row); err != nil {
			return target{}, fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		if uint64(row.QPN) == qpn && (dev == "" || row.Dev == dev) {
			at = append(at, row.Dev)
		}
	}
	switch len(at) {
	case 0:
		return target{}, fmt.Errorf("there is no queue pair %d; see vrnic show qp", qpn)
	case 1:
		return target{at[0], uint32(qpn)}, nil
	}
	return target{}, usagef("queue pairs %d are on %s: which? -d names the device", qpn,
		strings.Join(at, ", "))
}

func topCommand() *cli.Command {
	return &cli.Command{
		Name:      "top",
		Usage:     "show which queue pairs and programs move most",
		UsageText: "vrnic top [--programs] [--sort out|in|messages] [--interval 1s] [-n COUNT]",
		Description: "A line is a queue pair, or a program with all of its own; rates are of payload, " +
			"over the last interval.\nOn a terminal it is a screen: q ends it, p changes between queue " +
			"pairs and programs, s what comes first.\nElse, and with -n, it prints a table each interval.",
		Flags: []cli.Flag{
			socketFlag(),
			&cli.BoolFlag{Name: "programs", Usage: "a line for each program"},
			&cli.StringFlag{Name: "sort", Value: "out", Usage: "`WHAT` comes first: " +
				strings.Join(top.Orders(), ", ")},
			&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "`TIME` between two looks"},
			&cli.IntFlag{Name: "n", DefaultText: "until interrupted", Usage: "print `COUNT` tables"},
		},
		Action: asking(topOf),
	}
}

func topOf(c *cli.Context, client *shm.Client) error {
	by, err := top.ParseOrder(c.String("sort"))
	if err != nil {
		return usagef("--sort: %v", err)
	}
	interval, n, view := c.Duration("interval"), c.Int("n"), top.QPs
	if interval < 10*time.Millisecond || n < 0 {
		return usagef("--interval is 10ms at least, -n not below 0")
	}
	if c.Bool("programs") {
		view = top.Programs
	}
	look := func() (l top.Look, err error) {
		if l.QPs, err = client.List("qp"); err == nil {
			l.At = time.Now()
			l.Stat, err = client.Stat()
		}
		return l, err
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if n > 0 || !terminal.Is(c.App.Writer) {
		return top.Plain(ctx, c.App.Writer, interval, n, view, by, look)
	}
	screen, err := tcell.NewScreen()
	if err != nil {
		return fmt.Errorf("terminal: %w; -n 1 prints a table", err)
	}
	return top.Run(ctx, screen, interval, view, by, look)
}

// ofDevice keeps the rows of a device; "" keeps all. An error says that there is no such device.
func ofDevice(rows []json.RawMessage, device string) ([]json.RawMessage, error) {
	if device == "" {
		return rows, nil
	}
	var kept []json.RawMessage
	var known []string
	for _, raw := range rows {
		var row struct{ Kind, Dev string }
		if err := json.Unmarshal(raw, &row); err != nil {
			return nil, fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		if row.Kind == "dev" {
			known = append(known, row.Dev)
		}
		if row.Dev == device {
			kept = append(kept, raw)
		}
	}
	if kept == nil {
		return nil, noDevice(device, known)
	}
	return kept, nil
}

// writeChanges prints the rows with a counter that differs from before, and remembers them there.
// all prints every row.
func writeChanges(w io.Writer, before map[string]map[string]string, rows []json.RawMessage,
	all bool) error {
	var b strings.Builder
	present := make(map[string]bool, len(rows))
	for _, raw := range rows {
		row, err := parseRow(raw)
		if err != nil {
			return err
		}
		id := rowID(row)
		present[id] = true
		old, known := before[id]
		if !known {
			old = make(map[string]string)
			before[id] = old
		}
		changed := all || !known
		line := make([]string, 0, len(row))
		for _, f := range row {
			s := f.key + " " + f.value
			if was, ok := old[f.key]; ok && was != f.value {
				changed = true
				s += increase(was, f.value)
			}
			old[f.key] = f.value
			line = append(line, s)
		}
		if changed {
			b.WriteString(strings.Join(line, " "))
			b.WriteByte('\n')
		}
	}
	for id := range before {
		if !present[id] {
			delete(before, id)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rowID is what tells a row from others: the names it begins with.
func rowID(row []field) string {
	var id strings.Builder
	for _, f := range row {
		switch f.key {
		case "kind", "dev", "port", "qpn", "srqn":
			id.WriteString(f.key + " " + f.value + " ")
		}
	}
	return id.String()
}

func increase(was, is string) string {
	a, err := strconv.ParseUint(was, 10, 64)
	if err != nil {
		return ""
	}
	b, err := strconv.ParseUint(is, 10, 64)
	if err != nil || b < a {
		return ""
	}
	return fmt.Sprintf(" (+%d)", b-a)
}

// writeJSONLine prints rows as one array on one line, for a reader that takes a line at a time.
func writeJSONLine(w io.Writer, rows []json.RawMessage) error {
	if rows == nil {
		rows = []json.RawMessage{}
	}
	b, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
