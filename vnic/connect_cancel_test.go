package vnic_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A Connect whose context ends as the connection comes about either has none, or one that is open:
// never one that is over and says so to nobody.
func TestConnectCanceledAtRTS(t *testing.T) {
	for range 100 { // the scheduler decides which of them Connect hears of first
		synctest.Test(t, func(t *testing.T) {
			a, b := vnictest.Pair(t)
			ca := vnictest.Open(t, a, vnic.ContextConfig{})
			cb := vnictest.Open(t, b, vnic.ContextConfig{})
			l, err := cb.Listen(netip.AddrPortFrom(cb.Attr().Addrs[0].Addr(), 0), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			y := vnictest.NewPeer(t, cb, vnictest.PeerConfig{})
			go func() {
				if r, err := l.Next(context.Background()); err == nil {
					_, _ = r.Accept(context.Background(), y.QP, rdma.ConnParam{})
				}
			}()
			pd, err := ca.NewPD()
			if err != nil {
				t.Fatal(err)
			}
			cq, err := ca.NewCQ(vnic.CQOptions{Depth: 8})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			qp, err := pd.NewQP(vnic.QPOptions{
				QPConfig: rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4},
				OnState: func(s rdma.QPState) {
					if s == rdma.QPRTS {
						cancel()
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			conn, err := ca.Connect(ctx, qp, l.Addr(), rdma.ConnParam{})
			if err != nil {
				return
			}
			if s := qp.State(); s != rdma.QPRTS {
				t.Errorf("it is connected, and the QP in %v", s)
			}
			if err := conn.Disconnect(); err != nil {
				t.Errorf("disconnect: %v", err)
			}
			<-conn.Done()
		})
	}
}
