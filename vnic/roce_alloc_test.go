//go:build !race

package vnic_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A shortNet hands each packet up where it was made, in one buffer for all, and allocates nothing.
type shortNet struct {
	vnic.Network
	ports map[netip.Addr]vnic.RoCEReceiver
	buf   [9000]byte
	in    vnic.RoCEPacket
}

func (n *shortNet) OpenRoCE(addrs []netip.Addr, r vnic.RoCEReceiver) (vnic.RoCEPort, error) {
	for _, a := range addrs {
		n.ports[a] = r
	}
	return shortPort{n}, nil
}

type shortPort struct{ n *shortNet }

func (p shortPort) MTU() int               { return len(p.n.buf) }
func (p shortPort) Join(netip.Addr) error  { return nil }
func (p shortPort) Leave(netip.Addr) error { return nil }
func (p shortPort) Close() error           { return nil }
func (p shortPort) Route(_ context.Context, _, to netip.Addr) (vnic.RoCERoute, error) {
	return &shortRoute{p, p.n.ports[to]}, nil
}

type shortRoute struct {
	shortPort
	to vnic.RoCEReceiver
}

func (r *shortRoute) NextHop() [6]byte { return [6]byte{} }
func (r *shortRoute) Send(src vnic.RoCESource) (err error) {
	for {
		ip, ok := src.NextPacket(r.n.buf[:0])
		if !ok {
			return nil
		}
		if r.n.in.Packet, err = udp.Parse(ip); err != nil {
			return err
		}
		r.to.ReceiveRoCE(&r.n.in)
	}
}

// udPair are two UD queue pairs on a shortNet, whose devices are those of beside, and an address
// handle from one to the other.
func udPair(t testing.TB, beside *vnic.Beside) (x, y *vnictest.Peer, to rdma.Datagram) {
	t.Helper()
	n := &shortNet{ports: map[netip.Addr]vnic.RoCEReceiver{}}
	var peers []*vnictest.Peer
	for _, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		d := vnictest.NewNet().Device(t, "rocep0", []string{addr}, func(c *vnic.Config) {
			c.RoCE, c.Network, c.MTU, c.Beside = true, n, 9000, beside
		})
		c := vnictest.Open(t, d, vnic.ContextConfig{})
		p := vnictest.NewPeer(t, c, vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.UD}})
		toRTS(t, p)
		peers = append(peers, p)
	}
	x, y = peers[0], peers[1]
	h, err := x.PD.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr("10.0.0.2")),
		GIDIndex: 1, Port: 1, Global: true})
	if err != nil {
		t.Fatal(err)
	}
	return x, y, rdma.Datagram{AH: h.Handle(), QPN: y.QP.Num(), QKey: udQKey}
}

// datagram is a function that sends n octets from x to y.
func datagram(t testing.TB, x, y *vnictest.Peer, to rdma.Datagram, n int) func() {
	send := rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, To: to, SGEs: []rdma.SGE{x.SGE(0, n)}}
	recv := rdma.RecvWR{SGEs: []rdma.SGE{y.SGE(0, n+grhLen)}}
	wc := make([]rdma.WC, 1)
	return func() {
		if err := y.QP.PostRecv(&recv); err != nil {
			t.Fatal(err)
		}
		if err := x.QP.PostSend(&send); err != nil {
			t.Fatal(err)
		}
		for _, cq := range []*vnic.CQ{x.SendCQ, y.RecvCQ} {
			if n, err := cq.Poll(wc); n != 1 || wc[0].Status != ok {
				t.Fatalf("%d completions, %v, %v", n, wc[0].Status, err)
			}
		}
	}
}

// A datagram allocates nothing at either end.
func TestUDAllocs(t *testing.T) {
	for _, n := range []int{64, 4096} {
		for _, beside := range []*vnic.Beside{nil, new(vnic.Beside)} {
			x, y, to := udPair(t, beside)
			f := datagram(t, x, y, to, n)
			for range 100 {
				f()
			}
			wantNone(t, 1000, f)
		}
	}
}

// Nor does a message of a connection, whatever it is.
func TestRCAllocs(t *testing.T) {
	for op, sizes := range steadySizes {
		for _, size := range sizes {
			for _, beside := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/%d/beside=%t", op, size, beside), func(t *testing.T) {
					allBeside = beside
					f := newFabric(t, vnictest.RoCELink{})
					allBeside = false
					f.Plain = true
					x, y := f.pair(rdma.RC, nil)
					message := steady(t, x, y, op, size)
					for range 100 {
						message()
					}
					wantNone(t, 1000, message)
				})
			}
		}
	}
}

// BenchmarkUD is what a datagram costs both ends, and nothing between them; BenchmarkUDLoop what
// one costs that needs no packet.
func BenchmarkUD(b *testing.B)     { benchmarkUD(b, nil) }
func BenchmarkUDLoop(b *testing.B) { benchmarkUD(b, new(vnic.Beside)) }

func benchmarkUD(b *testing.B, beside *vnic.Beside) {
	for name, n := range map[string]int{"64": 64, "4096": 4096} {
		b.Run(name, func(b *testing.B) {
			x, y, to := udPair(b, beside)
			f := datagram(b, x, y, to, n)
			f()
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}
