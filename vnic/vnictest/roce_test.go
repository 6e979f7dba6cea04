package vnictest_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	group = netip.MustParseAddr("224.1.2.3")
)

// A sink keeps the PSNs that have come, and how often Finish was called.
type sink struct {
	psns     []packet.PSN
	finished int
	t        *testing.T
}

func (s *sink) ReceiveRoCE(p *vnic.RoCEPacket) {
	var h packet.Header
	if _, err := h.Parse(p.Datagram); err != nil || !p.Valid() {
		s.t.Errorf("% x: %v", p.Datagram, err)
	}
	s.psns = append(s.psns, h.PSN)
	p.Defer(s)
	k := p.Keep()
	k.Release()
}

func (s *sink) Finish() { s.finished++ }

// A source makes n packets with PSNs from next on.
type source struct {
	t       udp.Template
	next, n packet.PSN
	pad     int
}

func (s *source) NextPacket(b []byte) ([]byte, bool) {
	if s.n == 0 {
		return nil, false
	}
	h := packet.Header{Opcode: packet.SendOnly, PSN: s.next}
	s.next, s.n = s.next+1, s.n-1
	return s.t.Finish(append(h.Append(s.t.Append(b)), make([]byte, s.pad)...)), true
}

// pair opens a Port at either end of n, and a way from the first to what is asked for.
func pair(t *testing.T, n *vnictest.Net, to netip.Addr) (a, b *sink, r vnic.RoCERoute, src *source,
	ports [2]vnic.RoCEPort) {
	t.Helper()
	a, b = &sink{t: t}, &sink{t: t}
	for i, end := range []struct {
		addr netip.Addr
		s    *sink
	}{{addrA, a}, {addrB, b}} {
		p, err := n.Host(end.addr).OpenRoCE([]netip.Addr{end.addr}, end.s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		ports[i] = p
	}
	r, err := ports[0].Route(t.Context(), addrA, to)
	if err != nil {
		t.Fatal(err)
	}
	return a, b, r, &source{t: udp.NewTemplate(udp.Flow{Src: addrA, Dst: to, SrcPort: 0xc000})}, ports
}

// Packets of one Send come at once, in order, as one batch.
func TestRoCEDirect(t *testing.T) {
	_, b, r, src, ports := pair(t, vnictest.NewNet(), addrB)
	src.n = 5
	if err := r.Send(src); err != nil || !slices.Equal(b.psns, []packet.PSN{0, 1, 2, 3, 4}) ||
		b.finished != 1 {
		t.Errorf("%v; PSNs %v have come, %d batches", err, b.psns, b.finished)
	}
	src.n, src.pad = 1, 9000
	if err := r.Send(src); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("a packet above the MTU: %v", err)
	}
	ports[0].Close()
	if err := r.Send(src); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Packets to a group come to all who have joined it, the sender too.
func TestRoCEGroup(t *testing.T) {
	a, b, r, src, ports := pair(t, vnictest.NewNet(), group)
	for i, want := range [][2]int{{0, 0}, {1, 0}, {2, 1}, {2, 2}} {
		switch i {
		case 1:
			ports[0].Join(group)
		case 2:
			ports[1].Join(group)
		case 3:
			ports[0].Leave(group)
		}
		if src.n = 1; r.Send(src) != nil || len(a.psns) != want[0] || len(b.psns) != want[1] {
			t.Errorf("%d: %d and %d packets have come, want %v", i, len(a.psns), len(b.psns), want)
		}
	}
	if err := ports[0].Leave(group); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("leaving a second time: %v", err)
	}
	if err := ports[0].Join(addrB); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("joining an address: %v", err)
	}
}

// A bad network loses, repeats and reorders, the same way with the same seed.
func TestRoCEBad(t *testing.T) {
	run := func() (got []packet.PSN) {
		synctest.Test(t, func(t *testing.T) {
			n := vnictest.NewNet()
			n.RoCE = vnictest.RoCELink{Delay: time.Millisecond, Loss: 0.1, Duplicate: 0.1, Reorder: 0.1,
				Seed: 7}
			_, b, r, src, _ := pair(t, n, addrB)
			src.n = 200
			if err := r.Send(src); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second) // fake: all packets are there
			synctest.Wait()
			got = b.psns
		})
		return got
	}
	first := run()
	if again := run(); !slices.Equal(first, again) {
		t.Errorf("the same seed:\n%v\n%v", first, again)
	}
	sorted := slices.Clone(first)
	slices.Sort(sorted)
	unique := slices.Compact(slices.Clone(sorted))
	if slices.Equal(first, sorted) || len(unique) == len(sorted) || len(unique) > 195 ||
		len(unique) < 150 {
		t.Errorf("%d packets of 200, %d different ones, in order: %t", len(first), len(unique),
			slices.Equal(first, sorted))
	}
}

// What cannot be opened or reached is refused with the errno that says why.
func TestRoCERefused(t *testing.T) {
	n := vnictest.NewNet()
	_, _, _, _, ports := pair(t, n, addrB)
	far := netip.MustParseAddr("10.9.9.9")
	if _, err := n.Host(addrA).OpenRoCE([]netip.Addr{addrA}, &sink{}); !errors.Is(err,
		syscall.EADDRINUSE) {
		t.Errorf("a second Port: %v", err)
	}
	if _, err := n.Host(addrA).OpenRoCE([]netip.Addr{far}, &sink{}); !errors.Is(err,
		syscall.EADDRNOTAVAIL) {
		t.Errorf("a Port of another's address: %v", err)
	}
	for _, c := range []struct {
		local, remote netip.Addr
		err           error
	}{{addrA, far, syscall.EHOSTUNREACH}, {addrB, addrA, syscall.EADDRNOTAVAIL},
		{addrA, netip.MustParseAddr("fd00::2"), syscall.EAFNOSUPPORT}} {
		if _, err := ports[0].Route(t.Context(), c.local, c.remote); !errors.Is(err, c.err) {
			t.Errorf("from %v to %v: %v, want %v", c.local, c.remote, err, c.err)
		}
	}
}
