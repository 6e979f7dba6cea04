package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/progress"
	"github.com/vrnic/vrnic/internal/cpuprofile"
)

const (
	scaleQPs  = load.MaxQPs
	scaleMRs  = 1_000_000
	scaleTime = 100 * time.Millisecond
	idleTime  = 2 * time.Second
)

// figurePaths have no need of root, and each adds a layer to the one before.
var figurePaths = []string{"loop", "pair", "ring"}

// figureFlags are of the commands that write figures, beside their own.
func figureFlags(time time.Duration, own ...cli.Flag) []cli.Flag {
	return append(append([]cli.Flag{
		&cli.StringSliceFlag{Name: "path", Usage: "`PATH`s: " + strings.Join(paths.Names, ", ") +
			" (default: " + strings.Join(figurePaths, ", ") + ")"},
		roceFlag(),
	}, own...),
		&cli.DurationFlag{Name: "time", Value: time, Usage: "`D`uration of each measurement"},
		&cli.StringFlag{Name: "json",
			Usage: "write the figures as JSON to `FILE`; - is standard output, instead of the table"},
		vrnicFlag(), cpuprofile.Flag())
}

// measureFigures has f measure on each path that figureFlags name, and writes what it has found.
func (s *scaling) measureFigures(f func(path string) error) error {
	c := s.c
	if c.Args().Present() {
		return usagef("unexpected argument %q", c.Args().First())
	}
	if s.time = c.Duration("time"); s.time <= 0 {
		return usagef("--time %v: want more than 0", s.time)
	}
	s.roce = c.Bool("roce")
	names := figurePaths
	var err error
	if c.IsSet("path") {
		if names, err = pathsOf(c); err != nil {
			return err
		}
	}
	if err := (&plan{paths: names}).checkPaths(c); err != nil {
		return err
	}
	out, stop, err := begin(c, []format{{flag: "json"}})
	if err != nil {
		return err
	}
	defer stop()
	s.quiet = out.quiet
	s.progress = progress.New(c.App.ErrWriter, time.Minute)
	defer s.progress.Done()
	for _, name := range names {
		if err := f(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	s.progress.Done()
	return out.writeJSON(s.c.App.Writer, s.figures)
}

func scaleCommand() *cli.Command {
	return &cli.Command{
		Name:  "scale",
		Usage: "measures what many QPs and registrations of one device cost",
		UsageText: "vrnic-bench scale [--path loop|pair|ring|tap]... [--roce] [--qps N] [--mrs N] " +
			"[--time D] [--json FILE]",
		Description: fmt.Sprintf("On each path: registers N regions; connects N QPs, %d at a time, as "+
			"a program with as many threads does;\n", load.AtOnce) +
			"looks how much processor time the devices take when nothing happens, and before that, for half as long, what\n" +
			"is left to do behind the last message; and measures what a 64-octet message costs with 1, 10, 100 ... N QPs:\n" +
			"with all of them taking turns, one message at a time, and ends that sleep until one comes (turns); and with\n" +
			"one message outstanding on each (all). A cost is the processor time of all processes, the median of three\n" +
			"measurements. Memory is that of the processes that the devices are in.",
		Flags: figureFlags(scaleTime,
			&cli.IntFlag{Name: "qps", Value: scaleQPs, Usage: "`N` connected QPs at each end"},
			&cli.IntFlag{Name: "mrs", Value: scaleMRs, Usage: "`N` registrations; 0 for none"},
			&cli.DurationFlag{Name: "idle", Value: idleTime,
				Usage: "watch the devices for `D` with nothing to do, after half as long for what is left of " +
					"the work"},
		),
		Action: scaleAction,
	}
}

func scaleAction(c *cli.Context) error {
	s := scaling{c: c, qps: c.Int("qps"), mrs: c.Int("mrs"), idle: c.Duration("idle")}
	switch {
	case s.qps < 1 || s.qps > load.MaxQPs:
		return usagef("--qps %d: want 1 to %d", s.qps, load.MaxQPs)
	case s.mrs < 0 || s.mrs > paths.MaxMRs:
		return usagef("--mrs %d: want 0 to %d", s.mrs, paths.MaxMRs)
	case s.idle <= 0:
		return usagef("--idle %v: want more than 0", s.idle)
	}
	return s.measureFigures(s.onPath)
}

// A figure is one thing that was measured.
type figure struct {
	Path  string  `json:"path"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Target is what it ought to be at most, or with AtLeast at least; 0 for none.
	Target  float64 `json:"target,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
}

// reached says whether the target is; ok is false if there is none.
func (f figure) reached() (reached, ok bool) {
	if f.AtLeast {
		return f.Value >= f.Target, f.Target != 0
	}
	return f.Value <= f.Target, f.Target != 0
}

func (f figure) line() string {
	s := fmt.Sprintf("%-5s %-44s %12.*f %-14s", f.Path, f.Name, f.decimals(), f.Value, f.Unit)
	reached, ok := f.reached()
	if !ok {
		return strings.TrimRight(s, " ")
	}
	sign, word := "<=", "MISSED"
	if f.AtLeast {
		sign = ">="
	}
	if reached {
		word = "reached"
	}
	return fmt.Sprintf("%s target %s %g %s", s, sign, f.Target, word)
}

// decimals are as many as say something.
func (f figure) decimals() int {
	if f.Value >= 100 {
		return 0
	}
	return 2
}
