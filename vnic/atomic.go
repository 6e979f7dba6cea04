package vnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// The atomic operations and immediate data of RFC 7306.

// atomicAccess: "also apply the checks of RFC 5040, section 7.2" (ledger A12).
var atomicAccess = accessKind{
	name: "atomic", need: rdma.RemoteAtomic,
	stag: iwarp.TermReadInvalidSTag, assoc: iwarp.TermReadNotAssociated, wrap: iwarp.TermReadTOWrap, access: iwarp.TermReadAccess, outside: iwarp.TermReadBounds,
}

const atomicLen = 8 // octets of a target, and of the old value

var errNoExtensions = errors.New("atomics and immediate data were not agreed on for this connection (ConnParam.Extensions)")

func isAtomic(op rdma.Opcode) bool {
	switch op {
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		return true
	default:
		return false
	}
}

// isRequest says that op is answered: it counts against ORD, and has a place for the answer.
func isRequest(op rdma.Opcode) bool { return op == rdma.OpRead || isAtomic(op) }

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
func (e *sqe) putOld(h *hold, old uint64) error {
	b := e.qp.sq.old[:]
	binary.NativeEndian.PutUint64(b, old)
	err := e.list.copyIn(h, b, 0)
	if err != nil {
		e.status = rdma.WCLocProt
	}
	return err
}

// answerAtomic carries out what a peer of qp asks for.
func (qp *QP) answerAtomic(a *iwarp.Atomic) (old uint64, err error) {
	m, err := qp.remoteMR(&atomicAccess, uint32(a.STag), a.TO, atomicLen)
	if err != nil {
		return 0, err
	}
	if !m.aligned(a.TO) {
		// "The Responder ... MUST NOT modify": RFC 7306, section 5.1.1.
		return 0, &iwarp.LocalError{Cause: iwarp.TermMisaligned, Err: fmt.Errorf("atomic at %#x, which is no multiple of 8", a.TO)}
	}
	old, err = m.modify(a)
	if err != nil {
		return 0, atomicAccess.gone(m, err)
	}
	return old, nil
}

// aligned reports whether address addr of m is a multiple of 8. Where the memory is counts, not how
// the region calls it; of memory that is reached by calls only the name is known.
func (m *MR) aligned(addr uint64) bool {
	if m.mem != nil {
		return addr%atomicLen == 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b))))%atomicLen == -(addr-m.base)%atomicLen
}

// modify carries a out on the 8 octets at a.TO; range and alignment have been checked. Memory that is
// directly addressable changes by an instruction of the processor, atomically to all of this host.
// Memory that is reached by calls cannot: there atomics exclude each other, by a lock of the context
// that the memory belongs to, so that memory which hangs holds nobody else up.
func (m *MR) modify(a *iwarp.Atomic) (old uint64, err error) {
	if !m.pin() {
		return 0, errGone
	}
	defer m.unpin()
	if m.mem != nil {
		x := &m.pd.ctx.atomics
		x.mu.Lock()
		defer x.mu.Unlock()
		b := x.word[:]
		if err := m.readPinned(b, a.TO); err != nil {
			return 0, err
		}
		old = binary.NativeEndian.Uint64(b)
		binary.NativeEndian.PutUint64(b, a.Apply(old))
		return old, m.writePinned(b, a.TO, false)
	}
	p := (*uint64)(unsafe.Pointer(&m.b[a.TO-m.base:][:atomicLen][0]))
	if m.foreign {
		old, err = modifyGuarded(p, a)
		return old, m.blame(err)
	}
	return modifyWord(p, a), nil
}

func modifyWord(p *uint64, a *iwarp.Atomic) (old uint64) {
	for {
		old = atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, a.Apply(old)) {
			return old
		}
	}
}

// modifyGuarded is modifyWord in a mapping that can fault, as MR.guarded.
func modifyGuarded(p *uint64, a *iwarp.Atomic) (old uint64, err error) {
	was := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(was)
		if r := recover(); r != nil {
			if _, ok := r.(interface{ Addr() uintptr }); !ok {
				panic(r) // not a fault, but a mistake of ours
			}
			err = &faultError{cause: r}
		}
	}()
	return modifyWord(p, a), nil
}

// atomic carries e out. The lock of the peer's receive side is held.
func (l *loopEnd) atomic(e *sqe) (own, fault error) {
	a := &l.qp.sq.atomic // a local one would escape
	*a = e.atomic()
	if m, err := l.peer.qp.remoteMR(&atomicAccess, uint32(a.STag), a.TO, atomicLen); err == nil && (m.mem != nil || e.list.far) {
		return errStaged, nil
	}
	old, err := l.peer.qp.answerAtomic(a)
	if err != nil {
		return nil, err
	}
	var h hold
	err = e.putOld(&h, old)
	h.drop()
	return err, nil
}

// Atomic implements iwarp.Host.
func (w *wire) Atomic(a iwarp.Atomic) (old uint64, err error) {
	w.atomic = a
	w.qp.inHold.drop() // it may be this region's
	old, err = w.qp.answerAtomic(&w.atomic)
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
