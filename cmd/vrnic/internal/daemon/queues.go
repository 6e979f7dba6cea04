package daemon

import (
	"errors"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/vnic"
)

// A sendQueue is a client's send ring as the RNIC sees it. Like the ring, it belongs to whoever
// runs the QP.
type sendQueue struct {
	ring *shm.SendRing
	wqe  shm.SendWQE
}

var _ vnic.SendQueue = (*sendQueue)(nil)

func (q *sendQueue) Next(wr *rdma.SendWR) (bool, error) {
	w := &q.wqe
	if ok, err := q.ring.Next(w); !ok {
		return false, err
	}
	wr.ID = w.WRID
	wr.Op = sendOps[w.Op]
	wr.Flags = sendFlags[w.Flags&(shm.SQSignaled|shm.SQSolicited|shm.SQFence|shm.SQInline)]
	wr.RemoteAddr, wr.RKey = w.RemoteAddr, w.RKey
	wr.Imm, wr.InvKey = 0, 0
	switch wr.Op {
	case rdma.OpWriteImm, rdma.OpSendImm:
		wr.Imm = w.Imm
	case rdma.OpSendInv, rdma.OpLocalInv:
		wr.InvKey = w.Imm
	default: // the word means nothing
	}
	wr.SGEs, wr.Inline = wr.SGEs[:0], wr.Inline[:0]
	if wr.Flags&rdma.Inline != 0 {
		wr.Inline = append(wr.Inline, w.Inline()...)
		return true, nil
	}
	wr.SGEs = appendSGEs(wr.SGEs, w.SGEs())
	return true, nil
}

func (q *sendQueue) Retire(n int) { q.ring.Retire(uint32(n)) }

func appendSGEs(to []rdma.SGE, from []shm.SGE) []rdma.SGE {
	for i := range from {
		to = append(to, rdma.SGE{Addr: from[i].Addr, Length: from[i].Length, LKey: from[i].LKey})
	}
	return to
}

// A recvQueue is a client's receive ring as the RNIC sees it.
type recvQueue struct {
	ring *shm.RecvRing
	wqe  shm.RecvWQE
}

var _ vnic.RecvQueue = (*recvQueue)(nil)

func (q *recvQueue) Next(wr *rdma.RecvWR) (cookie uint32, ok bool, err error) {
	w := &q.wqe
	if ok, err := q.ring.Next(w); !ok {
		return 0, false, err
	}
	wr.ID = w.WRID
	wr.SGEs = appendSGEs(wr.SGEs[:0], w.SGEs())
	return w.Cookie, true, nil
}

// Starve: the ring takes the wish back by itself when it has given a receive.
func (q *recvQueue) Starve(on bool) {
	if on {
		q.ring.Starve()
	}
}

// A cqSink puts the RNIC's completions into a client's ring. The RNIC pushes one at a time.
type cqSink struct {
	ring *shm.CQRing
	cqe  shm.CQE
}

var _ vnic.CQSink = (*cqSink)(nil)

func (s *cqSink) Push(wc *rdma.WC, cookie, sqDone uint32, solicited bool) bool {
	s.cqe = shm.CQE{
		WRID:      wc.ID,
		Status:    wcStatus(wc.Status),
		Opcode:    wcOpcode(wc.Op),
		VendorErr: wc.VendorErr,
		ByteLen:   wc.ByteLen,
		Imm:       wc.Imm,
		QPN:       wc.QPN,
		WCFlags:   wcFlags(wc.Flags),
		SQDone:    sqDone,
		Cookie:    cookie,
		SlabOff:   shm.NoSlab,
		Timestamp: shm.MonotonicNS(),
	}
	err := s.ring.Push(&s.cqe, solicited)
	return err == nil || errors.Is(err, shm.ErrCQClosed) // what comes for a CQ that is gone is lost, not too much
}
