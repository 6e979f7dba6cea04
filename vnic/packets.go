package vnic

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/datagrams"
	"github.com/vrnic/vrnic/vnic/internal/link/packets"
	"github.com/vrnic/vrnic/vnic/internal/stats"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// A packetQP is what a queue pair of a RoCE device has beside those of iWARP: it is moved by
// Modify, attribute by attribute, and not by a connection manager.
type packetQP struct {
	modifying chan struct{} // one slot: Modify has it, which may wait for the way to the peer
	attr      rdma.QPAttr   // the owner's; its states mean nothing
	privilege bool          // Q_Keys with the top bit set are allowed

	// what attr was when it was set last, for who looks from outside
	shown atomic.Pointer[rdma.QPAttr]

	// Set by the owner: one is not nil while packets are taken.
	peer      atomic.Pointer[packetLink]
	datagrams atomic.Pointer[datagrams.Link]

	// Octets of a batch that are taken where they are brought, and that some others wait for the QP's
	// goroutine; the owner's, from the first packet to the last.
	inline int
	handed bool

	// While answer is set somebody looks for the program's answer to a Write, until more reports true;
	// more is the owner's, from the first packet of a batch to the last.
	answer atomic.Bool
	more   func() bool

	stats stats.Packets

	settling []chan struct{} // of those who wait in settle; the owner's

	life context.Context // ends with the QP, or before: what waits for the network waits no longer
	stop context.CancelFunc
}

func newPacketQP(c *Context) *packetQP {
	p := &packetQP{modifying: make(chan struct{}, 1), privilege: c.cfg.Privileged}
	p.life, p.stop = context.WithCancel(c.life)
	return p
}

// A packetLink is the link of a connected QP, and the peer whose packets are for it.
type packetLink struct {
	*packets.Link
	local, remote netip.Addr
}

// TakePacket and Put make l a taker.
func (l *packetLink) TakePacket(p *RoCEPacket) {
	l.Take(p.Datagram, p.TrafficClass()&udp.ECNMask == udp.CE)
}

func (l *packetLink) Put(p *RoCEPacket) bool { return l.Inbox.Put(p) }

// route finds the way from own address index of the GID table to where p says.
func (qp *QP) route(p *rdma.AHAttr, find finder) (packets.Path, error) {
	own, _ := qp.dev.roce.gid(p.GIDIndex)
	path := packets.Path{
		Local: own.Addr(), Remote: p.GID.Addr(), TrafficClass: p.TrafficClass, HopLimit: p.HopLimit,
		FlowLabel: p.FlowLabel,
	}
	var err error
	if path.Route, err = find(qp.packets.life, path.Local, path.Remote); err != nil {
		return path, err
	}
	path.Peer = qp.beside(path.Remote)
	return path, nil
}

// engineConfig is what was agreed on, in the words of the engine.
func (qp *QP) engineConfig() roce.Config {
	a := &qp.packets.attr
	return roce.Config{
		MTU: uint32(a.PathMTU.Octets()), PKey: packet.DefaultPKey, Dest: packet.QPN(a.DestQPN),
		SQPSN: packet.PSN(a.SQPSN), RQPSN: packet.PSN(a.RQPSN), Access: engineAccess(a.Access),
		MaxRead: int(a.MaxRead), MaxDestRead: int(a.MaxDestRead), Timeout: a.Timeout,
		Retries: a.RetryCount, RNRRetries: a.RNRRetry, MinRNRTimer: a.MinRNRTimer,
		LastMoment: qp.dev.cfg.Adverse,
	}
}

func engineAccess(a rdma.Access) (e roce.Access) {
	if a&rdma.RemoteWrite != 0 {
		e |= roce.RemoteWrite
	}
	if a&rdma.RemoteRead != 0 {
		e |= roce.RemoteRead
	}
	if a&rdma.RemoteAtomic != 0 {
		e |= roce.RemoteAtomic
	}
	return e
}

