package main

import (
	"context"
	"os"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
)

const (
	// setUpTime bounds what is not measured: connecting, and comparing the data.
	setUpTime = 2 * time.Minute
	// countTime bounds a measurement that ends after a number of messages.
	countTime = time.Hour
)

// A bench is what measures one spec: connected, and perhaps more than once.
type bench struct {
	path     *paths.Path
	spec     load.Spec
	pairs    []*load.Pair
	verify   bool
	syscalls *meter.Syscalls // nil: not counted
	// once is what a run allocates, however long it is.
	once uint64
}

// newBench connects what measures spec.
func newBench(ctx context.Context, path *paths.Path, spec load.Spec, p plan) (b *bench, err error) {
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	b = &bench{path: path, spec: spec, verify: p.verify}
	if b.pairs, err = path.Connect(ctx, spec); err != nil {
		return nil, err
	}
	if p.syscalls {
		if b.syscalls, err = meter.CountSyscalls(append(path.PIDs(), os.Getpid())); err != nil {
			b.Close()
			return nil, err
		}
	}
	if p.warmUp > 0 {
		warm, cancel := context.WithTimeout(ctx, setUpTime+p.warmUp)
		defer cancel()
		if _, err := b.run(warm, load.Amount{Time: p.warmUp}); err != nil {
			b.Close()
			return nil, err
		}
	}
	if err := b.calibrate(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// calibrate finds out what a run allocates for itself: goroutines, channels, its histogram. The
// first one makes what the others keep.
func (b *bench) calibrate(ctx context.Context) error {
	for range 2 {
		_, cost, err := b.costOf(ctx, load.Amount{Messages: 1, KeepPools: true})
		if err != nil {
			return err
		}
		b.once = cost.Allocs
	}
	return nil
}

// costOf is run, and what it has cost; the allocations are those of all ends and daemons.
func (b *bench) costOf(
	ctx context.Context, a load.Amount,
) (r load.Result, c meter.Cost, err error) {
	before, err := b.path.DaemonAllocs()
	if err != nil {
		return r, c, err
	}
	m, err := meter.New(b.path.PIDs(), b.syscalls)
	if err != nil {
		return r, c, err
	}
	if r, err = b.run(ctx, a); err != nil {
		return r, c, err
	}
	if c, err = m.Read(); err != nil {
		return r, c, err
	}
	if b.path.Processes() > 0 {
		c.Allocs = 0 // this process only asks those of the ends
	}
	after, err := b.path.DaemonAllocs()
	c.Allocs += r.Allocs + after - before
	return r, c, err
}

// Close ends it.
func (b *bench) Close() {
	for _, pair := range b.pairs {
		pair.Close()
	}
	if b.syscalls != nil {
		b.syscalls.Close()
	}
}

// each has all pairs do f at the same time.
func (b *bench) each(f func(*load.Pair) error) error {
	errs := make(chan error, len(b.pairs))
	for _, pair := range b.pairs[1:] {
		go func() { errs <- f(pair) }()
	}
	err := f(b.pairs[0])
	for range b.pairs[1:] {
		if e := <-errs; err == nil {
			err = e
		}
	}
	return err
}

// run puts the load on all pairs.
func (b *bench) run(ctx context.Context, a load.Amount) (sum load.Result, err error) {
	results := make(chan load.Result, len(b.pairs))
	err = b.each(func(p *load.Pair) error {
		r, err := p.Measure(ctx, a)
		results <- r
		return err
	})
	if err != nil {
		return sum, err
	}
	for range b.pairs {
		sum.Merge(<-results)
	}
	return sum, nil
}

// compareData moves and compares data, if it is to be verified.
func (b *bench) compareData(ctx context.Context) error {
	if !b.verify {
		return nil
	}
	return b.each(func(p *load.Pair) error { return p.Verify(ctx) })
}

// measure makes a row, the data compared before and after.
func (b *bench) measure(ctx context.Context, a load.Amount) (row report.Row, err error) {
	d := a.Time
	if a.Messages > 0 {
		d = countTime
	}
	ctx, cancel := context.WithTimeout(ctx, d+setUpTime)
	defer cancel()
	if err := b.compareData(ctx); err != nil {
		return row, err
	}
	r, cost, err := b.costOf(ctx, a)
	if err != nil {
		return row, err
	}
	cost.Allocs -= min(cost.Allocs, b.once)
	if err := b.compareData(ctx); err != nil {
		return row, err
	}
	row = report.NewRow(b.path.Name, paths.OneDevice(b.path.Name), b.path.Processes(), b.spec, r, cost)
	row.Verified = b.verify
	return row, nil
}

// A tally is how many objects a number of messages has allocated.
type tally struct{ objects, messages uint64 }

// each is how many a message has.
func (t tally) each() float64 { return float64(t.objects) / float64(max(t.messages, 1)) }

// fillRuns is how many runs there are at most before the one that counts.
const fillRuns = 10

// countAllocs counts all objects that n messages allocate in one run, less those of a run of one
// message. No garbage is collected meanwhile: a collection empties the pools of gVisor and of the
// runtime, and a stream of messages has none.
func (b *bench) countAllocs(ctx context.Context, n uint64) (t tally, err error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	defer meter.KeepPools()()
	if err := b.calibrate(ctx); err != nil {
		return t, err
	}
	return filled(func() (tally, error) {
		r, cost, err := b.costOf(ctx, load.Amount{Messages: int(n), KeepPools: true})
		return tally{cost.Allocs - min(cost.Allocs, b.once), r.Messages}, err
	})
}

// filled is what run counts once pools have what they need: behind the first run that has allocated
// nothing, or behind fillRuns.
func filled(run func() (tally, error)) (t tally, err error) {
	for range fillRuns {
		if t, err = run(); err != nil {
			return t, err
		}
		if t.objects == 0 {
			break
		}
	}
	return run()
}
