package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
)

// A comparison measures one thing and what it is compared with.
type comparison struct {
	spec     load.Spec
	baseline string
	latency  bool // the ratio is of medians of times, else of bandwidths
	// measure measures the baseline: bits per second, or a time.
	measure func(time.Duration) (float64, time.Duration, error)
	// target is what the ratio should reach: at least, or for times at most; 0 for none.
	target float64
}

const (
	// Many short rounds: what else a machine does comes and goes, and is to meet both alike.
	compareRounds = 15
	compareTime   = 300 * time.Millisecond
)

func compareCommand() *cli.Command {
	return &cli.Command{
		Name:      "compare",
		Usage:     "measures vrnic and its baselines on the same path, in turn, and prints ratios",
		UsageText: "vrnic-bench compare [--path loop|pair|ring|wire|tap]... [--rounds N] [--time D] [--json FILE]",
		Description: "Each round measures vrnic, then its baseline: on loop and ring memcpy, on pair and wire (root) TCP\n" +
			"between the same two netstacks, on tap (root) TCP between two processes with netstacks on TAPs of the same\n" +
			"bridges, and on both the kernels'. A ratio is vrnic's figure divided by\n" +
			"the baseline's, printed as median [lowest..highest] of the rounds: of bandwidths higher is better, of\n" +
			"times lower. Where bandwidth is measured, both go through the same amount of memory, depth times 1 MiB.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "path", Usage: "`PATH`: loop, pair, ring, wire, tap (default: all; wire and tap are left out without root)"},
			&cli.IntFlag{Name: "rounds", Value: compareRounds, Usage: "`N` rounds"},
			&cli.DurationFlag{Name: "time", Value: compareTime, Usage: "`D`uration of each measurement"},
			&cli.IntFlag{Name: "depth", Value: standardDepth, Usage: "`N` requests outstanding, where bandwidth is measured"},
			crcFlag(), jsonFlag(), vrnicFlag(), profileFlag(),
		},
		Action: compareAction,
	}
}

