package shm

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/rdma"
)

// storeFence: four places store a word and then load another, and neither side may miss the other's
// store (search_test.go). sync/atomic is sequentially consistent by its promise, so a Store would
// do. But the race detector's Store is a release only, which lets a load overtake it when the word
// is in mapped memory: a binary built with -race lost wake-ups. A Swap is a fence in every build,
// and on amd64 it is what Store compiles to.

// ne is the byte order of the shared memory.
var ne = binary.NativeEndian

// An SGE names Length octets at Addr of a registered region.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// A SendWQE is a send work request, copied out of (or to go into) a ring.
type SendWQE struct {
	WRID       uint64
	Op         uint8 // enum ibv_wr_opcode; may be one that is not known
	Flags      uint8 // SQSignaled...
	NumSGE     uint16
	Length     uint32 // octets of the message
	RemoteAddr uint64
	RKey       uint32
	Imm        uint32 // immediate data (see ImmWord), or the key to invalidate
	CmpAdd     uint64 // with immediate data, its low half: SetImmLow
	Swap       uint64
	CmpMask    uint64 // of masked atomics
	SwapMask   uint64 // of masked atomics
	SlabOff    uint32 // with SQSlab: where in the tx slab the octets are
	SGE        [MaxSGE]SGE
	inline     [MaxInline]byte
}

// ImmWord makes four octets of immediate data, as a big-endian number, the word of a ring that holds
// them in wire order, and back: so a C program copies them as they are.
func ImmWord(n uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return ne.Uint32(b[:])
}

// ImmLow is the word at SQImmLow.
func (w *SendWQE) ImmLow() uint32 { return uint32(w.CmpAdd) }

// SetImmLow sets it, and with it CmpAdd.
func (w *SendWQE) SetImmLow(v uint32) { w.CmpAdd = uint64(v) }

// masked reports whether an operation is an atomic with masks, which lie behind its one SGE.
func masked(op uint8) bool {
	return op == uint8(rdma.OpMaskedCompareSwap) || op == uint8(rdma.OpMaskedFetchAdd)
}

// SGEs is a view of the request's elements.
func (w *SendWQE) SGEs() []SGE { return w.SGE[:w.NumSGE] }

// Inline is a view of the octets that came with the request (SQInline); good until w is used again.
func (w *SendWQE) Inline() []byte { return w.inline[:w.Length] }

// SetInline makes w carry b; false if that is more than any QP takes.
func (w *SendWQE) SetInline(b []byte) bool {
	if len(b) > MaxInline {
		return false
	}
	w.Flags |= SQInline
	w.NumSGE = 0
	w.Length = uint32(copy(w.inline[:], b))
	return true
}

// encode writes w into a slot, which it fits.
func (w *SendWQE) encode(slot []byte) {
	ne.PutUint64(slot[SQWRID:], w.WRID)
	slot[SQOp] = w.Op
	slot[SQFlags] = w.Flags
	ne.PutUint16(slot[SQNumSGE:], w.NumSGE)
	ne.PutUint32(slot[SQLength:], w.Length)
	ne.PutUint64(slot[SQRemoteAddr:], w.RemoteAddr)
	ne.PutUint32(slot[SQRKey:], w.RKey)
	ne.PutUint32(slot[SQImm:], w.Imm)
	ne.PutUint64(slot[SQCmpAdd:], w.CmpAdd)
	ne.PutUint64(slot[SQSwap:], w.Swap)
	switch {
	case w.Flags&SQInline != 0:
		copy(slot[SQSGE:], w.inline[:w.Length])
	case w.Flags&SQSlab != 0:
		ne.PutUint32(slot[SQSGE:], w.SlabOff)
	default:
		for i := range w.SGEs() {
			w.SGE[i].encode(slot[SQSGE+i*SGELen:])
		}
		if masked(w.Op) {
			ne.PutUint64(slot[SQCmpMask:], w.CmpMask)
			ne.PutUint64(slot[SQSwapMask:], w.SwapMask)
		}
	}
}

// decode fills w from a private copy of a slot and checks it against the QP's own sizes.
func (w *SendWQE) decode(slot []byte, l *QPLayout) error {
	w.WRID = ne.Uint64(slot[SQWRID:])
	w.Op = slot[SQOp]
	w.Flags = slot[SQFlags] & (SQSignaled | SQSolicited | SQFence | SQInline | SQSlab)
	w.NumSGE = ne.Uint16(slot[SQNumSGE:])
	w.Length = ne.Uint32(slot[SQLength:])
	w.RemoteAddr = ne.Uint64(slot[SQRemoteAddr:])
	w.RKey = ne.Uint32(slot[SQRKey:])
	w.Imm = ne.Uint32(slot[SQImm:])
	w.CmpAdd = ne.Uint64(slot[SQCmpAdd:])
	w.Swap = ne.Uint64(slot[SQSwap:])
	w.SlabOff, w.CmpMask, w.SwapMask = 0, 0, 0
	data := slot[SQSGE:]
	switch w.Flags & (SQInline | SQSlab) {
	case SQInline:
		if w.NumSGE != 0 || w.Length > l.MaxInline {
			return violation("send WQE with %d inline octets and %d SGEs, %d octets allowed", w.Length, w.NumSGE, l.MaxInline)
		}
		copy(w.inline[:w.Length], data)
	case SQSlab:
		w.SlabOff = ne.Uint32(data)
		if w.NumSGE != 0 || w.SlabOff > l.TxSlabSize || w.Length > l.TxSlabSize-w.SlabOff {
			return violation("send WQE with %d octets at %d of a slab of %d", w.Length, w.SlabOff, l.TxSlabSize)
		}
	case SQInline | SQSlab:
		return violation("send WQE both inline and in the slab")
	default:
		allowed := l.SQMaxSGE()
		if masked(w.Op) {
			allowed = 1
			w.CmpMask, w.SwapMask = ne.Uint64(slot[SQCmpMask:]), ne.Uint64(slot[SQSwapMask:])
		}
		if uint32(w.NumSGE) > allowed {
			return violation("send WQE with %d SGEs, %d allowed", w.NumSGE, allowed)
		}
		var sum uint64
		for i := range w.SGEs() {
			w.SGE[i].decode(data[i*SGELen:])
			sum += uint64(w.SGE[i].Length)
		}
		if sum != uint64(w.Length) {
			return violation("send WQE of %d octets with SGEs of %d", w.Length, sum)
		}
	}
	return nil
}

