package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/progress"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
	"github.com/vrnic/vrnic/internal/cpuprofile"
)

const (
	// Many short rounds: what else a machine does comes and goes, and is to meet both alike.
	compareRounds = 15
	compareTime   = 300 * time.Millisecond
	maxDepth      = 256 // of a comparison: a TCP server has as many MiB of memory at most
)

func compareCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringSliceFlag{Name: "path",
			Usage: "`PATH`s: loop, pair, ring, direct, host, wire, tap (default: all; " +
				"wire and tap are left out without root)"},
		&cli.IntFlag{Name: "rounds", Value: compareRounds, Usage: "`N` rounds"},
		&cli.DurationFlag{Name: "time", Value: compareTime, Usage: "`D`uration of each measurement"},
		&cli.DurationFlag{Name: "warmup", Value: standardWarmUp,
			Usage: "`D`uration of load before the first round"},
		&cli.IntFlag{Name: "depth", Value: standardDepth,
			Usage: "`N` requests outstanding, where bandwidth is measured"},
		&cli.StringFlag{Name: "processes", Usage: "0: both ends of ring, host and tap, and of their " +
			"baselines, are in vrnic-bench; 1: each has a process of its own (default: 1)"},
		mtuFlag("1500, of RoCE and what is beside it 9000"),
		&cli.BoolFlag{Name: "no-verify", DisableDefaultText: true,
			Usage: "do not compare the data before and after each measurement"},
		crcFlag(),
	}
	flags = append(append(flags, outputFlags(rowFormats)...), vrnicFlag(), cpuprofile.Flag())
	return &cli.Command{
		Name:  "compare",
		Usage: "measures vrnic and its baselines on the same path, in turn, and prints ratios",
		UsageText: "vrnic-bench compare [--path loop|pair|ring|direct|host|wire|tap]... [--rounds N] " +
			"[--time D] [--json FILE]",
		Description: "Each round measures vrnic, then its baselines, the first of which changes from " +
			"round to round:\n\n" +
			"   loop        copying in memory\n" +
			"   pair        TCP between the same two netstacks, and between two in memory with the MTU that is fastest here\n" +
			"   ring        copying in memory; the kernel's TCP on its loopback\n" +
			"   direct      messages that go by the daemon (off); copying in memory; the kernel's TCP on its loopback, which polls\n" +
			"               as vrnic does\n" +
			"   host        the kernel's TCP on its loopback, which carries the devices', too\n" +
			"   wire (root) TCP between the same two netstacks, on the same TAPs; the kernel's TCP over the same bridges\n" +
			"   tap (root)  TCP between two processes with netstacks on TAPs of the same bridges; the kernel's TCP there\n\n" +
			"On each path RoCE is measured, too, beside iWARP there, on direct beside the daemon's way; on host, wire and tap a\n" +
			"round trip also beside an echo of the kernel's UDP, over the same loopback or bridges. All that has an MTU of 9000\n" +
			"where it can be chosen.\n\n" +
			"Where fi_pingpong (libfabric) and ucx_perftest (UCX) are in $PATH, ring and tap have them, too, over\n" +
			"the kernel's TCP; of a round trip they tell the mean, which is compared with vrnic's mean, else medians are.\n\n" +
			"A ratio is vrnic's figure divided by the baseline's, printed as median [lowest..highest] of the\n" +
			"rounds: of bandwidths higher is better, of times lower. Where bandwidth is measured, both go through the same\n" +
			"amount of memory, depth times 1 MiB. Beside the tails of round trips, p99.9 divided by p50, with ends that poll\n" +
			"and with ends that sleep, are those of the kernel's TCP, which polls or sleeps as well; on pair, which it\n" +
			"has no part in, that of netstack TCP, which sleeps. Behind all the table of targets says what was reached.",
		Flags:  flags,
		Action: compareAction,
	}
}

