package vnic_test

import (
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic"
)

// What has been acknowledged completes before what the peer sends behind that, also where both
// come in one batch: perftest's programs with events count on it. ROCE-054, ROCE-057.
func TestAcknowledgedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRawRoCE(t)
		cq, err := r.x.Ctx.NewCQ(vnic.CQOptions{Depth: 16})
		if err != nil {
			t.Fatal(err)
		}
		pd, mem := r.x.PD, r.x.MR
		r.x.QP, err = pd.NewQP(vnic.QPOptions{QPConfig: rdma.QPConfig{SendCQ: cq, RecvCQ: cq,
			MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			t.Fatal(err)
		}
		r.x.ToRTS(r.attrs())
		sge := []rdma.SGE{{Addr: mem.Addr(), Length: 8, LKey: mem.LKey()}}
		if err := r.x.QP.PostRecv(&rdma.RecvWR{ID: 2, SGEs: sge}); err != nil {
			t.Fatal(err)
		}
		if err := r.x.QP.PostSend(&rdma.SendWR{ID: 1, Op: rdma.OpSend, SGEs: sge,
			Flags: rdma.Signaled}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h := packet.Header{Opcode: packet.Acknowledge, PKey: packet.DefaultPKey,
			Syndrome: packet.Unlimited, Dest: packet.QPN(r.x.QP.Num()), PSN: 0x2000}
		ack := r.make(rawAddr, h, nil, nil)
		h = packet.Header{Opcode: packet.SendOnly, PKey: packet.DefaultPKey, AckReq: true,
			Dest: packet.QPN(r.x.QP.Num()), PSN: r.psn}
		r.send(ack, r.make(rawAddr, h, []byte("answered"), nil))
		var wcs [4]rdma.WC
		n, err := cq.Poll(wcs[:])
		if err != nil || n != 2 || wcs[0].ID != 1 || wcs[1].ID != 2 {
			t.Errorf("%d completions, %v: %+v", n, err, wcs[:n])
		}
	})
}
