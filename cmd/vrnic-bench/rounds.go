package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/progress"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
)

// An outcome is a contest with one baseline, or with none, of all rounds.
type outcome struct {
	contest string
	kind    baseline.Kind
	// row is that of the round with the median ratio; of a contest without baselines that with the
	// median rate.
	row    report.Row
	ours   spread
	theirs spread // of the baseline
	ratio  spread
	tail   spread // p99.9 divided by p50
	allocs tally
	beside beside
}

// A beside is somebody else's round trip, in the same rounds.
type beside struct {
	name      string // "" for none
	p50, tail spread // p50 in microseconds
}

// A spread is what came out of several rounds.
type spread struct{ lo, median, hi float64 }

func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	return spread{v[0], v[len(v)/2], v[len(v)-1]}
}

// of says it as text with so many decimals.
func (s spread) of(decimals int) string {
	return fmt.Sprintf("%.*f [%.*f..%.*f]", decimals, s.median, decimals, s.lo, decimals, s.hi)
}

// A match has the outcomes of all contests.
type match struct {
	c        *cli.Context
	p        comparison
	out      outputs
	progress *progress.Line
	outcomes []outcome
}

func (m *match) print(line string) {
	m.progress.Clear()
	fmt.Fprintln(m.c.App.Writer, line)
}

// onPath has all contests of a path: those of iWARP, and then, on a path made anew, those of RoCE
// with it.
func (m *match) onPath(name string) error {
	if err := m.holdAll(name, m.p.opts, m.p.contests); err != nil {
		return err
	}
	opts := m.p.opts
	opts.RoCE = true
	if opts.MTU == 0 && paths.HasMTU(name) {
		opts.MTU = roceMTU
	}
	contests := m.p.roceContests
	if name == "direct" {
		contests = m.p.roceDirectContests
	}
	return m.holdAll(name, opts, contests)
}

// holdAll has those contests on a path of that name.
func (m *match) holdAll(
	name string, opts paths.Options, list func(context.Context, *paths.Path) ([]contest, error),
) error {
	ctx := m.c.Context
	path, err := paths.Open(name, opts)
	if err != nil {
		return err
	}
	defer path.Close()
	contests, err := list(ctx, path)
	if err != nil {
		return err
	}
	for _, ct := range contests {
		os, err := m.hold(ctx, path, ct)
		if err != nil {
			return fmt.Errorf("%s: %w", ct.name, err)
		}
		for _, o := range os {
			m.outcomes = append(m.outcomes, o)
			if !m.out.quiet {
				m.print(o.line())
			}
		}
	}
	return nil
}

// countRounds is how many rounds' messages there are when allocations are counted.
const countRounds = 3

// hold has the rounds of a contest.
func (m *match) hold(ctx context.Context, path *paths.Path, ct contest) ([]outcome, error) {
	b, err := newBench(ctx, path, ct.spec, m.p.plan)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	var rivals []baseline.Baseline
	for _, other := range ct.rivals {
		r, err := other.connect(ctx, m.p.plan)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		rivals = append(rivals, r)
	}
	ct.baselines = append(rivals, ct.baselines...)
	var rows []report.Row
	theirs := make([][]float64, len(ct.baselines))
	var besides []rawtcp.Result
	for round := range m.p.rounds {
		m.progress.Step(fmt.Sprintf("%s, %s: round %d of %d", path.Name, ct.name, round+1, m.p.rounds))
		row, err := b.measure(ctx, m.p.amount)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		for i := range ct.baselines {
			i = (i + round) % len(ct.baselines) // the first is another one each time
			v, err := m.measure(ctx, ct, ct.baselines[i])
			if err != nil {
				return nil, err
			}
			theirs[i] = append(theirs[i], v)
		}
		if ct.beside != nil {
			r, err := m.ask(ctx, ct, ct.beside)
			if err != nil {
				return nil, err
			}
			besides = append(besides, r)
		}
	}
	m.progress.Step(fmt.Sprintf("%s, %s: allocations", path.Name, ct.name))
	allocs, err := b.countAllocs(ctx, countRounds*rows[0].Messages)
	if err != nil {
		return nil, err
	}
	if len(ct.baselines) == 0 {
		o := outcomeOf(ct, nil, rows, allocs, nil)
		if ct.beside != nil {
			o.beside = besideOf(ct.beside.Name(), besides)
		}
		return []outcome{o}, nil
	}
	var os []outcome
	for i, bl := range ct.baselines {
		os = append(os, outcomeOf(ct, bl, rows, allocs, theirs[i]))
	}
	return os, nil
}

// baselineTime bounds a baseline's measurement, beyond its time.
const baselineTime = time.Minute

