package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
	"github.com/vrnic/vrnic/rdma"
)

// The standard set.
var (
	standardPaths = []string{"loop", "pair"}
	latencySize   = 64
	streamSizes   = []int{64 << 10, 1 << 20}
)

const (
	standardTime  = 500 * time.Millisecond
	standardDepth = 16

	// setUpTime bounds what is not measured: connecting, and comparing the data.
	setUpTime = time.Minute
)

func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "path", Usage: "`PATH` to measure on: " + strings.Join(paths.Names, ", ") + " (default: loop and pair)"},
		&cli.StringSliceFlag{Name: "op", Usage: "`OP`eration: write, read, send (default: all)"},
		&cli.StringSliceFlag{Name: "size", Usage: "`SIZE` of a message in octets, or such as 64k, 1M (default: 64, 64k, 1M)"},
		&cli.IntFlag{Name: "depth", Usage: "`N` requests outstanding (default: 1 for sizes up to 4096, else 16)"},
		&cli.DurationFlag{Name: "time", Value: standardTime, Usage: "`D`uration of each measurement"},
		&cli.IntFlag{Name: "messages", Usage: "end each measurement after `N` messages instead"},
		&cli.BoolFlag{Name: "sctp", Usage: "over SCTP in place of TCP; not on loop and ring, which have no network"},
		crcFlag(), jsonFlag(), vrnicFlag(), profileFlag(),
	}
}

func jsonFlag() cli.Flag {
	return &cli.StringFlag{Name: "json", Usage: "write the rows as JSON to `FILE`; - is standard output, instead of the table"}
}

func vrnicFlag() cli.Flag {
	return &cli.StringFlag{Name: "vrnic", Usage: "the vrnic `PROGRAM`, for ring and tap (default: the one beside this, in $PATH, or built from the sources here)"}
}

func crcFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-crc", Usage: "do without CRCs"}
}

func profileFlag() cli.Flag {
	return &cli.StringFlag{Name: "cpuprofile", Usage: "write a CPU profile of this process to `FILE`"}
}

func runAction(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("unknown command %q; see vrnic-bench --help", c.Args().First())
	}
	names, specs, err := runSpecs(c)
	if err != nil {
		return err
	}
	stop, err := startProfile(c.String("cpuprofile"))
	if err != nil {
		return err
	}
	defer stop()
	quiet := c.String("json") == "-"
	if !quiet {
		fmt.Fprintln(c.App.Writer, report.Heading)
	}
	var rows []report.Row
	for _, name := range names {
		err := onPath(name, c, func(p *paths.Path) error {
			for _, spec := range specs {
				row, err := measure(c.Context, p, spec, connParam(c))
				if err != nil {
					return err
				}
				rows = append(rows, row)
				if !quiet {
					fmt.Fprintln(c.App.Writer, row.Line())
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return writeRows(c, rows)
}

func writeRows(c *cli.Context, rows []report.Row) error {
	if name := c.String("json"); name != "" {
		return report.WriteJSON(name, c.App.Writer, rows)
	}
	return nil
}

// runSpecs says what the flags ask for. Its errors are wrong usage.
func runSpecs(c *cli.Context) (names []string, specs []load.Spec, err error) {
	names = standardPaths
	if c.Bool("sctp") {
		names = []string{"pair"}
	}
	if c.IsSet("path") {
		names = c.StringSlice("path")
	}
	for _, name := range names {
		if !paths.Known(name) {
			return nil, nil, usagef("--path %q: want one of %s", name, strings.Join(paths.Names, ", "))
		}
		if c.Bool("sctp") && c.IsSet("path") && (name == "loop" || name == "ring") {
			return nil, nil, usagef("--sctp: the path %s is on one device, which needs no transport; take pair, wire or tap", name)
		}
	}
	ops := load.Ops
	if c.IsSet("op") {
		ops = nil
		for _, op := range c.StringSlice("op") {
			ops = append(ops, load.Op(op))
		}
	}
	sizes := append([]int{latencySize}, streamSizes...)
	if c.IsSet("size") {
		sizes = nil
		for _, s := range c.StringSlice("size") {
			n, err := parseSize(s)
			if err != nil {
				return nil, nil, usagef("--size %v", err)
			}
			sizes = append(sizes, n)
		}
	}
	if c.Duration("time") <= 0 || c.Int("messages") < 0 {
		return nil, nil, usagef("--time and --messages want more than 0")
	}
	for _, size := range sizes {
		for _, op := range ops {
			spec := load.Spec{Op: op, Size: size, Depth: c.Int("depth"), Time: c.Duration("time"), Messages: c.Int("messages")}
			if !c.IsSet("depth") {
				spec.Depth = 1
				if size > 4096 {
					spec.Depth = standardDepth
				}
			}
			if err := spec.Check(); err != nil {
				return nil, nil, usagef("%v", err)
			}
			specs = append(specs, spec)
		}
	}
	return names, specs, nil
}

// parseSize reads a number of octets, with k or M for binary thousands and millions.
func parseSize(s string) (int, error) {
	shift := 0
	digits := s
	switch {
	case strings.HasSuffix(s, "k"):
		digits, shift = strings.TrimSuffix(s, "k"), 10
	case strings.HasSuffix(s, "M"):
		digits, shift = strings.TrimSuffix(s, "M"), 20
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n > load.MaxSize>>shift {
		return 0, fmt.Errorf("%q: want a number of octets up to %d, or such as 64k, 1M", s, load.MaxSize)
	}
	return int(n) << shift, nil
}

func connParam(c *cli.Context) rdma.ConnParam {
	var p rdma.ConnParam
	if c.Bool("no-crc") {
		p.MPA.CRC = rdma.CRCOff
	}
	p.SCTP = c.Bool("sctp")
	return p
}

// onPath makes a path for f.
func onPath(name string, c *cli.Context, f func(*paths.Path) error) error {
	p, err := paths.Open(name, paths.Options{Vrnic: c.String("vrnic")})
	if err != nil {
		return err
	}
	defer p.Close()
	return f(p)
}

// measure runs spec on p, the data compared before and after.
func measure(ctx context.Context, p *paths.Path, spec load.Spec, param rdma.ConnParam) (row report.Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, spec.Time+setUpTime)
	defer cancel()
	spec.Elsewhere = p.CPU != nil
	pair, err := load.Connect(ctx, p.A, p.B, p.AddrB, spec, param)
	if err != nil {
		return row, err
	}
	defer pair.Close()
	return measureOn(ctx, p, pair, spec)
}

func measureOn(ctx context.Context, p *paths.Path, pair *load.Pair, spec load.Spec) (row report.Row, err error) {
	if err := pair.Verify(ctx); err != nil {
		return row, err
	}
	m := report.StartMeter(p.CPU)
	r, err := pair.Measure(ctx)
	if err != nil {
		return row, err
	}
	row = m.Row(p.Name, spec, r)
	return row, pair.Verify(ctx)
}

// startProfile writes a CPU profile to the file name until stop is called; "" for none.
func startProfile(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}
