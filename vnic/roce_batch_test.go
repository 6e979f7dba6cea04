package vnic_test

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A QP that has taken packets of a batch is not kept while others take theirs: what its program
// asks of it, and of its memory, does not wait for as many packets of others as a peer puts in
// between.
func TestBatchOfSeveral(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rawRoCE) {
		y := vnictest.NewPeer(t, r.x.Ctx, vnictest.PeerConfig{})
		a := r.attrs()
		a.DestQPN = 0x78
		y.ToRTS(a)
		first, second := r.write(), r.write()
		second.Dest, second.Addr, second.RKey = packet.QPN(y.QP.Num()), y.MR.Addr(), y.MR.RKey()
		asked := make(chan error, 1)
		r.comes = func(h *packet.Header) {
			if h.Dest != 0x78 {
				return
			}
			done := make(chan error, 1)
			go func() {
				if _, err := r.x.QP.Query(); err != nil {
					done <- err
					return
				}
				done <- r.x.MR.Close()
			}()
			select {
			case err := <-done:
				asked <- err
			case <-time.After(time.Second):
				t.Error("the first QP is kept while the second answers")
				asked <- nil
			}
		}
		// Two packets of the first, so that it would answer them by one.
		next := first
		next.PSN = next.PSN.Add(1)
		got := r.send(r.make(rawAddr, first, []byte{1}, nil), r.make(rawAddr, next, []byte{2}, nil),
			r.make(rawAddr, second, []byte{3}, nil))
		if err := <-asked; err != nil {
			t.Error(err)
		}
		if len(got) != 2 || got[0].Dest != 0x77 || got[0].PSN != next.PSN || got[1].Dest != 0x78 {
			t.Errorf("answered by %v, want one ACK of each QP", got)
		}
		if r.x.Buf[0] != 2 || y.Buf[0] != 3 {
			t.Errorf("written: %d and %d", r.x.Buf[0], y.Buf[0])
		}
		r.x.WantState("it goes on", rdma.QPRTS)
	})
}
