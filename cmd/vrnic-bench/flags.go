package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

const (
	standardTime   = 500 * time.Millisecond
	standardWarmUp = 50 * time.Millisecond
	standardDepth  = 16
	// deepFrom is the size from which a stream, not a ping-pong, is what one wants to know of.
	deepFrom = 4096
)

// The standard set.
var (
	standardPaths = []string{"loop", "pair"}
	standardOps   = []load.Op{load.Write, load.Read, load.Send}
	standardSizes = []int{64, 64 << 10, 1 << 20}
)

func names[T ~string](all []T) string {
	s := make([]string, len(all))
	for i, v := range all {
		s[i] = string(v)
	}
	return strings.Join(s, ", ")
}

// whatFlags say what is measured.
func whatFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "path", Usage: "`PATH`s to measure on: " + strings.Join(paths.Names,
			", ") + " (default: loop and pair)"},
		&cli.StringSliceFlag{Name: "op", Usage: "`OP`erations: " + names(load.Ops) +
			", or all (default: write, read, send)"},
		&cli.StringSliceFlag{Name: "size",
			Usage: "`SIZE`s of a message in octets (default: 64, 64k, 1M; of an atomic always 8)"},
		&cli.StringSliceFlag{Name: "depth",
			Usage: "`N` requests outstanding on each QP (default: 1 for sizes up to 4096 and atomics, " +
				"else 16)"},
		&cli.StringSliceFlag{Name: "qps",
			Usage: "`N` QPs between the ends, of each process (default: 1)"},
		&cli.StringFlag{Name: "processes", Usage: "`N` client processes at each end, on ring and tap; " +
			"0: both ends are in vrnic-bench (default: 1)"},
		&cli.StringFlag{Name: "pattern", Usage: "`P`: pingpong, there and back, or stream, one way " +
			"(default: pingpong at depth 1, but for reads and atomics)"},
		&cli.BoolFlag{Name: "bidir", DisableDefaultText: true,
			Usage: "streams go both ways at the same time"},
		&cli.StringFlag{Name: "wait", Value: string(load.Adaptive), Usage: "how an end waits, `W`: " +
			names(load.Waits)},
		&cli.BoolFlag{Name: "sctp", DisableDefaultText: true,
			Usage: "over SCTP in place of TCP; not on loop and ring, which have no network"},
		roceFlag(), mtuFlag("1500"), crcFlag(),
	}
}

// lengthFlags say for how long.
func lengthFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "time", Value: standardTime, Usage: "`D`uration of each measurement"},
		&cli.IntFlag{Name: "messages", DefaultText: "none",
			Usage: "end each measurement after `N` messages of each sender instead"},
		&cli.DurationFlag{Name: "warmup", Value: standardWarmUp,
			Usage: "`D`uration of the same load before it, which does not count (with --messages: 0)"},
		&cli.IntFlag{Name: "count", Value: 1, Usage: "measure everything `N` times, for benchstat"},
		&cli.BoolFlag{Name: "no-verify", DisableDefaultText: true,
			Usage: "do not compare the data before and after each measurement"},
	}
}

func vrnicFlag() cli.Flag {
	return &cli.StringFlag{Name: "vrnic", Usage: "the vrnic `PROGRAM`, for ring and tap (default: " +
		"the one beside this, in $PATH, or built from the sources here)"}
}

func roceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "roce", DisableDefaultText: true,
		Usage: "RoCEv2 in place of iWARP"}
}

func mtuFlag(def string) cli.Flag {
	return &cli.IntFlag{Name: "mtu", DefaultText: def,
		Usage: "octets of a packet on pair, wire and tap, `N`"}
}

func crcFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-crc", DisableDefaultText: true, Usage: "do without MPA's CRCs"}
}

func syscallsFlag() cli.Flag {
	return &cli.BoolFlag{Name: "syscalls", DisableDefaultText: true,
		Usage: "count the system calls of all processes of the path (root, tracefs); it costs each " +
			"call a little"}
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

// parseNumber reads a number that is not of octets.
func parseNumber(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q: want a number", s)
	}
	return int(n), nil
}

// maxRange bounds how many values one range has.
const maxRange = 1000

// parseRange reads one value, or a range LO..HI, which doubles, LO..HI*F, which multiplies by F, or
// LO..HI+N, which adds N. HI belongs to a range if a step comes to it.
func parseRange(s string, one func(string) (int, error)) ([]int, error) {
	lo, rest, isRange := strings.Cut(s, "..")
	from, err := one(lo)
	if err != nil || !isRange {
		return []int{from}, err
	}
	next := func(v int) int { return 2 * v }
	hi := rest
	for _, kind := range "*+" {
		end, step, ok := strings.Cut(rest, string(kind))
		if !ok {
			continue
		}
		by, err := one(step)
		if err != nil || by < 1 || kind == '*' && by < 2 {
			return nil, fmt.Errorf("%q: want LO..HI, LO..HI*F with F above 1, or LO..HI+N with N above 0", s)
		}
		hi = end
		next = func(v int) int { return v * by }
		if kind == '+' {
			next = func(v int) int { return v + by }
		}
	}
	to, err := one(hi)
	if err != nil {
		return nil, err
	}
	if from < 1 || to < from {
		return nil, fmt.Errorf("%q: want a range from at least 1 upwards", s)
	}
	var values []int
	for v := from; v <= to; v = next(v) {
		if values = append(values, v); len(values) > maxRange {
			return nil, fmt.Errorf("%q: more than %d values", s, maxRange)
		}
	}
	return values, nil
}

// listOf reads the numbers of a flag that may hold lists and ranges; without it they are def.
func listOf(
	c *cli.Context, flag string, one func(string) (int, error), def ...int,
) (values []int, err error) {
	if !c.IsSet(flag) {
		return def, nil
	}
	for _, s := range c.StringSlice(flag) {
		vs, err := parseRange(s, one)
		if err != nil {
			return nil, usagef("--%s %v", flag, err)
		}
		values = append(values, vs...)
	}
	return values, nil
}

// opsOf reads the operations.
func opsOf(c *cli.Context) ([]load.Op, error) {
	if !c.IsSet("op") {
		return standardOps, nil
	}
	var ops []load.Op
	for _, s := range c.StringSlice("op") {
		switch {
		case s == "all":
			ops = append(ops, load.Ops...)
		case slices.Contains(load.Ops, load.Op(s)):
			ops = append(ops, load.Op(s))
		default:
			return nil, usagef("--op %q: want %s, or all", s, names(load.Ops))
		}
	}
	return ops, nil
}
