package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	protocol "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// listenRoCE takes requests on a device of RoCE.
//
// +checklocks:id.mu
func (id *ID) listenRoCELocked(l *acceptor) error {
	var err error
	s := protocol.Service{Space: mad.PortSpaceTCP, Port: id.local.Port()}
	if id.space == PortSpaceUDP {
		s.Space = mad.PortSpaceUDP
	}
	addr, sharing := id.local.Addr(), id.sharing
	if !id.m.gsi().Do(func(now time.Time, c *protocol.Manager) {
		l.roce, err = c.Listen(now, &protocol.ListenRequest{Service: s, Addr: addr, Backlog: l.backlog,
			Only6: sharing.Only6, Account: id.user.account})
		if err == nil {
			l.roce.Owner = (*roceAcceptor)(l)
		}
	}) {
		return fmt.Errorf("listen on %v: %w", id.local, rdma.ErrClosed)
	}
	if err != nil {
		return errno(syscall.EADDRINUSE, "listen on %v", id.local)
	}
	return nil
}

// A roceAcceptor is an acceptor as a gsi.Owner.
type roceAcceptor acceptor

// Happened implements gsi.Owner.
func (l *roceAcceptor) Happened(e protocol.Event) {
	r := &roceRequest{x: &exchange{m: l.id.m, conn: e.Conn, query: e.Query}}
	p := rdma.ConnParam{PrivateData: e.PrivateData}
	if e.Conn != nil {
		l.id.m.gsi().Do(func(time.Time, *protocol.Manager) { e.Conn.Owner = r.x })
		// What the peer has: it answers as many as we may have under way.
		p.IRD, p.ORD = shownReads(uint16(e.InitiatorDepth)), shownReads(uint16(e.ResponderResources))
		p.RoCE = rdma.RoCEParam{
			RetryCount: shownRetries(e.Retries), RNRRetry: shownRetries(e.RNRRetries),
			FlowControl: e.FlowControl, SRQ: e.SRQ, QPN: e.QPN,
		}
	}
	r.x.asked = p
	local := netip.AddrPortFrom(e.Dest, l.id.Local().Port())
	(*acceptor)(l).child(r, local, e.Source, p)
}

// A roceRequest is a peer's request over QP 1.
type roceRequest struct{ x *exchange }

// belongsLocked makes id, a child, the one that the request is for.
//
// +checklocks:id.mu
func (r *roceRequest) belongsLocked(id *ID) {
	r.x.id, id.exchange = id, r.x
}

func (r *roceRequest) acceptNow(a *Attempt, p rdma.ConnParam) (done bool, err error) {
	a.accepts = true
	err = r.move(a, p, false)
	if errors.Is(err, syscall.EINPROGRESS) {
		return false, nil
	}
	return true, err
}

func (r *roceRequest) answered() {}

func (r *roceRequest) accept(_ context.Context, a *Attempt, p rdma.ConnParam) error {
	return r.move(a, p, true)
}

// move moves a's QP to RTS and answers. EINPROGRESS, unless wait is set: the way to the peer is not
// known yet, and nothing is answered.
func (r *roceRequest) move(a *Attempt, p rdma.ConnParam, wait bool) (err error) {
	x := r.x
	reply := x.reply(a.qp.Num(), &p)
	var attr protocol.Attr
	x.m.gsi().Do(func(time.Time, *protocol.Manager) { attr = x.conn.Attr(reply) })
	// The QP takes packets, and may send, before the peer knows that it does: what comes with the
	// peer's word that it is ready, or before it, is answered (docs/decisions.md#C2).
	if err = x.id.moveQP(a, &attr, wait); err != nil {
		if wait || !errors.Is(err, syscall.EINPROGRESS) {
			x.end()
		}
		return err
	}
	return x.accept(reply)
}

// reply is the peer's answer: what p asks for, for the QP with a number.
func (x *exchange) reply(qpn uint32, p *rdma.ConnParam) *protocol.Reply {
	resources, depth := x.id.user.resources(p)
	return &protocol.Reply{
		QPN: qpn, SRQ: p.RoCE.SRQ, ResponderResources: resources, InitiatorDepth: depth,
		RNRRetries: retries(p.RoCE.RNRRetry), FlowControl: p.RoCE.FlowControl,
		PrivateData: p.PrivateData,
	}
}

// accept sends a reply.
func (x *exchange) accept(reply *protocol.Reply) (err error) {
	id := x.id
	var attr protocol.Attr
	x.m.gsi().Do(func(time.Time, *protocol.Manager) { attr = x.conn.Attr(reply) })
	id.mu.Lock()
	x.got = rdma.ConnParam{
		PrivateData: x.asked.PrivateData, IRD: shownReads(uint16(attr.MaxDestRead)),
		ORD: shownReads(uint16(attr.MaxRead)), RoCE: x.asked.RoCE,
	}
	id.mu.Unlock()
	if !x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = x.conn.Accept(now, reply) }) {
		err = rdma.ErrClosed
	}
	if err != nil {
		return errno(syscall.ECONNABORTED, "accept: the peer has given up")
	}
	return nil
}

func (r *roceRequest) reject(privateData []byte) (hangUp func(), err error) {
	if r.x.query != nil {
		return nil, r.answer(&protocol.Answer{Status: mad.SIDRRejected, PrivateData: privateData})
	}
	r.x.id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) {
		err = r.x.conn.Reject(now, privateData)
	})
	return nil, err
}

// answer answers a look-up.
func (r *roceRequest) answer(a *protocol.Answer) (err error) {
	if !r.x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = r.x.query.Answer(now, a) }) {
		return rdma.ErrClosed
	}
	return err
}

func (r *roceRequest) drop() {
	if r.x.query != nil {
		_ = r.answer(&protocol.Answer{Status: mad.SIDRRejected}) // an error: nobody asks any more
		return
	}
	r.x.end()
}

// acceptDatagrams answers a look-up with a QP: there is no connection, and no event follows.
func (id *ID) acceptDatagrams(qp Connectable, p rdma.ConnParam) error {
	if err := checkRoCE(p.PrivateData, protocol.MaxAnswerData); err != nil {
		return err
	}
	a := protocol.Answer{QPN: p.RoCE.QPN, QKey: p.RoCE.QKey, PrivateData: p.PrivateData}
	if qp != nil {
		q := qp.CM()
		if q == nil || q.User() != id.user {
			return invalid("accept with a QP of another device")
		}
		a.QPN = q.Num()
	}
	if a.QKey == 0 {
		a.QKey = mad.UDPQKey
	}
	r, err := id.takeRequest(stepAccept)
	if err != nil {
		return err
	}
	id.mu.Lock()
	_ = id.stepLocked(stepEstablished) // an error: id is closed
	id.mu.Unlock()
	if err := r.(*roceRequest).answer(&a); err != nil {
		return errno(syscall.ECONNABORTED, "accept: the peer has given up")
	}
	return nil
}
