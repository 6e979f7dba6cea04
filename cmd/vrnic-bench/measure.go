package main

import (
	"context"
	"math"
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

// calibrate finds out what a run allocates for itself: goroutines, channels, its histogram. The first one
// makes what the others keep.
func (b *bench) calibrate(ctx context.Context) error {
	for range 2 {
		_, cost, err := b.costOf(ctx, load.Amount{Messages: 1})
		if err != nil {
			return err
		}
		b.once = cost.Allocs
	}
	return nil
}

// costOf is run, and what it has cost; the allocations are those of all ends.
func (b *bench) costOf(ctx context.Context, a load.Amount) (r load.Result, c meter.Cost, err error) {
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
	c.Allocs += r.Allocs
	return r, c, nil
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

// steadyRuns is how many runs of half the time steadyAllocs has at most.
const steadyRuns = 5

// steadyAllocs is how many objects a message allocates, right behind a measurement of the same load: the least of
// several runs. What a message allocates it allocates in each of them. Pools, which the garbage collector empties now and
// then, because of what is measured in between, allocate until they have what is in flight, and the runtime what
// it keeps of its own for goroutines that wait: that is some dozens of objects, how long ever a run is, and there are runs
// without.
func (b *bench) steadyAllocs(ctx context.Context, a load.Amount) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, steadyRuns*a.Time+setUpTime)
	defer cancel()
	a.Time /= 2
	return least(steadyRuns, func() (float64, error) {
		r, cost, err := b.costOf(ctx, a)
		if err != nil || r.Messages == 0 {
			return 0, err
		}
		return float64(cost.Allocs-min(cost.Allocs, b.once)) / float64(r.Messages), nil
	})
}

// least is the least of what n calls of f return; there are fewer if one returns 0.
func least(n int, f func() (float64, error)) (v float64, err error) {
	v = math.Inf(1)
	for range n {
		x, err := f()
		if err != nil {
			return 0, err
		}
		if v = min(v, x); v == 0 {
			break
		}
	}
	return v, nil
}