func compareAction(c *cli.Context) error {
	p, err := comparePlan(c)
	if err != nil {
		return err
	}
	out, stop, err := begin(c, rowFormats)
	if err != nil {
		return err
	}
	defer stop()
	// About three baselines for each of five contests, and one or two for those of RoCE.
	length := time.Duration(25*p.rounds*len(p.paths)) * p.amount.Time
	m := match{c: c, p: p, out: out, progress: progress.New(c.App.ErrWriter, length)}
	defer m.progress.Done()
	m.p.leaveOut = func(name string, err error) {
		if c.Context.Err() != nil {
			return // it was interrupted, as we are
		}
		m.progress.Clear()
		fmt.Fprintf(c.App.ErrWriter, "vrnic-bench: left out: %s\n",
			oneLine(fmt.Errorf("%s: %w", name, err)))
	}
	if !out.quiet {
		m.print(fmt.Sprintf("%d rounds of %v each, in turn; median [lowest..highest]", p.rounds,
			p.amount.Time))
	}
	for _, name := range p.paths {
		if err := m.onPath(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	m.progress.Done()
	if !out.quiet {
		m.print("")
		for _, line := range targetTable(m.outcomes) {
			m.print(line)
		}
	}
	var rows []report.Row
	for _, o := range m.outcomes {
		rows = append(rows, o.row)
	}
	return out.write(c.App.Writer, rows)
}

// A comparison is what the flags of compare ask for.
type comparison struct {
	plan
	rounds, depth int
	noCRC         bool
	// leaveOut is told of baselines that are installed and do not work.
	leaveOut func(name string, err error)
}

// comparePlan reads the flags. Its errors are wrong usage.
func comparePlan(c *cli.Context) (p comparison, err error) {
	if c.Args().Present() {
		return p, usagef("unexpected argument %q", c.Args().First())
	}
	p = comparison{rounds: c.Int("rounds"), depth: c.Int("depth"), noCRC: c.Bool("no-crc")}
	p.amount, p.warmUp, p.verify = load.Amount{Time: c.Duration("time")}, c.Duration("warmup"),
		!c.Bool("no-verify")
	p.opts = paths.Options{Vrnic: c.String("vrnic"), Worker: selfCommand(workerName),
		MTU: c.Int("mtu"), Processes: 1}
	if c.IsSet("processes") {
		if p.opts.Processes, err = parseNumber(c.String("processes")); err != nil ||
			p.opts.Processes > 1 {
			return p, usagef("--processes %q: want 0 or 1; a baseline has as many", c.String("processes"))
		}
	}
	switch {
	case p.rounds < 1:
		return p, usagef("--rounds %d: want more than 0", p.rounds)
	case p.amount.Time <= 0:
		return p, usagef("--time %v: want more than 0", p.amount.Time)
	case p.warmUp < 0:
		return p, usagef("--warmup %v: want 0 or more", p.warmUp)
	case p.depth < 1 || p.depth > maxDepth:
		return p, usagef("--depth %d: want 1 to %d", p.depth, maxDepth)
	}
	if c.IsSet("path") {
		if p.paths, err = pathsOf(c); err != nil {
			return p, err
		}
		if c.IsSet("processes") && !slices.ContainsFunc(p.paths, paths.HasDaemon) {
			return p, usagef("--processes: none of the paths has client processes; take ring, host or tap")
		}
		if p.opts.MTU != 0 && !slices.ContainsFunc(p.paths, func(name string) bool {
			return paths.HasMTU(name)
		}) {
			return p, usagef("--mtu: none of the paths has packets; take pair, wire or tap")
		}
	} else {
		p.paths = paths.Names
		if os.Geteuid() != 0 {
			fmt.Fprintln(c.App.ErrWriter, "vrnic-bench: without root there are no paths wire and tap")
			p.paths = slices.DeleteFunc(slices.Clone(p.paths), paths.NeedsRoot)
		}
	}
	return p, checkMTU(p.opts.MTU)
}
