package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/internal/netlab"
)

// A contest is one thing that is measured on a path, and what with.
type contest struct {
	name string
	spec load.Spec
	kind baseline.Kind // of the figure that is compared
	// baselines may be none: the figure is one of vrnic's own.
	baselines []baseline.Baseline
	// rivals are baselines that vrnic is itself.
	rivals []rivalry
	// beside, if not nil, has its tail printed beside vrnic's.
	beside baseline.Baseline
}

const (
	wide  = 1 << 20
	quick = 64
	// rateDepth is that of small Sends whose number in a second is looked at.
	rateDepth = 64
)

// contests lists what is compared on path.
func (p comparison) contests(ctx context.Context, path *paths.Path) ([]contest, error) {
	if path.Name == "direct" {
		return p.directContests(path)
	}
	baselines, err := p.baselines(ctx, path)
	if err != nil {
		return nil, err
	}
	spec := func(op load.Op, size, depth int, pattern load.Pattern, wait load.Wait) load.Spec {
		return load.Spec{Op: op, Size: size, Depth: depth, QPs: 1, Pattern: pattern, Wait: wait,
			NoCRC: p.noCRC}
	}
	stream := contest{name: "1 MiB Write", spec: spec(load.Write, wide, p.depth, load.Stream,
		load.Adaptive), kind: baseline.Bandwidth}
	trip := contest{name: "64 B Write round trip", spec: spec(load.Write, quick, 1, load.PingPong,
		load.Adaptive), kind: baseline.RoundTrip}
	send := contest{name: "64 B Send round trip", spec: spec(load.Send, quick, 1, load.PingPong,
		load.Adaptive), kind: baseline.RoundTrip}
	long := contest{name: "1 MiB Send round trip", spec: spec(load.Send, wide, 1, load.PingPong,
		load.Adaptive), kind: baseline.RoundTrip}
	for _, b := range baselines {
		switch {
		case b.Traits().OnlySends:
			send.baselines, long.baselines = append(send.baselines, b), append(long.baselines, b)
			continue
		case b.Does(baseline.Bandwidth):
			stream.baselines = append(stream.baselines, b)
		}
		if b.Does(baseline.RoundTrip) {
			trip.baselines = append(trip.baselines, b)
		}
	}
	cs := []contest{stream, trip}
	for _, c := range []contest{send, long} {
		if len(c.baselines) > 0 {
			cs = append(cs, c)
		}
	}
	if path.Name == "loop" {
		// Nothing is between the two ends there, so that a round trip is not asked for.
		cs[1] = contest{name: "64 B Sends", spec: spec(load.Send, quick, rateDepth, load.Stream,
			load.Adaptive)}
		return cs, nil
	}
	for _, wait := range []load.Wait{load.Poll, load.Event} {
		c := send
		c.name, c.baselines, c.spec.Wait = fmt.Sprintf("64 B Send round trip, wait %s", wait), nil, wait
		c.beside = tailBeside(baselines, wait)
		cs = append(cs, c)
	}
	return cs, nil
}

// tailBeside is whose tail says what the machine does to anybody's: the kernel's TCP, which can
// wait in both ways; where it is not on the path, of those that sleep the first one. It may be nil.
func tailBeside(bs []baseline.Baseline, wait load.Wait) baseline.Baseline {
	for _, b := range bs {
		if b.Traits().Polls {
			return b
		}
	}
	for _, b := range bs {
		if wait == load.Event && b.Does(baseline.RoundTrip) && !b.Traits().OnlySends {
			return b
		}
	}
	return nil
}

var loopback = netip.MustParsePrefix("127.0.0.1/8")

// baselines makes those of path; they end with it.
func (p comparison) baselines(
	ctx context.Context, path *paths.Path,
) (bs []baseline.Baseline, err error) {
	switch path.Name {
	case "loop", "ring", "host":
		if path.Name != "host" {
			dev, err := path.Device()
			if err != nil {
				return nil, err
			}
			bs = append(bs, baseline.NewMemcpy(dev))
		}
		if path.Name == "loop" {
			return bs, nil
		}
		here, kernel, err := p.loopbackTCP(path)
		if err != nil {
			return nil, err
		}
		return append(append(bs, kernel), baseline.Installed(ctx, here, here, loopback.Addr(),
			p.leaveOut)...), nil
	case "pair":
		own, err := p.sameStacks(path)
		if err != nil {
			return nil, err
		}
		best, err := baseline.NewBestStacks(ctx)
		if err != nil {
			return nil, fmt.Errorf("netstack TCP in memory: %w", err)
		}
		path.OnClose(best.Close)
		return []baseline.Baseline{own, best}, nil
	case "wire":
		own, err := p.sameStacks(path)
		if err != nil {
			return nil, err
		}
		bs = append(bs, own)
	case "tap":
		raw, err := p.tapPeers(path)
		if err != nil {
			return nil, fmt.Errorf("netstack TCP: %w", err)
		}
		bs = append(bs, raw)
	}
	more, err := p.overBridges(ctx, path)
	return append(bs, more...), err
}

