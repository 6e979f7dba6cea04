package abi

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/rdma"
)

// Order is the byte order of shared memory, of messages and of the numbers in them.
var Order = binary.NativeEndian

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

// ImmWord makes four octets of immediate data, as a big-endian number, the word of a ring that
// holds them in wire order, and back: so a C program copies them as they are.
func ImmWord(n uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return Order.Uint32(b[:])
}

// ImmLow is the word at SQImmLow.
func (w *SendWQE) ImmLow() uint32 { return uint32(w.CmpAdd) }

// SetImmLow sets it, and with it CmpAdd.
func (w *SendWQE) SetImmLow(v uint32) { w.CmpAdd = uint64(v) }

// Masked reports whether an operation is an atomic with masks, which lie behind its one SGE.
func Masked(op uint8) bool {
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

// Encode writes w into a slot, which it fits.
func (w *SendWQE) Encode(slot []byte) {
	Order.PutUint64(slot[SQWRID:], w.WRID)
	slot[SQOp] = w.Op
	slot[SQFlags] = w.Flags
	Order.PutUint16(slot[SQNumSGE:], w.NumSGE)
	Order.PutUint32(slot[SQLength:], w.Length)
	Order.PutUint64(slot[SQRemoteAddr:], w.RemoteAddr)
	Order.PutUint32(slot[SQRKey:], w.RKey)
	Order.PutUint32(slot[SQImm:], w.Imm)
	Order.PutUint64(slot[SQCmpAdd:], w.CmpAdd)
	Order.PutUint64(slot[SQSwap:], w.Swap)
	switch {
	case w.Flags&SQInline != 0:
		copy(slot[SQSGE:], w.inline[:w.Length])
	case w.Flags&SQSlab != 0:
		Order.PutUint32(slot[SQSGE:], w.SlabOff)
	default:
		for i := range w.SGEs() {
			w.SGE[i].encode(slot[SQSGE+i*SGELen:])
		}
		if Masked(w.Op) {
			Order.PutUint64(slot[SQCmpMask:], w.CmpMask)
			Order.PutUint64(slot[SQSwapMask:], w.SwapMask)
		}
	}
}

// Decode fills w from a private copy of a slot and checks it against the QP's own sizes.
func (w *SendWQE) Decode(slot []byte, l *QPLayout) error {
	w.WRID = Order.Uint64(slot[SQWRID:])
	w.Op = slot[SQOp]
	w.Flags = slot[SQFlags] & (SQSignaled | SQSolicited | SQFence | SQInline | SQSlab)
	w.NumSGE = Order.Uint16(slot[SQNumSGE:])
	w.Length = Order.Uint32(slot[SQLength:])
	w.RemoteAddr = Order.Uint64(slot[SQRemoteAddr:])
	w.RKey = Order.Uint32(slot[SQRKey:])
	w.Imm = Order.Uint32(slot[SQImm:])
	w.CmpAdd = Order.Uint64(slot[SQCmpAdd:])
	w.Swap = Order.Uint64(slot[SQSwap:])
	w.SlabOff, w.CmpMask, w.SwapMask = 0, 0, 0
	data := slot[SQSGE:]
	switch w.Flags & (SQInline | SQSlab) {
	case SQInline:
		if w.NumSGE != 0 || w.Length > l.MaxInline {
			return Violation("send WQE with %d inline octets and %d SGEs, %d octets allowed", w.Length,
				w.NumSGE, l.MaxInline)
		}
		copy(w.inline[:w.Length], data)
	case SQSlab:
		w.SlabOff = Order.Uint32(data)
		if w.NumSGE != 0 || w.SlabOff > l.TxSlabSize || w.Length > l.TxSlabSize-w.SlabOff {
			return Violation("send WQE with %d octets at %d of a slab of %d", w.Length, w.SlabOff,
				l.TxSlabSize)
		}
	case SQInline | SQSlab:
		return Violation("send WQE both inline and in the slab")
	default:
		allowed := l.SQMaxSGE()
		if Masked(w.Op) {
			allowed = 1
			w.CmpMask, w.SwapMask = Order.Uint64(slot[SQCmpMask:]), Order.Uint64(slot[SQSwapMask:])
		}
		if uint32(w.NumSGE) > allowed {
			return Violation("send WQE with %d SGEs, %d allowed", w.NumSGE, allowed)
		}
		var sum uint64
		for i := range w.SGEs() {
			w.SGE[i].decode(data[i*SGELen:])
			sum += uint64(w.SGE[i].Length)
		}
		if sum != uint64(w.Length) {
			return Violation("send WQE of %d octets with SGEs of %d", w.Length, sum)
		}
	}
	return nil
}

func (s *SGE) encode(b []byte) {
	Order.PutUint64(b[SGEAddr:], s.Addr)
	Order.PutUint32(b[SGELength:], s.Length)
	Order.PutUint32(b[SGELKey:], s.LKey)
}

func (s *SGE) decode(b []byte) {
	s.Addr = Order.Uint64(b[SGEAddr:])
	s.Length = Order.Uint32(b[SGELength:])
	s.LKey = Order.Uint32(b[SGELKey:])
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

func (w *RecvWQE) Encode(slot []byte) {
	Order.PutUint64(slot[RQWRID:], w.WRID)
	Order.PutUint32(slot[RQNumSGE:], w.NumSGE)
	Order.PutUint32(slot[RQCookie:], w.Cookie)
	for i := range w.SGEs() {
		w.SGE[i].encode(slot[RQSGE+i*SGELen:])
	}
}

func (w *RecvWQE) Decode(slot []byte, l *QPLayout) error {
	w.WRID = Order.Uint64(slot[RQWRID:])
	w.NumSGE = Order.Uint32(slot[RQNumSGE:])
	w.Cookie = Order.Uint32(slot[RQCookie:])
	if w.NumSGE > l.RQMaxSGE() {
		n := w.NumSGE
		w.NumSGE = 0
		return Violation("receive WQE with %d SGEs, %d allowed", n, l.RQMaxSGE())
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

// Receive reports whether e completes a receive. The opcode of an error need not say so.
func (e *CQE) Receive() bool {
	return e.Opcode&uint32(rdma.WCRecv) != 0 || e.Status != 0 && e.Cookie != 0
}

func (e *CQE) Encode(b []byte) {
	b = b[:CQELen]
	Order.PutUint64(b[CQEWRID:], e.WRID)
	Order.PutUint32(b[CQEStatus:], e.Status)
	Order.PutUint32(b[CQEOpcode:], e.Opcode)
	Order.PutUint32(b[CQEVendorErr:], e.VendorErr)
	Order.PutUint32(b[CQEByteLen:], e.ByteLen)
	Order.PutUint32(b[CQEImm:], e.Imm)
	Order.PutUint32(b[CQEQPN:], e.QPN)
	Order.PutUint32(b[CQESrcQP:], e.SrcQP)
	Order.PutUint32(b[CQEWCFlags:], e.WCFlags)
	Order.PutUint32(b[CQESQDone:], e.SQDone)
	Order.PutUint32(b[CQECookie:], e.Cookie)
	Order.PutUint32(b[CQESlabOff:], e.SlabOff)
	Order.PutUint32(b[CQESlabLen:], e.SlabLen)
	Order.PutUint64(b[CQETimestamp:], e.Timestamp)
}

func (e *CQE) Decode(b []byte) {
	b = b[:CQELen]
	e.WRID = Order.Uint64(b[CQEWRID:])
	e.Status = Order.Uint32(b[CQEStatus:])
	e.Opcode = Order.Uint32(b[CQEOpcode:])
	e.VendorErr = Order.Uint32(b[CQEVendorErr:])
	e.ByteLen = Order.Uint32(b[CQEByteLen:])
	e.Imm = Order.Uint32(b[CQEImm:])
	e.QPN = Order.Uint32(b[CQEQPN:])
	e.SrcQP = Order.Uint32(b[CQESrcQP:])
	e.WCFlags = Order.Uint32(b[CQEWCFlags:])
	e.SQDone = Order.Uint32(b[CQESQDone:])
	e.Cookie = Order.Uint32(b[CQECookie:])
	e.SlabOff = Order.Uint32(b[CQESlabOff:])
	e.SlabLen = Order.Uint32(b[CQESlabLen:])
	e.Timestamp = Order.Uint64(b[CQETimestamp:])
}
