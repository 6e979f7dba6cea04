package main

import (
	"context"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

// A directRing is what messages that go without the daemon are compared with: those that go by it,
// which is another daemon's, and the kernel's TCP, which waits as vrnic does.
type directRing struct {
	ring   *paths.Path
	kernel baseline.Baseline
	roce   bool
}

func (p comparison) besideDirect(path *paths.Path, roce bool) (r directRing, err error) {
	if _, r.kernel, err = p.loopbackTCP(path); err != nil {
		return r, err
	}
	opts := p.opts
	opts.RoCE = roce
	if r.ring, err = paths.Open("ring", opts); err != nil {
		return r, err
	}
	r.roce = roce
	path.OnClose(r.ring.Close)
	return r, nil
}

func (r directRing) spec(op load.Op, size, depth int, pattern load.Pattern,
	wait load.Wait) load.Spec {
	return load.Spec{Op: op, Size: size, Depth: depth, QPs: 1, Pattern: pattern, Wait: wait,
		RoCE: r.roce}
}

// with is a contest with the daemon's path, and with what else there is.
func (r directRing) with(
	name string, kind baseline.Kind, spec load.Spec, more ...baseline.Baseline,
) contest {
	return contest{name: name, spec: spec, kind: kind, baselines: more,
		rivals: []rivalry{{"off", r.ring, spec}}}
}

// trip is a round trip of 64 octets, with ends that poll.
func (r directRing) trip(name string, op load.Op) contest {
	return r.with(name, baseline.RoundTrip, r.spec(op, quick, 1, load.PingPong, load.Poll), r.kernel)
}

// rate is a stream of small Sends.
func (r directRing) rate(name string) contest {
	return r.with(name, baseline.Bandwidth, r.spec(load.Send, quick, rateDepth, load.Stream,
		load.Poll))
}

// directContests lists what is compared where messages go without the daemon.
func (p comparison) directContests(path *paths.Path) ([]contest, error) {
	r, err := p.besideDirect(path, false)
	if err != nil {
		return nil, err
	}
	dev, err := path.Device()
	if err != nil {
		return nil, err
	}
	memcpy := baseline.NewMemcpy(dev)
	wideOf := func(op load.Op) load.Spec { return r.spec(op, wide, p.depth, load.Stream, load.Poll) }
	trip := r.spec(load.Send, quick, 1, load.PingPong, load.Event)
	return []contest{
		r.rate("64 B Sends"),
		r.trip("64 B Write round trip, poll", load.Write),
		r.with("64 B Read, poll", baseline.RoundTrip, r.spec(load.Read, quick, 1, load.Stream, load.Poll),
			r.kernel),
		r.with("1 MiB Write", baseline.Bandwidth, wideOf(load.Write), memcpy),
		r.with("1 MiB Read", baseline.Bandwidth, wideOf(load.Read), memcpy),
		r.trip("64 B Send round trip, poll", load.Send),
		r.alone("64 B Send round trip, wait poll", load.Poll),
		r.with("64 B Send round trip, event", baseline.RoundTrip, trip, r.kernel),
		r.alone("64 B Send round trip, wait event", load.Event),
	}, nil
}

// alone is a round trip whose tail is looked at.
func (r directRing) alone(name string, wait load.Wait) contest {
	return contest{name: name, spec: r.spec(load.Send, quick, 1, load.PingPong, wait),
		kind: baseline.RoundTrip, beside: r.kernel}
}

// roceDirectContests are those of RoCE.
func (p comparison) roceDirectContests(_ context.Context, path *paths.Path) ([]contest, error) {
	r, err := p.besideDirect(path, true)
	if err != nil {
		return nil, err
	}
	return []contest{
		r.rate("64 B RoCE Sends"),
		r.trip("64 B RoCE Write round trip, poll", load.Write),
		r.trip("64 B RoCE Send round trip, poll", load.Send),
	}, nil
}
