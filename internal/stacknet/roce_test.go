package stacknet_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
)

// A roceEnd counts the packets that come to a stack, and those whose ICRC is right.
type roceEnd struct {
	came, valid, batches int
	psn                  packet.PSN
	kept                 []interface{ Release() }
	keep                 bool
}

func (e *roceEnd) ReceiveRoCE(p *vnic.RoCEPacket) {
	e.came++
	if p.Valid() {
		e.valid++
	}
	var h packet.Header
	if _, err := h.Parse(p.Datagram); err == nil {
		e.psn = h.PSN
	}
	if e.keep {
		e.kept = append(e.kept, p.Keep())
	}
	p.Defer(e)
}

func (e *roceEnd) Finish() { e.batches++ }

// A roceSource makes n packets of size octets of payload each.
type roceSource struct {
	udp.Template
	data    []byte
	psn     packet.PSN
	n, size int
}

func (s *roceSource) NextPacket(b []byte) ([]byte, bool) {
	if s.n == 0 {
		return nil, false
	}
	h := packet.Header{Opcode: packet.SendOnly, PSN: s.psn}
	s.n, s.psn = s.n-1, s.psn.Add(1)
	return s.Finish(append(h.Append(s.Append(b)), s.data[:s.size]...)), true
}

// rocePair opens RoCE on two stacks of one switch, and finds the way from the first to the second.
func rocePair(tb testing.TB, mtu int, v6 bool) (to *roceEnd, way vnic.RoCERoute, src *roceSource) {
	tb.Helper()
	sw := ethswitch.New(ethswitch.Config{})
	to = &roceEnd{}
	var ports []vnic.RoCEPort
	var addrs []netip.Addr
	for i := range 2 {
		st := netstacktest.NewStack(tb, sw, i+1, mtu)
		n := stacknet.New(st)
		tb.Cleanup(func() { n.Close() })
		var all []netip.Addr
		for _, p := range st.Addrs() {
			all = append(all, p.Addr())
		}
		p, err := n.OpenRoCE(all, to)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { p.Close() })
		ports = append(ports, p)
		if v6 {
			addrs = append(addrs, all[1])
		} else {
			addrs = append(addrs, all[0])
		}
	}
	way, err := ports[0].Route(tb.Context(), addrs[0], addrs[1])
	if err != nil {
		tb.Fatal(err)
	}
	return to, way, &roceSource{data: make([]byte, 65536),
		Template: udp.NewTemplate(udp.Flow{Src: addrs[0], Dst: addrs[1], SrcPort: 0xc001})}
}

// Packets go from stack to stack without an allocation, and can be kept.
func TestRoCEPackets(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		to, way, src := rocePair(t, 9000, v6)
		n := testing.AllocsPerRun(100, func() {
			src.n, src.size = 20, 4096
			if err := way.Send(src); err != nil {
				t.Error(err)
			}
			src.n, src.size = 1, 4
			if err := way.Send(src); err != nil {
				t.Error(err)
			}
		})
		if to.valid != 101*21 || to.came != to.valid || to.batches != 101*2 ||
			n >= 1 && !netstacktest.RaceEnabled {
			t.Errorf("v6=%t: %d packets, %d valid, %d batches, %v allocations in 21", v6, to.came,
				to.valid, to.batches, n)
		}
		to.keep = true
		src.n, src.size = 30, 4096
		if err := way.Send(src); err != nil || len(to.kept) != 30 {
			t.Errorf("%v: %d are kept", err, len(to.kept))
		}
		for _, k := range to.kept {
			k.Release()
		}
	}
}

// Packets from stack to stack, made and checked on the way, 16 in a Send.
func BenchmarkRoCEPackets(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		for _, size := range []int{64, 1024, 4096} {
			if size > mtu {
				continue
			}
			b.Run(fmt.Sprintf("mtu=%d/size=%d", mtu, size), func(b *testing.B) {
				to, way, src := rocePair(b, mtu, false)
				src.size = size
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for n := b.N; n > 0; n -= 16 {
					src.n = min(n, 16)
					if err := way.Send(src); err != nil {
						b.Fatal(err)
					}
				}
				if to.valid != b.N {
					b.Fatalf("%d of %d packets", to.valid, b.N)
				}
			})
		}
	}
}
