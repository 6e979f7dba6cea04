package sctppeer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/integration/sctppeer"
	"github.com/vrnic/vrnic/integration/sctppeer/peertest"
	"github.com/vrnic/vrnic/internal/hostnet"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// newDevice makes a device on a stack, or on an address of the host.
func newDevice(t *testing.T, name string, mtu int, addrs []netip.Prefix,
	n vnic.Network) *vnic.Context {
	t.Helper()
	d, err := vnic.New(vnic.Config{Name: name, MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: mtu, Addrs: addrs,
		Network: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return vnictest.Open(t, d, vnic.ContextConfig{})
}

// starter starts programs.
func starter(ns *netlab.NS, args ...string) func(t *testing.T) *sctppeer.Peer {
	return func(t *testing.T) *sctppeer.Peer {
		t.Helper()
		cmd := exec.Command(build(t), args...)
		begin := cmd.Start
		if ns != nil {
			begin = func() error { return ns.Start(cmd) }
		}
		p, err := sctppeer.StartPeer(cmd, begin)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		if _, err := p.Wait(context.Background(), "ready"); err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// freeUDP is a UDP port that nobody has, and that the system gives to nobody who asks for any port;
// not that of others.
func freeUDP(t *testing.T, others ...int) int {
	t.Helper()
	given, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var from, to int
	if _, err := fmt.Sscan(string(given), &from, &to); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		port := 1024 + rand.IntN(1<<16-1024)
		if port >= from && port <= to || slices.Contains(others, port) {
			continue
		}
		if c, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port)); err == nil {
			c.Close()
			return port
		}
	}
	t.Fatalf("no free port outside of %d to %d", from, to)
	return 0
}

// udpRig is SCTP over UDP on the loopback device: in a namespace, where usrsctp can have the usual
// port and so be found by us, if there may be one.
func udpRig(t *testing.T) *peertest.Rig {
	t.Helper()
	build(t)
	ours, theirs := netip.AddrPortFrom(netip.MustParseAddr("127.77.0.10"), sctphost.UDPPort+1),
		sctphost.UDPPort
	ns, err := netlab.NewNS()
	if err == nil {
		t.Cleanup(func() { ns.Close() })
	} else {
		theirs = freeUDP(t)
		ours = netip.AddrPortFrom(ours.Addr(), uint16(freeUDP(t, theirs)))
	}
	var n *hostnet.Network
	over := func() (err error) {
		n, err = hostnet.New(hostnet.Config{Addr: ours.Addr(), SCTP: ours.Port()})
		return err
	}
	do := over
	if ns != nil {
		do = func() error { return ns.Do(over) }
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	t.Cleanup(func() { n.Finish() })
	c := newDevice(t, "vrnic0", n.MTU(), n.Addrs(), n)
	return &peertest.Rig{
		Ctx: c, Ours: ours.Addr(), Theirs: "127.0.0.1", NoDial: ns == nil,
		Start: starter(ns, "udp", fmt.Sprint(theirs), fmt.Sprint(ours.Port())),
	}
}

// tapRig is a device behind a TAP of a namespace in which usrsctp has raw sockets, for IPv4 or
// IPv6.
func tapRig(t *testing.T, ours, theirs string) *peertest.Rig {
	t.Helper()
	build(t)
	ns := proctest.NewNS(t)
	a := netip.MustParsePrefix(ours)
	sw := ethswitch.New(ethswitch.Config{})
	t.Cleanup(func() { sw.Close() })
	st, err := netstack.NewStack(sw, netstack.Config{Name: "vrnic0", Addrs: []netip.Prefix{a}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: "ta", NetNS: ns.Path(), Addrs: []netip.Prefix{
		netip.MustParsePrefix(theirs)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tap.Close() })
	n := stacknet.New(st)
	t.Cleanup(func() { n.Close() })
	c := newDevice(t, st.Name(), st.MTU(), st.Addrs(), n)
	return &peertest.Rig{Ctx: c, Ours: a.Addr(), Theirs: netip.MustParsePrefix(theirs).Addr().String(),
		Start: starter(ns, "raw")}
}

// rigs runs f over all the ways in which usrsctp reaches a device.
func rigs(t *testing.T, f func(*peertest.Rig, *testing.T)) {
	t.Run("UDP", func(t *testing.T) { f(udpRig(t), t) })
	t.Run("TAP IPv4", func(t *testing.T) { f(tapRig(t, "10.77.0.2/24", "10.77.0.1/24"), t) })
	t.Run("TAP IPv6", func(t *testing.T) { f(tapRig(t, "fd77::2/64", "fd77::1/64"), t) })
}

// A peer that speaks RFC 5043 by usrsctp: sessions in both roles. SDDP-001, SDDP-002, SDDP-013,
// SDDP-068, SCTP-176.
func TestUsrsctpDDP(t *testing.T) { rigs(t, (*peertest.Rig).Sessions) }

// It cuts its segments into chunks of 200 octets. SDDP-067.
func TestUsrsctpDDPFragments(t *testing.T) { rigs(t, (*peertest.Rig).Fragments) }

// It writes to memory that is not there.
func TestUsrsctpDDPFault(t *testing.T) { rigs(t, (*peertest.Rig).Fault) }

// It refuses, and is refused.
func TestUsrsctpDDPReject(t *testing.T) { rigs(t, (*peertest.Rig).Reject) }

// It restarts, and comes again from the same port. SCTP-059.
func TestUsrsctpDDPRestart(t *testing.T) {
	r := tapRig(t, "10.77.0.2/24", "10.77.0.1/24")
	var last *sctppeer.Peer
	start := r.Start
	r.Start = func(t *testing.T) *sctppeer.Peer {
		last = start(t)
		return last
	}
	r.Restart(t, func(*testing.T) { last.Stop() })
}

// It has not the indication of DDP. SDDP-004, SDDP-005.
func TestUsrsctpDDPIndication(t *testing.T) { rigs(t, (*peertest.Rig).Indication) }