// measure is a baseline's figure: Gbit/s, or microseconds.
func (m *match) measure(ctx context.Context, ct contest, b baseline.Baseline) (float64, error) {
	r, err := m.ask(ctx, ct, b)
	return theirFigure(ct.kind, b.Traits(), r), err
}

// ask is a baseline's measurement, which has a figure.
func (m *match) ask(ctx context.Context, ct contest, b baseline.Baseline) (rawtcp.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, m.p.amount.Time+baselineTime)
	defer cancel()
	req := baseline.Request{Kind: ct.kind, Size: ct.spec.Size, Slots: ct.spec.Depth,
		Time: m.p.amount.Time}
	req.Poll = ct.spec.Wait == load.Poll && b.Traits().Polls
	r, err := b.Measure(ctx, req)
	if err == nil {
		if v := theirFigure(ct.kind, b.Traits(), r); !(v > 0) {
			err = fmt.Errorf("a figure of %v", v)
		}
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", b.Name(), err)
	}
	return r, nil
}

// besideOf makes a beside of the rounds' results.
func besideOf(name string, rs []rawtcp.Result) beside {
	var p50s, tails []float64
	for _, r := range rs {
		p50s = append(p50s, float64(r.P50)/float64(time.Microsecond))
		tails = append(tails, float64(r.P999)/float64(r.P50))
	}
	return beside{name: name, p50: spreadOf(p50s), tail: spreadOf(tails)}
}

// theirFigure is what a baseline's measurement comes to: Gbit/s, or microseconds.
func theirFigure(kind baseline.Kind, traits baseline.Traits, r rawtcp.Result) float64 {
	switch {
	case kind == baseline.Bandwidth:
		return r.BitsPerSecond() / 1e9
	case traits.OnlyMean:
		return float64(r.Mean) / float64(time.Microsecond)
	}
	return float64(r.P50) / float64(time.Microsecond)
}

// ourFigure is what is compared with it; of a contest without baselines the rate of a core.
func ourFigure(kind baseline.Kind, traits baseline.Traits, r report.Row) float64 {
	switch {
	case kind == "":
		return perCore(r)
	case kind == baseline.Bandwidth:
		return r.Gbits
	case traits.OnlyMean:
		return r.Lat.Mean
	}
	return r.Lat.P50
}

// outcomeOf makes the outcome of rows beside the figures theirs of b, round by round; b is nil for
// none. allocs was counted behind them.
func outcomeOf(ct contest, b baseline.Baseline, rows []report.Row, allocs tally,
	theirs []float64) outcome {
	o := outcome{contest: ct.name, kind: ct.kind, allocs: allocs}
	var ours, tails, ratios []float64
	var traits baseline.Traits
	if b != nil {
		traits = b.Traits()
	}
	for i, r := range rows {
		v := ourFigure(ct.kind, traits, r)
		ours = append(ours, v)
		tails = append(tails, r.Lat.P999/r.Lat.P50)
		if b != nil {
			ratios = append(ratios, v/theirs[i])
		}
	}
	o.ours, o.tail = spreadOf(ours), spreadOf(tails)
	by, at := ours, o.ours.median
	if b != nil {
		o.theirs, o.ratio = spreadOf(theirs), spreadOf(ratios)
		by, at = ratios, o.ratio.median
	}
	o.row = rows[slices.Index(by, at)]
	o.row.Allocs = allocs.each()
	if b != nil {
		o.row.Baseline, o.row.Ratio, o.row.RatioMin, o.row.RatioMax = b.Name(), o.ratio.median,
			o.ratio.lo, o.ratio.hi
	}
	return o
}

// perCore is how many messages a second of processor time carries.
func perCore(r report.Row) float64 {
	if r.CPUPerMsg == 0 {
		return 0
	}
	return 1e6 / r.CPUPerMsg
}

// line is o for people.
func (o outcome) line() string {
	unit, decimals := "Gbit/s", 2
	switch o.kind {
	case baseline.RoundTrip:
		unit = "us"
	case "":
		unit, decimals = "messages a second of one core", 0
	}
	s := fmt.Sprintf("%-6s %-34s %10.*f %-6s", o.row.Path, o.contest, decimals, o.ours.median, unit)
	switch {
	case o.row.Baseline != "":
		s += fmt.Sprintf("  %-22s %10.2f %-6s  ratio %s", o.row.Baseline, o.theirs.median, unit,
			o.ratio.of(2))
	case o.kind == baseline.RoundTrip:
		s += fmt.Sprintf("  p99.9 %.1f us, p99.9/p50 %s", o.row.Lat.P999, o.tail.of(1))
		if b := o.beside; b.name != "" {
			s += fmt.Sprintf("  %s %.2f us, p99.9/p50 %s", b.name, b.p50.median, b.tail.of(1))
		}
	}
	return s
}
