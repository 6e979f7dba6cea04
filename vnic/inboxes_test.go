package vnic_test

import (
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// wantNoneDropped says that p's device has lost no packet for want of room.
func wantNoneDropped(t *testing.T, p *vnictest.Peer) {
	t.Helper()
	if n := p.Ctx.Device().DevInfo().Dropped.Full; n != 0 {
		t.Errorf("%d packets found no room", n)
	}
}

// What a queue pair has asked for, and what its peer may send unasked, find room together.
func TestReadBesideWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{})
		const size = 4 << 20
		cfg := vnictest.PeerConfig{Buffer: 2 * size}
		x, y := vnictest.NewPeer(t, f.a, cfg), vnictest.NewPeer(t, f.b, cfg)
		vnictest.ConnectByNumber(t, x, y, func(a *rdma.QPAttr) { a.PathMTU = rdma.MTU1024 })
		x.QP.Hold(func() {
			y.Write(1, 0, size, x, 0)
			x.Read(1, size, size, y, size)
		})
		y.WantSend("written", is(1, ok))
		x.WantSend("read", is(1, ok))
		wantNoneDropped(t, x)
		wantNoneDropped(t, y)
	})
}

// Short datagrams wait by the thousand for a queue pair that is not run for a moment.
func TestUDHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 4000
		a, b := roceHosts(t)
		cfg := vnictest.PeerConfig{CQDepth: many, QP: rdma.QPConfig{MaxSendWR: many, MaxRecvWR: many}}
		x, y := newDatagrammer(t, a, cfg), newDatagrammer(t, b, cfg)
		h := x.ah("10.0.0.2")
		var all []want
		for i := range uint64(many) {
			y.Recv(i, 0, 64+grhLen)
			all = append(all, is(i, ok))
		}
		y.QP.Hold(func() {
			for i := range uint64(many) {
				x.Post(rdma.SendWR{ID: i, Op: rdma.OpSend,
					To: rdma.Datagram{AH: h.Handle(), QPN: y.QP.Num(), QKey: udQKey}}, 0, 64)
			}
			x.WantSend("all go out", all...)
		})
		y.WantRecv("and arrive", all...)
		wantNoneDropped(t, y.Peer)
	})
}
