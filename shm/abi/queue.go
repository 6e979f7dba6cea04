package abi

import (
	"math/bits"

	"github.com/vrnic/vrnic/rdma"
)

// A QPLayout says where things are in a QP's memory. The daemon makes it from the caps and keeps
// its copy; the client reads it from line 0.
type QPLayout struct {
	SQSize, SQStride      uint32
	RQSize, RQStride      uint32
	SQOff, RQOff          uint32
	TxSlabOff, TxSlabSize uint32
	RxSlabOff, RxSlabSize uint32
	MaxInline             uint32
	Flags                 uint32
}

// SQMaxSGE is how many SGEs a send WQE can hold.
func (l *QPLayout) SQMaxSGE() uint32 { return min((l.SQStride-SQSGE)/SGELen, MaxSGE) }

// RQMaxSGE is how many SGEs a receive WQE can hold.
func (l *QPLayout) RQMaxSGE() uint32 {
	if l.RQSize == 0 {
		return 0
	}
	return min((l.RQStride-RQSGE)/SGELen, MaxSGE)
}

// Size is how many octets the memory has.
func (l *QPLayout) Size() int {
	end := max(QPHeaderLen, l.SQOff+l.SQSize*l.SQStride, l.RQOff+l.RQSize*l.RQStride,
		l.TxSlabOff+l.TxSlabSize, l.RxSlabOff+l.RxSlabSize)
	return int(end)
}

// Place sets the offsets of a QP's memory by what it has: sizes and strides.
func (l *QPLayout) Place() {
	l.SQOff = QPHeaderLen
	l.RQOff = Align64(l.SQOff + l.SQSize*l.SQStride)
	l.TxSlabOff = Align64(l.RQOff + l.RQSize*l.RQStride)
	l.RxSlabOff = l.TxSlabOff + l.TxSlabSize
}

// NewSRQLayout lays out an SRQ for maxWR receives, a power of two, of up to maxSGE SGEs.
func NewSRQLayout(maxWR, maxSGE uint32) QPLayout {
	return QPLayout{RQSize: maxWR, RQStride: uint32(RQStride(int(maxSGE))), RQOff: QPHeaderLen}
}

// Put writes line 0.
func (l *QPLayout) Put(mem []byte, magic, num uint32) {
	for _, f := range []struct{ off, v uint32 }{
		{QPMagic, magic}, {QPNum, num}, {QPSQSize, l.SQSize}, {QPSQStride, l.SQStride},
		{QPRQSize, l.RQSize},
		{QPRQStride, l.RQStride}, {QPSQOff, l.SQOff}, {QPRQOff, l.RQOff}, {QPTxSlabOff, l.TxSlabOff},
		{QPTxSlabSize, l.TxSlabSize}, {QPRxSlabOff, l.RxSlabOff}, {QPRxSlabSize, l.RxSlabSize},
		{QPMaxInline, l.MaxInline}, {QPFlags, l.Flags},
	} {
		Word(mem, f.off).Store(f.v)
	}
}

// ReadQPLayout is the client's: it reads line 0 of mem and checks that all of it lies inside mem.
func ReadQPLayout(mem []byte) (l QPLayout, qpn uint32, err error) {
	l, qpn, err = readLayout(mem, MagicQP)
	if err != nil {
		return l, 0, err
	}
	n := uint64(len(mem))
	ok := RingFits(n, l.SQOff, l.SQSize, MaxDepth, l.SQStride, SQSGE+MinInline, MaxSQStride) &&
		(l.RQSize == 0 || l.rqFits(n)) && slabFits(n, l.TxSlabOff, l.TxSlabSize) &&
		slabFits(n, l.RxSlabOff, l.RxSlabSize) &&
		l.MaxInline <= l.SQStride-SQSGE && l.MaxInline <= MaxInline
	if !ok {
		return l, 0, Violation("QP memory of %d octets with %+v", len(mem), l)
	}
	return l, qpn, nil
}

// ReadSRQLayout is ReadQPLayout for an SRQ.
func ReadSRQLayout(mem []byte) (l QPLayout, handle uint32, err error) {
	l, handle, err = readLayout(mem, MagicSRQ)
	if err != nil {
		return l, 0, err
	}
	if !l.rqFits(uint64(len(mem))) {
		return l, 0, Violation("SRQ memory of %d octets with %+v", len(mem), l)
	}
	return l, handle, nil
}

func readLayout(mem []byte, magic uint32) (l QPLayout, num uint32, err error) {
	if len(mem) < QPHeaderLen {
		return l, 0, Violation("memory of a queue of %d octets", len(mem))
	}
	get := func(off uint32) uint32 { return Word(mem, off).Load() }
	if m := get(QPMagic); m != magic {
		return l, 0, Violation("memory of a queue has magic %#x, want %#x", m, magic)
	}
	return QPLayout{
		SQSize: get(QPSQSize), SQStride: get(QPSQStride), RQSize: get(QPRQSize),
		RQStride: get(QPRQStride),
		SQOff:    get(QPSQOff), RQOff: get(QPRQOff), TxSlabOff: get(QPTxSlabOff),
		TxSlabSize: get(QPTxSlabSize),
		RxSlabOff:  get(QPRxSlabOff), RxSlabSize: get(QPRxSlabSize), MaxInline: get(QPMaxInline),
		Flags: get(QPFlags),
	}, get(QPNum), nil
}

func (l *QPLayout) rqFits(n uint64) bool {
	return RingFits(n, l.RQOff, l.RQSize, MaxDepth, l.RQStride, RQSGE+SGELen, MaxRQStride)
}

func slabFits(n uint64, off, size uint32) bool {
	return RangeFits(n, off, size) && (size == 0 || IsPow2(size) && size >= MinSlab && size <= MaxSlab)
}

func RangeFits(n uint64, off, size uint32) bool {
	return uint64(off) <= n && uint64(size) <= n-uint64(off)
}

func RingFits(n uint64, off, size, maxSize, stride, minStride, maxStride uint32) bool {
	return IsPow2(size) && size <= maxSize && stride >= minStride && stride <= maxStride &&
		off%8 == 0 && stride%8 == 0 &&
		uint64(off) <= n && uint64(size)*uint64(stride) <= n-uint64(off)
}

func IsPow2(n uint32) bool { return n != 0 && n&(n-1) == 0 }

// CeilPow2 rounds 1..1<<31 up to a power of two.
func CeilPow2(n uint32) uint32 { return 1 << bits.Len32(n-1) }

func Align64(n uint32) uint32 { return (n + 63) &^ 63 }

var roceStates = [...]rdma.QPState{
	StateReset: rdma.QPReset,
	StateInit:  rdma.QPInit,
	StateRTR:   rdma.QPRTR,
	StateRTS:   rdma.QPRTS,
	StateSQD:   rdma.QPSQD,
	StateSQE:   rdma.QPSQE,
	StateErr:   rdma.QPError,
}

// RoCEState is a state of a RoCE QP by its number, in the QP's memory and in MODIFY_QP; false:
// there is none.
func RoCEState(n uint32) (rdma.QPState, bool) {
	if n >= uint32(len(roceStates)) {
		return 0, false
	}
	return roceStates[n], true
}
