package vnictest

import (
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// RoCE makes a device one of RoCE.
func RoCE(c *vnic.Config) {
	c.RoCE = true
	if c.MTU == 0 {
		c.MTU = 9000
	}
}

// The attributes that a queue pair of RoCE needs on its way to RTS: ibv_modify_qp's.
const (
	ToInit = rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess
	ToRTR  = rdma.AttrState | rdma.AttrPath | rdma.AttrPathMTU | rdma.AttrDestQPN | rdma.AttrRQPSN |
		rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer
	ToRTS = rdma.AttrState | rdma.AttrSQPSN | rdma.AttrTimeout | rdma.AttrRetryCount |
		rdma.AttrRNRRetry | rdma.AttrMaxRead
	// What of them a UC does not have.
	OfRC = rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer | rdma.AttrTimeout | rdma.AttrRetryCount |
		rdma.AttrRNRRetry | rdma.AttrMaxRead
)

// Attrs are the attributes of p's QP for a connection to q by numbers, as programs exchange them:
// from index of p's GID table to the same of q's.
func Attrs(t testing.TB, p, q *Peer, index uint8) rdma.QPAttr {
	t.Helper()
	to, err := q.Ctx.GID(int(index))
	if err != nil {
		t.Fatal(err)
	}
	return rdma.QPAttr{
		Port: 1, Access: Full, PathMTU: min(p.Ctx.Attr().ActiveMTU, q.Ctx.Attr().ActiveMTU),
		Path:    rdma.AHAttr{GID: to.GID, GIDIndex: index, HopLimit: 1, Port: 1, Global: true},
		DestQPN: q.QP.Num(), RQPSN: q.QP.Num() ^ 0xfffff0, SQPSN: p.QP.Num() ^ 0xfffff0,
		MaxDestRead: 4, MaxRead: 4, MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7,
	}
}

// Move moves p's QP to state to with those of mask of a that its type has.
func (p *Peer) Move(to rdma.QPState, a rdma.QPAttr, mask rdma.QPAttrMask) {
	p.t.Helper()
	a.State = to
	if p.QP.Type() == rdma.UC {
		mask &^= OfRC
	}
	if err := p.QP.Modify(&a, mask|rdma.AttrState); err != nil {
		p.t.Fatal(err)
	}
}

// ToRTS brings p's QP, which is in Reset, to RTS with a.
func (p *Peer) ToRTS(a rdma.QPAttr) {
	p.t.Helper()
	p.Move(rdma.QPInit, a, ToInit)
	p.Move(rdma.QPRTR, a, ToRTR)
	p.Move(rdma.QPRTS, a, ToRTS)
}

// ConnectByNumber joins the QPs of x and y, which are RC or UC and in Reset, as programs without a
// connection manager do. change, if not nil, changes the attributes of each.
func ConnectByNumber(t testing.TB, x, y *Peer, change func(*rdma.QPAttr)) {
	t.Helper()
	for _, e := range [][2]*Peer{{x, y}, {y, x}} {
		a := Attrs(t, e[0], e[1], 1)
		if change != nil {
			change(&a)
		}
		e[0].ToRTS(a)
	}
}
