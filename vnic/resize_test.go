package vnic_test

import (
	"errors"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A CQ that is resized keeps its completions, at any place of its ring, and refuses to be shorter
// than they are.
func TestResizeCQ(t *testing.T) {
	p := vnictest.NewPeer(t, vnictest.Open(t, vnictest.NewNet().Device(t, "a",
		[]string{"10.0.0.1/24"}), vnic.ContextConfig{}), vnictest.PeerConfig{
		QP: rdma.QPConfig{MaxRecvWR: 64}})
	if err := p.QP.Abort(); err != nil {
		t.Fatal(err)
	}
	posted, polled := uint64(0), uint64(0)
	poll := func(n int) {
		t.Helper()
		wcs := make([]rdma.WC, n)
		got, err := p.RecvCQ.Poll(wcs)
		if err != nil || got != n {
			t.Fatalf("%d completions, %v: want %d", got, err, n)
		}
		for _, wc := range wcs {
			if wc.ID != polled || wc.Status != rdma.WCFlush {
				t.Fatalf("%+v: want the flush of %d", wc, polled)
			}
			polled++
		}
	}
	if err := p.RecvCQ.Resize(8); err != nil {
		t.Fatal(err)
	}
	for _, depth := range []int{16, 8, 64, 7, 8, 9} {
		for range 7 { // they flush at once
			if err := p.QP.PostRecv(&rdma.RecvWR{ID: posted}); err != nil {
				t.Fatal(err)
			}
			posted++
		}
		poll(2)
		if err := p.RecvCQ.Resize(4); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("5 completions in a CQ for 4: %v", err)
		}
		if err := p.RecvCQ.Resize(depth); err != nil || p.RecvCQ.Depth() < depth {
			t.Errorf("a depth of %d, %v: want %d", p.RecvCQ.Depth(), err, depth)
		}
		poll(5)
	}
	for _, depth := range []int{0, -1, 1 << 30} {
		if err := p.RecvCQ.Resize(depth); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("a depth of %d: %v", depth, err)
		}
	}
}