// loopbackTCP is the kernel's TCP on the loopback of this namespace.
func (p comparison) loopbackTCP(path *paths.Path) (*netlab.NS, baseline.Baseline, error) {
	here, err := netlab.Here()
	if err != nil {
		return nil, nil, err
	}
	path.OnClose(func() { here.Close() })
	kernel, err := p.kernelTCP(path, here, here, baseline.PeerSite{Addr: loopback},
		baseline.PeerSite{Addr: loopback})
	if err != nil {
		return nil, nil, fmt.Errorf("kernel TCP: %w", err)
	}
	return here, kernel, nil
}

// sameStacks is TCP between the stacks of path's devices.
func (p comparison) sameStacks(path *paths.Path) (baseline.Baseline, error) {
	st := path.Stacks()
	own, err := baseline.NewStacks(st[0], st[1], path.AddrB())
	if err != nil {
		return nil, fmt.Errorf("netstack TCP: %w", err)
	}
	path.OnClose(own.Close)
	return own, nil
}

const rawTap = "rtap0"

// Addresses of the baselines: of stacks on TAPs of their own, and of the bridges.
var (
	rawA = netip.MustParsePrefix("10.78.0.1/24")
	rawB = netip.MustParsePrefix("10.78.0.2/24")
	kerA = netip.MustParsePrefix("10.79.0.1/24")
	kerB = netip.MustParsePrefix("10.79.0.2/24")
)

// tapPeers are two processes with a netstack each.
func (p comparison) tapPeers(path *paths.Path) (baseline.Baseline, error) {
	lab := path.Lab()
	site := func(ns *netlab.NS, addr netip.Prefix) baseline.PeerSite {
		return baseline.PeerSite{NetNS: ns.Path(), Addr: addr, Tap: rawTap, MTU: p.opts.MTU,
			Plug: func() error { return lab.Plug(ns, rawTap) }}
	}
	return startPeers(path, "netstack-tcp", site(lab.B, rawB), site(lab.A, rawA))
}

// bridgeSites gives the bridges of path's sites addresses, for the kernels' baselines.
func bridgeSites(path *paths.Path) (client, server baseline.PeerSite, err error) {
	lab := path.Lab()
	if err = lab.A.AddAddr(netlab.Bridge, kerA); err == nil {
		err = lab.B.AddAddr(netlab.Bridge, kerB)
	}
	return baseline.PeerSite{NetNS: lab.A.Path(), Addr: kerA},
		baseline.PeerSite{NetNS: lab.B.Path(), Addr: kerB}, err
}

// overBridges is what the kernels of path's sites do.
func (p comparison) overBridges(
	ctx context.Context, path *paths.Path,
) ([]baseline.Baseline, error) {
	client, server, err := bridgeSites(path)
	if err != nil {
		return nil, err
	}
	lab := path.Lab()
	kernel, err := p.kernelTCP(path, lab.A, lab.B, client, server)
	if err != nil {
		return nil, fmt.Errorf("kernel TCP: %w", err)
	}
	bs := []baseline.Baseline{kernel}
	if path.Name == "tap" {
		bs = append(bs, baseline.Installed(ctx, lab.A, lab.B, kerB.Addr(), p.leaveOut)...)
	}
	return bs, nil
}

// kernelTCP is between two processes if path's ends are, else in this one.
func (p comparison) kernelTCP(path *paths.Path, here, there *netlab.NS, client,
	server baseline.PeerSite) (baseline.Baseline, error) {
	if path.Processes() == 0 {
		k, err := baseline.NewKernel(here, there, server.Addr.Addr())
		if err != nil {
			return nil, err
		}
		path.OnClose(k.Close)
		return k, nil
	}
	return startPeers(path, "kernel-tcp", server, client)
}

// kernelUDP is echoes between the kernels of the sites, and processes of their own.
func (p comparison) kernelUDP(
	path *paths.Path, client, server baseline.PeerSite,
) (baseline.Baseline, error) {
	client.UDP, server.UDP = true, true
	b, err := startPeers(path, "kernel-udp", server, client)
	if err != nil {
		return nil, fmt.Errorf("kernel UDP: %w", err)
	}
	return b, nil
}

// startPeers starts two processes that end with path.
func startPeers(
	path *paths.Path, name string, server, client baseline.PeerSite,
) (baseline.Baseline, error) {
	peers, err := baseline.StartPeers(name, selfCommand(peerName), server, client)
	if err != nil {
		return nil, err
	}
	path.OnClose(peers.Close)
	return peers, nil
}
