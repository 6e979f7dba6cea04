package rpc

import "github.com/vrnic/vrnic/shm/abi"

// Round rounds c up to what a QP gets, never below the request; false if it is more than any QP
// can have: depths of at most maxDepth, and the bounds of package abi. With an SRQ there is no
// receive queue, nor a slab for it. (docs/decisions.md#V6: even a request of 0 gets inline space.)
func (c QPCaps) Round(maxDepth uint32, srq bool) (QPCaps, bool) {
	if c.MaxSendWR > maxDepth || c.MaxRecvWR > maxDepth || maxDepth > abi.MaxDepth ||
		c.MaxSendSGE > abi.MaxSGE || c.MaxRecvSGE > abi.MaxSGE || c.MaxInline > abi.MaxInline ||
		c.TxSlab > abi.MaxSlab || c.RxSlab > abi.MaxSlab || c.Pad != 0 {
		return c, false
	}
	c.MaxSendWR = abi.CeilPow2(max(c.MaxSendWR, 1))
	c.MaxRecvWR = abi.CeilPow2(max(c.MaxRecvWR, 1))
	c.MaxRecvSGE = max(c.MaxRecvSGE, 1)
	if srq {
		c.MaxRecvWR, c.MaxRecvSGE, c.RxSlab = 0, 0, 0
	}
	stride := uint32(abi.SQStride(int(max(c.MaxSendSGE, 1)), int(max(c.MaxInline, abi.MinInline))))
	c.MaxSendSGE = min((stride-abi.SQSGE)/abi.SGELen, abi.MaxSGE)
	c.MaxInline = min(stride-abi.SQSGE, abi.MaxInline)
	c.TxSlab, c.RxSlab = roundSlab(c.TxSlab), roundSlab(c.RxSlab)
	return c, true
}

func roundSlab(n uint32) uint32 {
	if n == 0 {
		return 0
	}
	return abi.CeilPow2(max(n, abi.MinSlab))
}

// Layout lays out a QP with caps that Round has returned.
func (c QPCaps) Layout() abi.QPLayout {
	l := abi.QPLayout{
		SQSize: c.MaxSendWR, SQStride: uint32(abi.SQStride(int(c.MaxSendSGE), int(c.MaxInline))),
		RQSize: c.MaxRecvWR, TxSlabSize: c.TxSlab, RxSlabSize: c.RxSlab, MaxInline: c.MaxInline,
	}
	if c.MaxRecvWR != 0 {
		l.RQStride = uint32(abi.RQStride(int(c.MaxRecvSGE)))
	}
	l.Place()
	return l
}
