package main

import (
	"context"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

// roceMTU is the MTU of what RoCE is compared on: what is common where RDMA is, with room for its
// largest packets.
const roceMTU = 9000

// roceContests lists what RoCE is compared in on path.
func (p comparison) roceContests(ctx context.Context, path *paths.Path) ([]contest, error) {
	stream := contest{name: "1 MiB RoCE Write", kind: baseline.Bandwidth,
		spec: load.Spec{Op: load.Write, Size: wide, Depth: p.depth, QPs: 1, Pattern: load.Stream,
			Wait: load.Adaptive, RoCE: true}}
	trip := contest{name: "64 B RoCE Write round trip", kind: baseline.RoundTrip,
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
	cs := []contest{stream, trip}
	for i := range cs {
		spec := cs[i].spec
		spec.RoCE = false
		cs[i].rivals = []rivalry{{"iwarp", path, spec}}
	}
	return cs, nil
}
