package main

import (
	"context"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
)

// roceMTU is the MTU of what RoCE is compared on: what is common where RDMA is, with room for its
// largest packets.
const roceMTU = 9000

// roceContests lists what RoCE is compared in on path.
func (p comparison) roceContests(ctx context.Context, path *paths.Path) ([]contest, error) {
	stream := contest{name: "1 MiB RoCE Write", kind: baseline.Bandwidth, iwarp: true,
		spec: load.Spec{Op: load.Write, Size: wide, Depth: p.depth, QPs: 1, Pattern: load.Stream,
			Wait: load.Adaptive, RoCE: true}}
	trip := contest{name: "64 B RoCE Write round trip", kind: baseline.RoundTrip, iwarp: true,
		spec: load.Spec{Op: load.Write, Size: quick, Depth: 1, QPs: 1, Pattern: load.PingPong,
			Wait: load.Adaptive, RoCE: true}}
	if path.Lab() != nil || path.Name == "host" {
		client, server := baseline.PeerSite{Addr: loopback}, baseline.PeerSite{Addr: loopback}
		if path.Lab() != nil {
			var err error
			if client, server, err = bridgeSites(path); err != nil {
				return nil, err
			}
		}
		udp, err := p.kernelUDP(path, client, server)
		if err != nil {
			return nil, err
		}
		trip.baselines = append(trip.baselines, udp)
	}
	return []contest{stream, trip}, nil
}

// A rival is iWARP on the path that RoCE is measured on.
type rival struct{ b *bench }

// newRival connects what measures spec, of RoCE, over iWARP.
func newRival(ctx context.Context, path *paths.Path, spec load.Spec, p plan) (*rival, error) {
	spec.RoCE = false
	b, err := newBench(ctx, path, spec, p)
	if err != nil {
		return nil, err
	}
	return &rival{b}, nil
}

// Close ends it.
func (r *rival) Close() { r.b.Close() }

func (*rival) Name() string            { return "iwarp" }
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
