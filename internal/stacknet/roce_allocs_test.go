//go:build !race

package stacknet_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// roceContexts gives two devices of RoCE on stacks of one switch.
func roceContexts(tb testing.TB, mtu int) (a, b *vnic.Context) {
	tb.Helper()
	sw := ethswitch.New(ethswitch.Config{})
	var cs []*vnic.Context
	for i := range 2 {
		st := netstacktest.NewStack(tb, sw, i+1, mtu)
		net := stacknet.New(st)
		tb.Cleanup(func() { net.Close() })
		d, err := vnic.New(vnic.Config{Name: st.Name(), MAC: st.MAC(), MTU: st.MTU(), Addrs: st.Addrs(),
			Network: net, RoCE: true})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { d.Close() })
		cs = append(cs, vnictest.Open(tb, d, vnic.ContextConfig{}))
	}
	return cs[0], cs[1]
}

// A message of RoCE allocates nothing on its way from stack to stack and back.
func TestRoCEAllocs(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties the pools
	for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead} {
		for _, size := range []int{64, 60000} {
			t.Run(fmt.Sprintf("%v/%d", op, size), func(t *testing.T) {
				a, b := roceContexts(t, 9000)
				cfg := vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.RC}, Buffer: size}
				x, y := vnictest.NewPeer(t, a, cfg), vnictest.NewPeer(t, b, cfg)
				vnictest.ConnectByNumber(t, x, y, nil)
				send := rdma.SendWR{Op: op, Flags: rdma.Signaled, RemoteAddr: y.MR.Addr(),
					RKey: y.MR.RKey(), SGEs: []rdma.SGE{x.SGE(0, size)}}
				recv := rdma.RecvWR{SGEs: []rdma.SGE{y.SGE(0, size)}}
				wc := make([]rdma.WC, 1)
				take := func(cq *vnic.CQ) {
					n, err := cq.Poll(wc)
					for ; n == 0 && err == nil; n, err = cq.Poll(wc) {
						runtime.Gosched()
					}
					if err != nil || wc[0].Status != rdma.WCSuccess {
						t.Fatal(wc[0].Status, err)
					}
				}
				message := func() {
					if op == rdma.OpSend {
						if err := y.QP.PostRecv(&recv); err != nil {
							t.Fatal(err)
						}
					}
					if err := x.QP.PostSend(&send); err != nil {
						t.Fatal(err)
					}
					take(x.SendCQ)
					if op == rdma.OpSend {
						take(y.RecvCQ)
					}
				}
				for range 100 {
					message()
				}
				// The runtime may allocate meanwhile, but not in each run.
				var counts []uint64
				for range 20 {
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					for range 500 {
						message()
					}
					runtime.ReadMemStats(&after)
					if after.Mallocs == before.Mallocs {
						return
					}
					counts = append(counts, after.Mallocs-before.Mallocs)
				}
				t.Errorf("500 messages allocate %d times, run by run", counts)
			})
		}
	}
}
