package queue

import "github.com/vrnic/vrnic/rdma"

// sendSlots are the slots of a send queue in this process: small, and without pointers, with what
// few requests have beside them. The first is in the QP itself: of many QPs with a message now and
// then each uses that alone.
type sendSlots struct {
	mask uint32
	// Of a UD queue pair: remoteAddr and rkey of a slot hold SendWR.To.
	datagrams bool

	first  sendSlot
	sges   int          // room of each for SGEs but the first
	inline int          // and for octets
	rest   []sendSlot   // all but the first
	more   []rdma.SGE   // of each slot, one after the other
	octets []byte       // likewise
	rare   []rareFields // nil until there was one that has any
}

type sendSlot struct {
	id         uint64
	op         rdma.Opcode
	flags      rdma.SendFlags
	n          uint32 // how many SGEs, or octets inline
	remoteAddr uint64
	rkey       uint32
	invKey     uint32
	imm        uint32
	immLow     uint32
	sge        rdma.SGE
}

type rareFields struct {
	atomic rdma.AtomicArgs
	region rdma.MemRange
}

// rarely says whether op has rareFields.
func rarely(op rdma.Opcode) bool {
	return op >= rdma.OpLocalInv || IsAtomic(op)
}

// IsAtomic reports whether op is an atomic operation.
func IsAtomic(op rdma.Opcode) bool {
	switch op {
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		return true
	default:
		return false
	}
}

func (q *sendSlots) init(cfg *rdma.QPConfig) {
	n := Slots(cfg.MaxSendWR)
	q.mask, q.sges, q.inline = uint32(n-1), cfg.MaxSendSGE-1, cfg.MaxInline
	q.datagrams = cfg.Type == rdma.UD
	q.rest = make([]sendSlot, n-1)
	q.more = make([]rdma.SGE, n*q.sges)
	q.octets = make([]byte, n*q.inline)
}

func (q *sendSlots) at(i uint32) *sendSlot {
	if i == 0 {
		return &q.first
	}
	return &q.rest[i-1]
}

// put copies wr into slot i. Its lengths have been checked.
func (q *sendSlots) put(i uint32, wr *rdma.SendWR) {
	i &= q.mask
	s := q.at(i)
	s.id, s.op, s.flags = wr.ID, wr.Op, wr.Flags
	s.remoteAddr, s.rkey, s.invKey, s.imm, s.immLow = wr.RemoteAddr, wr.RKey, wr.InvKey, wr.Imm,
		wr.ImmLow
	if q.datagrams {
		s.remoteAddr, s.rkey = uint64(wr.To.AH)<<32|uint64(wr.To.QPN), wr.To.QKey
	}
	if wr.Flags&rdma.Inline != 0 {
		s.n = uint32(copy(q.octets[int(i)*q.inline:][:q.inline], wr.Inline))
	} else if s.n = uint32(len(wr.SGEs)); s.n > 0 {
		if s.sge = wr.SGEs[0]; s.n > 1 {
			copy(q.more[int(i)*q.sges:][:q.sges], wr.SGEs[1:])
		}
	}
	if rarely(wr.Op) {
		if q.rare == nil {
			q.rare = make([]rareFields, q.mask+1) // who takes looks only behind what was put here
		}
		q.rare[i] = rareFields{wr.Atomic, wr.Range}
	}
}

// get copies slot i to wr, whose slices are used again. What its opcode does not have stays as it
// was.
func (q *sendSlots) get(i uint32, wr *rdma.SendWR) {
	i &= q.mask
	s := q.at(i)
	wr.ID, wr.Op, wr.Flags = s.id, s.op, s.flags
	wr.RemoteAddr, wr.RKey, wr.InvKey, wr.Imm, wr.ImmLow = s.remoteAddr, s.rkey, s.invKey,
		s.imm, s.immLow
	if q.datagrams {
		wr.To = rdma.Datagram{AH: uint32(s.remoteAddr >> 32), QPN: uint32(s.remoteAddr), QKey: s.rkey}
	}
	wr.SGEs, wr.Inline = wr.SGEs[:0], wr.Inline[:0]
	if s.flags&rdma.Inline != 0 {
		wr.Inline = append(wr.Inline, q.octets[int(i)*q.inline:][:s.n]...)
	} else if s.n > 0 {
		if wr.SGEs = append(wr.SGEs, s.sge); s.n > 1 {
			wr.SGEs = append(wr.SGEs, q.more[int(i)*q.sges:][:s.n-1]...)
		}
	}
	if rarely(s.op) {
		wr.Atomic, wr.Range = q.rare[i].atomic, q.rare[i].region
	}
}