func (s *SGE) encode(b []byte) {
	ne.PutUint64(b[SGEAddr:], s.Addr)
	ne.PutUint32(b[SGELength:], s.Length)
	ne.PutUint32(b[SGELKey:], s.LKey)
}

func (s *SGE) decode(b []byte) {
	s.Addr = ne.Uint64(b[SGEAddr:])
	s.Length = ne.Uint32(b[SGELength:])
	s.LKey = ne.Uint32(b[SGELKey:])
}

// A RecvWQE is a posted receive.
type RecvWQE struct {
	WRID   uint64
	NumSGE uint32
	Cookie uint32 // the completion carries it back
	SGE    [MaxSGE]SGE
}

// SGEs is a view of the receive's elements.
func (w *RecvWQE) SGEs() []SGE { return w.SGE[:w.NumSGE] }

// Capacity is how many octets the receive takes. It can exceed what a message can hold.
func (w *RecvWQE) Capacity() (n uint64) {
	for i := range w.SGEs() {
		n += uint64(w.SGE[i].Length)
	}
	return n
}

func (w *RecvWQE) encode(slot []byte) {
	ne.PutUint64(slot[RQWRID:], w.WRID)
	ne.PutUint32(slot[RQNumSGE:], w.NumSGE)
	ne.PutUint32(slot[RQCookie:], w.Cookie)
	for i := range w.SGEs() {
		w.SGE[i].encode(slot[RQSGE+i*SGELen:])
	}
}

func (w *RecvWQE) decode(slot []byte, l *QPLayout) error {
	w.WRID = ne.Uint64(slot[RQWRID:])
	w.NumSGE = ne.Uint32(slot[RQNumSGE:])
	w.Cookie = ne.Uint32(slot[RQCookie:])
	if w.NumSGE > l.RQMaxSGE() {
		n := w.NumSGE
		w.NumSGE = 0
		return violation("receive WQE with %d SGEs, %d allowed", n, l.RQMaxSGE())
	}
	for i := range w.SGEs() {
		w.SGE[i].decode(slot[RQSGE+i*SGELen:])
	}
	return nil
}

// A CQE is a completion. Numbers are those of struct ibv_wc.
type CQE struct {
	WRID      uint64
	Status    uint32
	Opcode    uint32
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32 // immediate data (see ImmWord), or the invalidated key
	QPN       uint32
	SrcQP     uint32 // with immediate data, its last four octets
	WCFlags   uint32
	SQDone    uint32 // of the QP, with this completion's request counted
	Cookie    uint32 // of a receive
	SlabOff   uint32 // NoSlab, or where in the rx slab the octets are
	SlabLen   uint32
	Timestamp uint64 // CLOCK_MONOTONIC nanoseconds
}

func (e *CQE) encode(b []byte) {
	b = b[:CQELen]
	ne.PutUint64(b[CQEWRID:], e.WRID)
	ne.PutUint32(b[CQEStatus:], e.Status)
	ne.PutUint32(b[CQEOpcode:], e.Opcode)
	ne.PutUint32(b[CQEVendorErr:], e.VendorErr)
	ne.PutUint32(b[CQEByteLen:], e.ByteLen)
	ne.PutUint32(b[CQEImm:], e.Imm)
	ne.PutUint32(b[CQEQPNum:], e.QPN)
	ne.PutUint32(b[CQESrcQP:], e.SrcQP)
	ne.PutUint32(b[CQEWCFlags:], e.WCFlags)
	ne.PutUint32(b[CQESQDone:], e.SQDone)
	ne.PutUint32(b[CQECookie:], e.Cookie)
	ne.PutUint32(b[CQESlabOff:], e.SlabOff)
	ne.PutUint32(b[CQESlabLen:], e.SlabLen)
	ne.PutUint64(b[CQETimestamp:], e.Timestamp)
}

func (e *CQE) decode(b []byte) {
	b = b[:CQELen]
	e.WRID = ne.Uint64(b[CQEWRID:])
	e.Status = ne.Uint32(b[CQEStatus:])
	e.Opcode = ne.Uint32(b[CQEOpcode:])
	e.VendorErr = ne.Uint32(b[CQEVendorErr:])
	e.ByteLen = ne.Uint32(b[CQEByteLen:])
	e.Imm = ne.Uint32(b[CQEImm:])
	e.QPN = ne.Uint32(b[CQEQPNum:])
	e.SrcQP = ne.Uint32(b[CQESrcQP:])
	e.WCFlags = ne.Uint32(b[CQEWCFlags:])
	e.SQDone = ne.Uint32(b[CQESQDone:])
	e.Cookie = ne.Uint32(b[CQECookie:])
	e.SlabOff = ne.Uint32(b[CQESlabOff:])
	e.SlabLen = ne.Uint32(b[CQESlabLen:])
	e.Timestamp = ne.Uint64(b[CQETimestamp:])
}
