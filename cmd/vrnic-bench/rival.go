package main

import (
	"context"
	"fmt"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
)

// A rivalry is vrnic itself as a baseline: the same in another way.
type rivalry struct {
	name string
	path *paths.Path
	spec load.Spec
}

// A rival is a baseline of a rivalry.
type rival struct {
	name string
	b    *bench
}

// connect makes the rival.
func (r rivalry) connect(ctx context.Context, p plan) (*rival, error) {
	b, err := newBench(ctx, r.path, r.spec, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return &rival{r.name, b}, nil
}

// Close ends it.
func (r *rival) Close() { r.b.Close() }

func (r *rival) Name() string          { return r.name }
func (*rival) Does(baseline.Kind) bool { return true }
func (*rival) Traits() baseline.Traits { return baseline.Traits{} }

// Measure implements baseline.Baseline. What is measured was said before.
func (r *rival) Measure(ctx context.Context, req baseline.Request) (rawtcp.Result, error) {
	if err := r.b.compareData(ctx); err != nil {
		return rawtcp.Result{}, err
	}
	got, err := r.b.run(ctx, load.Amount{Time: req.Time})
	if err != nil {
		return rawtcp.Result{}, err
	}
	h := got.Times
	return rawtcp.Result{Octets: got.Octets, Elapsed: got.Elapsed(), Messages: got.Messages,
		Mean: h.Mean(), P50: h.Quantile(0.5), P99: h.Quantile(0.99), P999: h.Quantile(0.999)}, nil
}
