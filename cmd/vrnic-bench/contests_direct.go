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
	spec := load.Spec{Op: load.Send, Size: quick, Depth: rateDepth, QPs: 1, Pattern: load.Stream,
		Wait: load.Poll}
	cs := []contest{{name: "64 B Sends", spec: spec, kind: baseline.Bandwidth,
		rivals: []rivalry{{"off", ring, spec}}}}
	spec.Depth, spec.Pattern = 1, load.PingPong
	for _, wait := range []load.Wait{load.Poll, load.Event} {
		spec.Wait = wait
		name := "64 B Send round trip, " + string(wait)
		cs = append(cs,
			contest{name: name, spec: spec, kind: baseline.RoundTrip,
				baselines: []baseline.Baseline{kernel}, rivals: []rivalry{{"off", ring, spec}}},
			contest{name: "64 B Send round trip, wait " + string(wait), spec: spec,
				kind: baseline.RoundTrip, beside: kernel})
	}
	return cs, nil
}
