package shm

import "math/bits"

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
func (l *QPLayout) RQMaxSGE() uint32 { return min((l.RQStride-RQSGE)/SGELen, MaxSGE) }

// Size is how many octets the memory has.
func (l *QPLayout) Size() int {
	end := max(l.SQOff+l.SQSize*l.SQStride, l.RQOff+l.RQSize*l.RQStride, l.TxSlabOff+l.TxSlabSize, l.RxSlabOff+l.RxSlabSize)
	return int(end)
}

// Round rounds c up to what a QP gets, never below the request; false if it is more than any QP
// can have: depths of at most maxDepth, MaxSGE, MaxInline, MaxSlab. (T6 of the ABI's traps: even
// a request of 0 gets inline space.)
func (c QPCaps) Round(maxDepth uint32) (QPCaps, bool) {
	if c.MaxSendWR > maxDepth || c.MaxRecvWR > maxDepth || maxDepth > MaxDepth || c.MaxSendSGE > MaxSGE ||
		c.MaxRecvSGE > MaxSGE || c.MaxInline > MaxInline || c.TxSlab > MaxSlab || c.RxSlab > MaxSlab || c.Pad != 0 {
		return c, false
	}
	c.MaxSendWR = ceilPow2(max(c.MaxSendWR, 1))
	c.MaxRecvWR = ceilPow2(max(c.MaxRecvWR, 1))
	c.MaxRecvSGE = max(c.MaxRecvSGE, 1)
	stride := uint32(SQStride(int(max(c.MaxSendSGE, 1)), int(max(c.MaxInline, MinInline))))
	c.MaxSendSGE = min((stride-SQSGE)/SGELen, MaxSGE)
	c.MaxInline = min(stride-SQSGE, MaxInline)
	c.TxSlab = (c.TxSlab + 63) &^ 63
	c.RxSlab = (c.RxSlab + 63) &^ 63
	return c, true
}

// NewQPLayout lays out a QP with caps that Round has returned.
func NewQPLayout(c QPCaps) QPLayout {
	l := QPLayout{
		SQSize: c.MaxSendWR, SQStride: uint32(SQStride(int(c.MaxSendSGE), int(c.MaxInline))),
		RQSize: c.MaxRecvWR, RQStride: uint32(RQStride(int(c.MaxRecvSGE))),
		TxSlabSize: c.TxSlab, RxSlabSize: c.RxSlab, MaxInline: c.MaxInline,
	}
	l.SQOff = qpHeaderLen
	l.RQOff = align64(l.SQOff + l.SQSize*l.SQStride)
	l.TxSlabOff = align64(l.RQOff + l.RQSize*l.RQStride)
	l.RxSlabOff = l.TxSlabOff + l.TxSlabSize
	return l
}

// put writes line 0.
func (l *QPLayout) put(mem []byte, qpn uint32) {
	for _, f := range []struct{ off, v uint32 }{
		{QPMagic, MagicQP}, {QPNum, qpn}, {QPSQSize, l.SQSize}, {QPSQStride, l.SQStride}, {QPRQSize, l.RQSize},
		{QPRQStride, l.RQStride}, {QPSQOff, l.SQOff}, {QPRQOff, l.RQOff}, {QPTxSlabOff, l.TxSlabOff},
		{QPTxSlabSize, l.TxSlabSize}, {QPRxSlabOff, l.RxSlabOff}, {QPRxSlabSize, l.RxSlabSize},
		{QPMaxInline, l.MaxInline}, {QPFlags, l.Flags},
	} {
		wordAt(mem, f.off).Store(f.v)
	}
}

// ReadQPLayout is the client's: it reads line 0 of mem and checks that all of it lies inside mem.
func ReadQPLayout(mem []byte) (l QPLayout, qpn uint32, err error) {
	if len(mem) < qpHeaderLen {
		return l, 0, violation("QP memory of %d octets", len(mem))
	}
	get := func(off uint32) uint32 { return wordAt(mem, off).Load() }
	if m := get(QPMagic); m != MagicQP {
		return l, 0, violation("QP memory has magic %#x", m)
	}
	l = QPLayout{
		SQSize: get(QPSQSize), SQStride: get(QPSQStride), RQSize: get(QPRQSize), RQStride: get(QPRQStride),
		SQOff: get(QPSQOff), RQOff: get(QPRQOff), TxSlabOff: get(QPTxSlabOff), TxSlabSize: get(QPTxSlabSize),
		RxSlabOff: get(QPRxSlabOff), RxSlabSize: get(QPRxSlabSize), MaxInline: get(QPMaxInline), Flags: get(QPFlags),
	}
	n := uint64(len(mem))
	ok := ringFits(n, l.SQOff, l.SQSize, l.SQStride, SQSGE+SGELen, maxSQStride) &&
		ringFits(n, l.RQOff, l.RQSize, l.RQStride, RQSGE+SGELen, maxRQStride) &&
		rangeFits(n, l.TxSlabOff, l.TxSlabSize) && rangeFits(n, l.RxSlabOff, l.RxSlabSize) &&
		l.MaxInline <= l.SQStride-SQSGE && l.MaxInline <= MaxInline
	if !ok {
		return l, 0, violation("QP memory of %d octets with %+v", len(mem), l)
	}
	return l, get(QPNum), nil
}

func rangeFits(n uint64, off, size uint32) bool {
	return uint64(off) <= n && uint64(size) <= n-uint64(off)
}

func ringFits(n uint64, off, size, stride uint32, minStride, maxStride uint32) bool {
	return isPow2(size) && size <= MaxDepth && stride >= minStride && stride <= maxStride && off%8 == 0 && stride%8 == 0 &&
		uint64(off) <= n && uint64(size)*uint64(stride) <= n-uint64(off)
}

func isPow2(n uint32) bool { return n != 0 && n&(n-1) == 0 }

// ceilPow2 rounds 1..1<<31 up to a power of two.
func ceilPow2(n uint32) uint32 { return 1 << bits.Len32(n-1) }

func align64(n uint32) uint32 { return (n + 63) &^ 63 }
