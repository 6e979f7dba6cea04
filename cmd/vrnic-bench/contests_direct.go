package main

import (
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

// directContests lists what is compared where messages go without the daemon: with those that go by
// it, which is another daemon's, and with the kernel's TCP, which waits as vrnic does.
func (p comparison) directContests(path *paths.Path) ([]contest, error) {
	_, kernel, err := p.loopbackTCP(path)
	if err != nil {
		return nil, err
	}
	ring, err := paths.Open("ring", p.opts)
	if err != nil {
		return nil, err
	}
	path.OnClose(ring.Close)
	dev, err := path.Device()
	if err != nil {
		return nil, err
	}
	memcpy := baseline.NewMemcpy(dev)
	spec := func(op load.Op, size, depth int, pattern load.Pattern, wait load.Wait) load.Spec {
		return load.Spec{Op: op, Size: size, Depth: depth, QPs: 1, Pattern: pattern, Wait: wait}
	}
	// with is a contest with the daemon's path, and with what else there is.
	with := func(name string, kind baseline.Kind, spec load.Spec, more ...baseline.Baseline) contest {
		return contest{name: name, spec: spec, kind: kind, baselines: more,
			rivals: []rivalry{{"off", ring, spec}}}
	}
	cs := []contest{
		with("64 B Sends", baseline.Bandwidth, spec(load.Send, quick, rateDepth, load.Stream, load.Poll)),
		with("64 B Write round trip, poll", baseline.RoundTrip, spec(load.Write, quick, 1, load.PingPong,
			load.Poll), kernel),
		with("64 B Read, poll", baseline.RoundTrip, spec(load.Read, quick, 1, load.Stream, load.Poll),
			kernel),
		with("1 MiB Write", baseline.Bandwidth, spec(load.Write, wide, p.depth, load.Stream, load.Poll),
			memcpy),
		with("1 MiB Read", baseline.Bandwidth, spec(load.Read, wide, p.depth, load.Stream, load.Poll),
			memcpy),
	}
	for _, wait := range []load.Wait{load.Poll, load.Event} {
		trip := spec(load.Send, quick, 1, load.PingPong, wait)
		cs = append(cs, with("64 B Send round trip, "+string(wait), baseline.RoundTrip, trip, kernel),
			contest{name: "64 B Send round trip, wait " + string(wait), spec: trip,
				kind: baseline.RoundTrip, beside: kernel})
	}
	return cs, nil
}
