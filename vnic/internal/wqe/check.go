package wqe

import (
	"fmt"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

var errFlags = fmt.Errorf("flags that this opcode does not take: %w", rdma.ErrInvalid)

const knownFlags = rdma.Fence | rdma.Signaled | rdma.Solicited | rdma.Inline

// Check checks what can be known of wr without looking at keys, and returns its length.
func (r *Requests) Check(wr *rdma.SendWR) (n uint32, err error) {
	flags := rdma.Fence | rdma.Signaled
	switch wr.Op {
	case rdma.OpSend, rdma.OpSendInv, rdma.OpSendImm, rdma.OpWriteImm:
		flags |= rdma.Solicited | rdma.Inline
	case rdma.OpWrite:
		flags |= rdma.Inline
	case rdma.OpRead, rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd,
		rdma.OpMaskedCompareSwap:
	case rdma.OpLocalInv, rdma.OpBindMW, rdma.OpRegMR:
		if len(wr.SGEs) != 0 {
			return 0, fmt.Errorf("%v with SGEs: %w", wr.Op, rdma.ErrInvalid)
		}
	default:
		return 0, fmt.Errorf("a send request with opcode %v: %w", wr.Op, rdma.ErrInvalid)
	}
	switch {
	case wr.Flags&^flags&(knownFlags&^rdma.Solicited) != 0, wr.Flags&^knownFlags != 0:
		return 0, fmt.Errorf("%v with flags %#x: %w", wr.Op, uint8(wr.Flags), errFlags)
	case wr.Flags&rdma.Inline != 0:
		if len(wr.Inline) > r.cfg.MaxInline {
			return 0, fmt.Errorf("%d octets inline, at most %d: %w", len(wr.Inline), r.cfg.MaxInline,
				rdma.ErrInvalid)
		}
		return r.checkLength(wr, uint32(len(wr.Inline)))
	case len(wr.SGEs) > r.cfg.MaxSendSGE:
		return 0, fmt.Errorf("%d SGEs, at most %d: %w", len(wr.SGEs), r.cfg.MaxSendSGE, rdma.ErrInvalid)
	}
	n, ok := mem.Total(wr.SGEs)
	if !ok {
		return 0, fmt.Errorf("a message of more than 2^32-1 octets: %w", rdma.ErrInvalid)
	}
	return r.checkLength(wr, n)
}

// checkLength checks what the opcode says of the length.
func (r *Requests) checkLength(wr *rdma.SendWR, n uint32) (uint32, error) {
	switch op := wr.Op; {
	case queue.IsAtomic(op) && n != mem.AtomicLen:
		return 0, fmt.Errorf("%v into %d octets, the old value has %d: %w", op, n, mem.AtomicLen,
			rdma.ErrInvalid)
	case r.send.roce:
		return n, r.checkType(wr, n)
	case op == rdma.OpSendImm && n != 0:
		// Immediate Data is a message of its own and has no payload (RFC 7306, section 6.3).
		return 0, fmt.Errorf("%v with %d octets, iWARP has none with any: use WRITE_WITH_IMM, or a "+
			"Send: %w", op, n, rdma.ErrInvalid)
	}
	return n, nil
}

// maxMessage is how many octets a message of RoCE may have.
const maxMessage = 1 << 31

// checkType checks what a queue pair's type says, of RoCE.
func (r *Requests) checkType(wr *rdma.SendWR, n uint32) error {
	switch op := wr.Op; {
	case op == rdma.OpMaskedCompareSwap, op == rdma.OpMaskedFetchAdd:
		return fmt.Errorf("%v, which RoCE does not have: %w", op, rdma.ErrInvalid)
	case r.cfg.Type == rdma.UD && op != rdma.OpSend && op != rdma.OpSendImm,
		r.cfg.Type == rdma.UC && (IsAnswered(op) || op == rdma.OpSendInv):
		return fmt.Errorf("%v on a queue pair of type %v: %w", op, r.cfg.Type, rdma.ErrInvalid)
	case queue.IsAtomic(op) && wr.RemoteAddr%mem.AtomicLen != 0:
		return fmt.Errorf("%v at %#x, which is no multiple of %d: %w", op, wr.RemoteAddr, mem.AtomicLen,
			rdma.ErrInvalid)
	case n > maxMessage:
		return fmt.Errorf("a message of more than 2^31 octets: %w", rdma.ErrInvalid)
	}
	return nil
}