// moved has the connection of qp follow: its attributes have changed by mask, and it went from one
// state to another, or stayed. path holds something if mask has AttrPath. The owner calls it.
func (qp *QP) moved(from, to rdma.QPState, mask rdma.QPAttrMask, path packets.Path) {
	p := qp.packets
	l := p.peer.Load()
	switch {
	case from == rdma.QPInit && to == rdma.QPRTR && qp.Type() != rdma.UD:
		l = &packetLink{packets.New((*packeted)(qp), qp.Type(), path, qp.engineConfig(), &p.stats,
			&qp.dev.roce.links, qp.newInbox()),
			path.Local, path.Remote}
		qp.work.Begin(true, false)
		qp.link = l
		var seen link.Link = l
		qp.seen.Store(&seen)
		p.peer.Store(l)
	case l == nil:
	case from == rdma.QPRTR && to == rdma.QPRTS:
		l.Start(qp.engineConfig())
		qp.work.Begin(true, p.attr.MaxRead > 0)
	default:
		l.Update(qp.engineConfig())
		qp.work.Begin(true, p.attr.MaxRead > 0)
	}
	if l == nil {
		return
	}
	if mask&rdma.AttrPath != 0 && from == rdma.QPSQD {
		l = &packetLink{l.Link, path.Local, path.Remote}
		l.SetPath(path)
		p.peer.Store(l)
	}
	switch {
	case from != rdma.QPSQD && to == rdma.QPSQD:
		l.Drain()
	case from == rdma.QPSQD && to == rdma.QPRTS:
		l.Resume()
	case from == rdma.QPSQE && to == rdma.QPRTS:
		l.Recover()
	}
}

// unlink ends the connection of qp: packets of the peer are not taken any more.
func (qp *QP) unlink() {
	qp.clearDeadlines()
	qp.packets.peer.Store(nil)
	qp.packets.datagrams.Store(nil)
	if l := qp.link; l != nil {
		qp.link = nil
		qp.seen.Store(nil)
		l.Abort()
		qp.work.Memory.EndWindows()
	}
	qp.work.Recv.Close(qp.dead)
	qp.work.Begin(true, false)
}

// A packeted is a QP of RoCE as its link sees it.
type packeted QP

func (q *packeted) Work() *wqe.Requests         { return &q.work }
func (q *packeted) State() rdma.QPState         { return (*QP)(q).State() }
func (q *packeted) Tape() *record.Tape          { return q.dev.tape(q.num) }
func (q *packeted) SetDeadline(d time.Duration) { (*QP)(q).setDeadline(deadlineLink, d) }

func (q *packeted) AnswerExpected() bool { return q.packets.answer.Load() }

func (q *packeted) Established() {
	if q.State() == rdma.QPRTR {
		q.ctx.event(rdma.EventCommEst, q.num, nil)
	}
	q.bound.Load().Heard()
}

func (q *packeted) Drained() {
	if q.packets.attr.DrainedEvent {
		q.ctx.event(rdma.EventSQDrained, q.num, nil)
	}
}

// Failed ends the connection for a fault of the engine, or stops the sending half of a UC.
func (q *packeted) Failed(f *roce.Fault) {
	qp := (*QP)(q)
	qp.log("fault", "err", f)
	if f.Requester {
		qp.work.ByToken(uint32(f.Token)).Blame(packets.Status(f.Status), 0)
		q.sendFailed(f)
		return
	}
	switch {
	case f.Status == roce.LocalLength || f.Status == roce.LocalProtection: // the completion tells
	case f.Sent == packet.NAKInvalid:
		qp.ctx.event(rdma.EventQPReqErr, qp.num, nil)
	case f.Sent == packet.NAKAccess:
		qp.ctx.event(rdma.EventQPAccessErr, qp.num, nil)
	}
	qp.toError(f)
}

// Refused ends it for a request that could not be.
func (q *packeted) Refused(err error) {
	(*QP)(q).log("request refused", "err", err)
	q.sendFailed(err)
}

// sendFailed is the end of a reliable connection. An unreliable one sends no more.
func (q *packeted) sendFailed(err error) {
	qp := (*QP)(q)
	if qp.Type() == rdma.RC {
		qp.toError(err)
	} else {
		qp.mustState(rdma.QPSQE)
	}
}
