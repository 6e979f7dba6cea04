package wqe

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

// A Request is a send request under way. It is the iwarp.Payload of its message.
type Request struct {
	from  *Source // of its octets, for CopyOut: the link's
	state requestState
	// HalfPosted says of a Write with immediate data that the Write has been posted.
	HalfPosted bool
	// Status is how it fails, when known before it is its turn to complete.
	Status rdma.WCStatus
	vendor uint32
	Total  uint32 // octets
	Moved  uint32 // of them, if the link counts
	MSN    uint32 // of a Read or an atomic, if the link numbers them
	// what a request on keys has ended, once it is known; it may not be drained yet
	ended *mem.MR
	List  mem.SGL             // its memory, unless it is inline
	sge   [1]rdma.SGE         // the room of WR, if that is enough
	old   [mem.AtomicLen]byte // scratch: a local one would escape
	WR    rdma.SendWR         // its own copy
}

type requestState uint8

const (
	queued requestState = iota
	failed              // not acceptable: fails when all earlier ones are done
	posted              // under way
	done
)

// Done reports whether e is done with and waits to be completed in its turn; Failed, whether it is
// not acceptable.
func (e *Request) Done() bool   { return e.state == done }
func (e *Request) Failed() bool { return e.state == failed }

// A Source is where a link reads the octets of messages.
type Source struct {
	Hold    mem.Hold
	Failed  bool // a message could not be read
	Refused bool // it was the answer to a peer's Read
}

// ReadBy has CopyOut use s.
func (e *Request) ReadBy(s *Source) { e.from = s }

// CopyOut implements iwarp.Payload.
func (e *Request) CopyOut(p []byte, off uint32) error {
	if e.WR.Flags&rdma.Inline != 0 {
		copy(p, e.WR.Inline[off:])
		return nil
	}
	h := &e.from.Hold
	if off == 0 {
		h.ForgetAhead() // a message is not made of what was there for another
	}
	if err := e.List.CopyOut(h, p, off); err != nil {
		e.Status, e.from.Failed = rdma.WCLocProt, true
		return &iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic, Err: err}
	}
	return nil
}

// PutOld places what the target of an atomic held before, in the octet order of this host.
func (e *Request) PutOld(h *mem.Hold, old uint64) error {
	binary.NativeEndian.PutUint64(e.old[:], old)
	err := e.List.CopyIn(h, e.old[:], 0)
	if err != nil {
		e.Status = rdma.WCLocProt
	}
	return err
}

// Blame notes how e fails, unless that is known.
func (e *Request) Blame(st rdma.WCStatus, vendor uint32) {
	if e.Status == rdma.WCSuccess {
		e.Status, e.vendor = st, vendor
	}
}

// IsAnswered says that op is answered by the peer: it counts against ORD, and has a place for the
// answer.
func IsAnswered(op rdma.Opcode) bool { return op == rdma.OpRead || queue.IsAtomic(op) }

// IsImmediate says that op brings immediate data.
func IsImmediate(op rdma.Opcode) bool { return op == rdma.OpSendImm || op == rdma.OpWriteImm }

// IsSend says that op is a message into a receive and nothing else.
func IsSend(op rdma.Opcode) bool {
	return op == rdma.OpSend || op == rdma.OpSendInv || op == rdma.OpSendImm
}

// Atomic is what e asks for in the words of RFC 7306.
func (e *Request) Atomic() iwarp.Atomic {
	const all = ^uint64(0)
	args := &e.WR.Atomic
	a := iwarp.Atomic{STag: iwarp.STag(e.WR.RKey), TO: e.WR.RemoteAddr}
	switch e.WR.Op {
	case rdma.OpFetchAdd:
		a.Op, a.Data = iwarp.AtomicFetchAdd, args.CompareAdd
	case rdma.OpMaskedFetchAdd:
		a.Op, a.Data, a.Mask = iwarp.AtomicFetchAdd, args.CompareAdd, args.SwapMask
	case rdma.OpCompareSwap:
		a.Op, a.Data, a.Mask = iwarp.AtomicCompareSwap, args.Swap, all
		a.Compare, a.CompareMask = args.CompareAdd, all
	default: // rdma.OpMaskedCompareSwap
		a.Op, a.Data, a.Mask = iwarp.AtomicCompareSwap, args.Swap, args.SwapMask
		a.Compare, a.CompareMask = args.CompareAdd, args.CompareMask
	}
	return a
}

// Immediate is the immediate data of e: RFC 7306's eight octets as a big-endian number.
func (e *Request) Immediate() uint64 { return uint64(e.WR.Imm)<<32 | uint64(e.WR.ImmLow) }
