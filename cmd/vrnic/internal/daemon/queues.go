package daemon

import (
	"errors"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/adversary"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/vnic"
)

// A sendQueue is a client's send ring as the RNIC sees it. Like the ring, it belongs to whoever
// runs the QP.
type sendQueue struct {
	ring *ring.SendConsumer
	slab uint32 // its region's key
	wqe  abi.SendWQE
	// datagrams: each request says where it goes to.
	datagrams bool
}

var _ vnic.SendQueue = (*sendQueue)(nil)

func (q *sendQueue) Next(wr *rdma.SendWR) (bool, error) {
	w := &q.wqe
	if ok, err := q.ring.Next(w); !ok {
		return false, err
	}
	wr.ID = w.WRID
	wr.Op = sendOps[w.Op]
	wr.Flags = sendFlags[w.Flags&(abi.SQSignaled|abi.SQSolicited|abi.SQFence|abi.SQInline)]
	wr.RemoteAddr, wr.RKey = w.RemoteAddr, w.RKey
	wr.SGEs, wr.Inline = wr.SGEs[:0], wr.Inline[:0]
	switch {
	case wr.Flags&rdma.Inline != 0:
		wr.Inline = append(wr.Inline, w.Inline()...)
	case w.Flags&abi.SQSlab == 0:
		wr.SGEs = appendSGEs(wr.SGEs, w.SGEs())
	case !sendsOctets(wr.Op):
		wr.Op = opInvalid
	default:
		wr.SGEs = append(wr.SGEs, rdma.SGE{Addr: uint64(w.SlabOff), Length: w.Length, LKey: q.slab})
	}
	operands(wr, w)
	if q.datagrams {
		wr.To = rdma.Datagram{AH: uint32(w.RemoteAddr), QPN: w.RKey, QKey: uint32(w.Swap)}
	}
	return true, nil
}

// operands fills what only some operations have: see the send WQE in package abi.
func operands(wr *rdma.SendWR, w *abi.SendWQE) {
	wr.Imm, wr.ImmLow, wr.InvKey = 0, 0, 0
	wr.Atomic, wr.Range = rdma.AtomicArgs{}, rdma.MemRange{}
	switch wr.Op {
	case rdma.OpWriteImm, rdma.OpSendImm:
		wr.Imm, wr.ImmLow = abi.ImmWord(w.Imm), abi.ImmWord(w.ImmLow())
	case rdma.OpSendInv, rdma.OpLocalInv:
		wr.InvKey = w.Imm
	case rdma.OpCompareSwap, rdma.OpFetchAdd, rdma.OpMaskedCompareSwap, rdma.OpMaskedFetchAdd:
		wr.Atomic = rdma.AtomicArgs{CompareAdd: w.CmpAdd, Swap: w.Swap, CompareMask: w.CmpMask,
			SwapMask: w.SwapMask}
	case rdma.OpBindMW, rdma.OpRegMR:
		if w.NumSGE != 1 || w.Length != 0 || wr.Flags&rdma.Inline != 0 {
			wr.Op = opInvalid // completes with an error
			return
		}
		rights, ok := access(uint32(w.Swap))
		if !ok || w.Swap>>32 != 0 {
			rights = ^rdma.Access(0) // for the RNIC to refuse
		}
		wr.RemoteAddr = w.SGE[0].Addr
		wr.Range = rdma.MemRange{Addr: w.RemoteAddr, Length: w.CmpAdd, LKey: w.SGE[0].LKey,
			Access: rights}
		wr.SGEs = wr.SGEs[:0]
	default: // none
	}
}

func (q *sendQueue) Retire(n int) { q.ring.Retire(uint32(n)) }

func appendSGEs(to []rdma.SGE, from []abi.SGE) []rdma.SGE {
	for i := range from {
		to = append(to, rdma.SGE{Addr: from[i].Addr, Length: from[i].Length, LKey: from[i].LKey})
	}
	return to
}