func compareAction(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("unexpected argument %q", c.Args().First())
	}
	rounds, d, depth := c.Int("rounds"), c.Duration("time"), c.Int("depth")
	if rounds < 1 || d <= 0 || depth < 1 || depth > 256 {
		return usagef("--rounds and --time want more than 0, --depth 1 to 256")
	}
	names := paths.Names
	if c.IsSet("path") {
		for _, name := range c.StringSlice("path") {
			if !slices.Contains(names, name) {
				return usagef("--path %q: want one of %s", name, strings.Join(names, ", "))
			}
		}
		names = c.StringSlice("path")
	} else if os.Geteuid() != 0 {
		fmt.Fprintln(c.App.ErrWriter, "vrnic-bench: without root there are no paths wire and tap")
		names = slices.DeleteFunc(slices.Clone(names), paths.NeedsRoot)
	}
	stop, err := startProfile(c.String("cpuprofile"))
	if err != nil {
		return err
	}
	defer stop()
	if c.String("json") != "-" {
		fmt.Fprintf(c.App.Writer, "%d rounds of %v each, in turn; median [lowest..highest]\n", rounds, d)
	}
	var rows []report.Row
	for _, name := range names {
		err := onPath(name, c, func(p *paths.Path) error {
			cs, err := comparisons(p, d, depth)
			if err != nil {
				return err
			}
			for _, cmp := range cs {
				rs, err := compare(c, p, cmp, rounds)
				if err != nil {
					return fmt.Errorf("beside %s: %w", cmp.baseline, err)
				}
				rows = append(rows, rs)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return writeRows(c, rows)
}

// comparisons lists what is compared on p.
func comparisons(p *paths.Path, d time.Duration, depth int) ([]comparison, error) {
	stream := load.Spec{Op: load.Write, Size: 1 << 20, Depth: depth, Time: d, Elsewhere: p.CPU != nil}
	pingPong := load.Spec{Op: load.Write, Size: 64, Depth: 1, Time: d, Elsewhere: p.CPU != nil}
	if p.Name == "loop" || p.Name == "ring" {
		return []comparison{{spec: stream, baseline: "memcpy", target: 0.5,
			measure: func(d time.Duration) (float64, time.Duration, error) {
				bps, err := memcpy(p.A, stream, d)
				return bps, 0, err
			}}}, nil
	}
	baselines, err := p.Baselines()
	if err != nil {
		return nil, err
	}
	var cs []comparison
	for _, b := range baselines {
		measure := func(mode byte, spec load.Spec) func(time.Duration) (float64, time.Duration, error) {
			return func(d time.Duration) (float64, time.Duration, error) {
				r, err := b.Measure(paths.Request{Mode: mode, Size: spec.Size, Slots: spec.Depth, Time: d})
				if err != nil {
					return 0, 0, err
				}
				return r.BitsPerSecond(), r.P50, nil
			}
		}
		wide := comparison{spec: stream, baseline: b.Name(), measure: measure(rawtcp.Sink, stream)}
		quick := comparison{spec: pingPong, baseline: b.Name(), latency: true, measure: measure(rawtcp.Echo, pingPong)}
		if paths.NeedsRoot(p.Name) && b.Name() == "netstack-tcp" {
			wide.target, quick.target = 0.6, 1.5
		}
		cs = append(cs, wide, quick)
	}
	return cs, nil
}

// compare has the rounds of cmp and prints what came out. The row is that of the median round.
func compare(c *cli.Context, p *paths.Path, cmp comparison, rounds int) (report.Row, error) {
	ctx, cancel := context.WithTimeout(c.Context, time.Duration(rounds)*2*cmp.spec.Time+setUpTime)
	defer cancel()
	pair, err := load.Connect(ctx, p.A, p.B, p.AddrB, cmp.spec, connParam(c))
	if err != nil {
		return report.Row{}, err
	}
	defer pair.Close()
	var rows []report.Row
	var theirs []float64
	for range rounds {
		row, err := measureOn(ctx, p, pair, cmp.spec)
		if err != nil {
			return row, err
		}
		bps, t, err := cmp.measure(cmp.spec.Time)
		if err != nil {
			return row, err
		}
		row.Baseline = cmp.baseline
		if cmp.latency {
			row.Ratio = row.Lat.P50 / (float64(t) / float64(time.Microsecond))
			theirs = append(theirs, float64(t)/float64(time.Microsecond))
		} else {
			row.Ratio = row.Gbits * 1e9 / bps
			theirs = append(theirs, bps/1e9)
		}
		rows = append(rows, row)
		if err := ctx.Err(); err != nil {
			return row, err
		}
	}
	slices.SortFunc(rows, func(a, b report.Row) int { return cmpFloat(a.Ratio, b.Ratio) })
	slices.Sort(theirs)
	row := rows[len(rows)/2]
	if c.String("json") != "-" {
		ours, unit := row.Gbits, "Gbit/s"
		if cmp.latency {
			ours, unit = row.Lat.P50, "us"
		}
		fmt.Fprintf(c.App.Writer, "%-4s %-5s %7s depth %-3d %8.2f %-6s  %-12s %8.2f %-6s  ratio %.2f [%.2f..%.2f]%s\n",
			row.Path, row.Op, report.Octets(row.Size), row.Depth, ours, unit, cmp.baseline, theirs[len(theirs)/2], unit,
			row.Ratio, rows[0].Ratio, rows[len(rows)-1].Ratio, cmp.verdict(row.Ratio))
	}
	return row, nil
}

func cmpFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// verdict compares ratio with the target.
func (cmp comparison) verdict(ratio float64) string {
	word, sign, reached := "reached", ">=", ratio >= cmp.target
	if cmp.latency {
		sign, reached = "<=", ratio <= cmp.target
	}
	if cmp.target == 0 {
		return ""
	}
	if !reached {
		word = "MISSED"
	}
	return fmt.Sprintf("  target %s %.1f %s", sign, cmp.target, word)
}
