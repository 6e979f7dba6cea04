package stacknet_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// contexts gives two devices in memory, with no super-frames between them: what TCP saves by these,
// SCTP does not have.
func contexts(tb testing.TB) (a, b *vnic.Context) {
	tb.Helper()
	sw := []*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
	porttest.Wire(tb, sw[0], sw[1], false, nil)
	var cs []*vnic.Context
	for i := range 2 {
		st := netstacktest.NewStack(tb, sw[i], i+1, 1500)
		net := stacknet.New(st)
		tb.Cleanup(func() { net.Close() })
		d, err := vnic.New(vnic.Config{Name: st.Name(), MAC: st.MAC(), MTU: st.MTU(), Addrs: st.Addrs(),
			Network: net})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { d.Close() })
		cs = append(cs, vnictest.Open(tb, d, vnic.ContextConfig{}))
	}
	return cs[0], cs[1]
}

var transports = map[string]bool{"tcp": false, "sctp": true}

// write writes n times size octets, 16 at a time, on each of the connections in turn.
func write(b *testing.B, n, size int, xs, ys []*vnictest.Peer) {
	const depth = 16
	posted, done := 0, 0
	wcs := make([]rdma.WC, depth)
	for done < n {
		for ; posted < n && posted-done < depth; posted++ {
			i := posted % len(xs)
			xs[i].Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled,
				RemoteAddr: ys[i].MR.Addr(), RKey: ys[i].MR.RKey()}, 0, size)
		}
		k := done % len(xs)
		got, err := xs[k].SendCQ.Poll(wcs[:1])
		if err != nil {
			b.Fatal(err)
		}
		if got == 0 {
			for _, wc := range xs[k].Next(xs[k].SendCQ, 1) {
				if wc.Status != rdma.WCSuccess {
					b.Fatal(wc.Status)
				}
			}
		}
		done++
	}
}

// BenchmarkWrite moves 1 MiB a time.
func BenchmarkWrite(b *testing.B) {
	for name, sctp := range transports {
		b.Run(name, func(b *testing.B) {
			a, c := contexts(b)
			cfg := vnictest.PeerConfig{Buffer: 1 << 20, Param: rdma.ConnParam{SCTP: sctp}}
			x, y := vnictest.NewQPs(b, a, c, cfg, cfg)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				write(b, 1, 1<<20, []*vnictest.Peer{x}, []*vnictest.Peer{y})
			}
		})
	}
}

// BenchmarkStreams is the cost of a message of 4 KiB when that many QPs share one association.
func BenchmarkStreams(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, c := contexts(b)
			cfg := vnictest.PeerConfig{Buffer: 4096, Param: rdma.ConnParam{SCTP: true}}
			l, err := c.Listen(netip.AddrPortFrom(c.Attr().Addrs[0].Addr(), 7), 0)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			var xs, ys []*vnictest.Peer
			at, from := cfg, cfg
			for range n {
				x, y := vnictest.NewPeer(b, a, from), vnictest.NewPeer(b, c, at)
				from.PD, at.PD = x.PD, y.PD
				done := make(chan error, 1)
				go func() {
					r, err := l.Next(b.Context())
					if err == nil {
						y.Conn, err = r.Accept(b.Context(), y.QP, rdma.ConnParam{})
					}
					done <- err
				}()
				if x.Conn, err = a.Connect(b.Context(), x.QP, l.Addr(), cfg.Param); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				xs, ys = append(xs, x), append(ys, y)
			}
			b.ReportAllocs()
			b.ResetTimer()
			write(b, b.N, 4096, xs, ys)
		})
	}
}