// A recvQueue is a client's receive ring as the RNIC sees it.
type recvQueue struct {
	ring *ring.RecvConsumer
	slab *recvSlab // or nil
	wqe  abi.RecvWQE
}

var _ vnic.RecvQueue = (*recvQueue)(nil)

func (q *recvQueue) Next(wr *rdma.RecvWR) (cookie uint32, ok bool, err error) {
	w := &q.wqe
	if ok, err := q.ring.Next(w); !ok {
		return 0, false, err
	}
	wr.ID = w.WRID
	wr.SGEs = appendSGEs(wr.SGEs[:0], w.SGEs())
	if q.slab != nil {
		if err := q.slab.place(wr, w.Cookie); err != nil {
			return 0, false, err
		}
	}
	return w.Cookie, true, nil
}

// Starve: the ring takes the wish back by itself when it has given a receive.
func (q *recvQueue) Starve(on bool) {
	if on {
		q.ring.Starve()
	}
}

// Pending: as the client says, and at most the size of the queue.
func (q *recvQueue) Pending() int { return int(q.ring.Pending()) }

// A sharedQueue is the ring of a client's SRQ as the RNIC sees it. The SRQ's lock guards it.
type sharedQueue struct {
	recvQueue
}

var _ vnic.SharedQueue = (*sharedQueue)(nil)

// Starve: the wish stays until it is taken back, since several QPs may have it.
func (q *sharedQueue) Starve(on bool) {
	if on {
		q.ring.Starve()
	} else {
		q.ring.Sate()
	}
}

// A cqSink puts the RNIC's completions into a client's ring. The RNIC pushes one at a time.
type cqSink struct {
	ring  *ring.CQProducer
	slabs recvSlabs
	cqe   abi.CQE
}

var _ vnic.CountingSink = (*cqSink)(nil)

func (s *cqSink) Push(wc *rdma.WC, cookie, sqDone uint32, solicited bool) bool {
	s.fill(wc, cookie, sqDone)
	err := s.ring.Push(&s.cqe, solicited)
	// what comes for a CQ that is gone is lost, not too much
	return err == nil || errors.Is(err, ring.ErrCQClosed)
}

// fill makes a CQE of a completion.
func (s *cqSink) fill(wc *rdma.WC, cookie, sqDone uint32) {
	s.cqe = abi.CQE{
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
		SlabOff:   abi.NoSlab,
		Timestamp: osmem.MonotonicNS(),
	}
	if wc.Flags&rdma.WCWithImm != 0 {
		s.cqe.Imm, s.cqe.SrcQP = abi.ImmWord(wc.Imm), abi.ImmWord(wc.ImmLow)
	}
	if wc.Flags&rdma.WCGRH != 0 {
		s.cqe.SrcQP = wc.SrcQP
	}
	if slab := s.slabs.of(wc.QPN); slab != nil {
		slab.complete(&s.cqe, wc)
	}
}

func (s *cqSink) Unpolled() int { return int(s.ring.Pending()) }

// A lateSink is the cqSink of a device that has an adversary.
type lateSink struct {
	*cqSink
	late *adversary.Completions
}

var _ vnic.CountingSink = (*lateSink)(nil)

// Push: what is held has room, which only this end takes, so that it cannot be too much later.
func (s *lateSink) Push(wc *rdma.WC, cookie, sqDone uint32, solicited bool) bool {
	s.fill(wc, cookie, sqDone)
	cqe := s.cqe
	return s.late.Push(wc.QPN, s.ring.Size()-s.Unpolled() > 1, func() bool {
		err := s.ring.Put(&cqe)
		s.late.Event(func() { s.ring.Notify(solicited || cqe.Status != 0) })
		return err == nil || errors.Is(err, ring.ErrCQClosed)
	})
}

func (s *lateSink) Unpolled() int { return s.cqSink.Unpolled() + s.late.Held() }

// flush has nothing held of a queue or queue pair that changes or ends.
func (h *cqHandler) flush() {
	if h.late != nil {
		h.late.Flush()
	}
}
