package vnic

import (
	"encoding/binary"
	"errors"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

// The atomic operations and immediate data of RFC 7306.

var errNoExtensions = errors.New("atomics and immediate data were not agreed on for this connection (ConnParam.Extensions)")

// isRequest says that op is answered: it counts against ORD, and has a place for the answer.
func isRequest(op rdma.Opcode) bool { return op == rdma.OpRead || queue.IsAtomic(op) }

func isImmediate(op rdma.Opcode) bool { return op == rdma.OpSendImm || op == rdma.OpWriteImm }

// atomic is what e asks for in the words of RFC 7306.
func (e *sqe) atomic() iwarp.Atomic {
	const all = ^uint64(0)
	args := &e.wr.Atomic
	a := iwarp.Atomic{STag: iwarp.STag(e.wr.RKey), TO: e.wr.RemoteAddr}
	switch e.wr.Op {
	case rdma.OpFetchAdd:
		a.Op, a.Data = iwarp.AtomicFetchAdd, args.CompareAdd
	case rdma.OpMaskedFetchAdd:
		a.Op, a.Data, a.Mask = iwarp.AtomicFetchAdd, args.CompareAdd, args.SwapMask
	case rdma.OpCompareSwap:
		a.Op, a.Data, a.Mask, a.Compare, a.CompareMask = iwarp.AtomicCompareSwap, args.Swap, all, args.CompareAdd, all
	default: // rdma.OpMaskedCompareSwap
		a.Op, a.Data, a.Mask, a.Compare, a.CompareMask = iwarp.AtomicCompareSwap, args.Swap, args.SwapMask, args.CompareAdd, args.CompareMask
	}
	return a
}

// immediate is the immediate data of e: RFC 7306's eight octets as a big-endian number.
func (e *sqe) immediate() uint64 { return uint64(e.wr.Imm)<<32 | uint64(e.wr.ImmLow) }

// putOld places what the target of e held before, in the octet order of this host.
func (e *sqe) putOld(h *mem.Hold, old uint64) error {
	b := e.qp.sq.old[:]
	binary.NativeEndian.PutUint64(b, old)
	err := e.list.CopyIn(h, b, 0)
	if err != nil {
		e.status = rdma.WCLocProt
	}
	return err
}

// atomic carries e out. The lock of the peer's receive side is held.
func (l *loopEnd) atomic(e *sqe) (own, fault error) {
	a := &l.qp.sq.atomic // a local one would escape
	*a = e.atomic()
	if m, err := l.peer.qp.mem.Find(mem.PeerAtomic, uint32(a.STag), a.TO, mem.AtomicLen); err == nil && (m.Blocking() || e.list.Blocking()) {
		return mem.ErrBlocking, nil
	}
	old, err := l.peer.qp.mem.Atomic(a)
	if err != nil {
		return nil, err
	}
	var h mem.Hold
	err = e.putOld(&h, old)
	h.Drop()
	return err, nil
}

// Atomic implements iwarp.Host.
func (w *wire) Atomic(a iwarp.Atomic) (old uint64, err error) {
	w.atomic = a
	w.qp.inHold.Drop() // it may be this region's
	old, err = w.qp.mem.Atomic(&w.atomic)
	if err != nil {
		w.refused = true
		return 0, err
	}
	w.qp.stats.inbound(rdma.OpFetchAdd, 0)
	return old, nil
}

// EndAtomic implements iwarp.Host.
func (w *wire) EndAtomic(token, old uint64) error {
	if err := w.collects(farAnswer); err != nil {
		return err
	}
	e := w.qp.sq.at(uint32(token))
	if err := e.putOld(&w.qp.inHold, old); err != nil {
		return w.sinkFailed(e, err)
	}
	if err := w.settle(); err != nil {
		return err
	}
	w.qp.sendDone(e)
	return nil
}
