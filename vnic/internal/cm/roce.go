package cm

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	protocol "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/vnic/internal/gsi"
)

// On a device of RoCE the set-up is roce/cm's, over QP 1, in place of MPA's over a stream: an ID
// has an exchange of messages there, and when the ends have agreed its QP is moved to RTS by its
// attributes. What programs see are the same calls and events, and those that only RoCE has.

// A RoCE is what the connection manager of a device of RoCE asks of it.
type RoCE struct {
	GSI      *gsi.Manager
	GIDIndex func(netip.Addr) (index uint8, ok bool) // of an address of the device
	Addrs    []netip.Addr                            // of the device
	// Join has packets to a multicast group come to the device, for the user of that number; each one
	// wants its Leave.
	Join, Leave func(user uint32, group netip.Addr) error
}

// An exchange is the messages of an ID, from Connect, or from a peer's request on. It is a
// gsi.Owner.
type exchange struct {
	m     *Manager
	id    *ID            // nil: a request that no ID could be made for
	asked rdma.ConnParam // of the end that connects, by its program; of the other, by the peer
	got   rdma.ConnParam // of the end that accepts, as agreed

	// One of them, which is gsi's.
	conn   *protocol.Conn
	lookup *protocol.Lookup
	query  *protocol.Query
}

func (m *Manager) gsi() *gsi.Manager { return m.cfg.RoCE.GSI }

// checkRoCE holds private data to what there is room for.
func checkRoCE(b []byte, most int) error {
	if len(b) > most {
		return fmt.Errorf("%d octets of private data, at most %d: %w", len(b), most, rdma.ErrInvalid)
	}
	return nil
}

// retries turns a program's count into a number of the wire.
func retries(v uint8) uint8 {
	switch v {
	case 0:
		return 7
	case rdma.NoRetry:
		return 0
	}
	return min(v, 7)
}

// shownRetries turns a number of the wire into what a program knows.
func shownRetries(v uint8) uint8 {
	if v == 0 {
		return rdma.NoRetry
	}
	return v
}

func (u *User) resources(p *rdma.ConnParam) (resources, depth uint8) {
	return uint8(min(reads(p.IRD, u.cfg.IRD), 0xff)), uint8(min(reads(p.ORD, u.cfg.ORD), 0xff))
}

// newExchangeLocked gives id an exchange.
//
// +checklocks:id.mu
func (id *ID) newExchangeLocked(p rdma.ConnParam) *exchange {
	x := &exchange{m: id.m, id: id, asked: p}
	id.exchange = x
	return x
}

// connectRoCE is Connect on a device of RoCE. It sends the request here: requests go out in the
// order of the calls.
func (id *ID) connectRoCE(qp Connectable, p rdma.ConnParam) error {
	most := protocol.MaxConnectData
	if id.space == PortSpaceUDP {
		most = protocol.MaxLookupData
	}
	if err := checkRoCE(p.PrivateData, most); err != nil {
		return err
	}
	var a *Attempt
	if id.space != PortSpaceUDP {
		var err error
		if a, err = id.newAttempt(qp); err != nil {
			return err
		}
	}
	id.mu.Lock()
	if err := id.stepLocked(stepConnect); err != nil {
		id.mu.Unlock()
		a.release(false, nil)
		return err
	}
	id.attempt = a
	x := id.newExchangeLocked(p)
	local, remote := id.local, id.remote
	id.mu.Unlock()
	var err error
	if !id.m.gsi().Do(func(now time.Time, c *protocol.Manager) {
		err = x.ask(now, c, a, local, remote)
	}) {
		err = rdma.ErrClosed
	}
	if err != nil {
		id.mu.Lock()
		_ = id.stepLocked(stepFail) // an error: id is closed
		id.attempt, id.exchange = nil, nil
		id.mu.Unlock()
		a.release(false, nil)
		return fmt.Errorf("connect: %w", err)
	}
	id.mu.Lock()
	closed := id.state == stateClosed
	id.mu.Unlock()
	if closed { // before there was something to end
		x.end()
	}
	return nil
}

// ask sends the request.
func (x *exchange) ask(now time.Time, c *protocol.Manager, a *Attempt, local,
	remote netip.AddrPort) (err error) {
	p, r := &x.asked, &x.asked.RoCE
	if a == nil {
		x.lookup, err = c.Lookup(now, &protocol.LookupRequest{
			From: local.Addr(), To: remote.Addr(), SourcePort: local.Port(),
			Service: protocol.Service{Space: mad.PortSpaceUDP, Port: remote.Port()},
			Account: x.id.user.account, TrafficClass: r.TrafficClass, PrivateData: p.PrivateData,
		})
		if err == nil {
			x.lookup.Owner = x
		}
		return err
	}
	resources, depth := x.id.user.resources(p)
	x.conn, err = c.Connect(now, &protocol.Request{
		From: local.Addr(), To: remote.Addr(), SourcePort: local.Port(),
		Service: protocol.Service{Space: mad.PortSpaceTCP, Port: remote.Port()},
		Account: x.id.user.account, QPN: a.qp.Num(), SRQ: r.SRQ,
		ResponderResources: resources, InitiatorDepth: depth,
		Retries: retries(r.RetryCount), RNRRetries: retries(r.RNRRetry), FlowControl: r.FlowControl,
		ACKTimeout: r.ACKTimeout, TrafficClass: r.TrafficClass, PrivateData: p.PrivateData,
	})
	if err == nil {
		x.conn.Owner = x
	}
	return err
}

// Happened implements gsi.Owner.
func (x *exchange) Happened(e protocol.Event) {
	id := x.id
	if id == nil {
		return
	}
	id.mu.Lock()
	state, a := id.state, id.attempt
	id.mu.Unlock()
	switch e.Kind {
	case protocol.EventReplied:
		if !id.user.start(func() { x.ready(a, &e) }) {
			x.end()
		}
	case protocol.EventEstablished:
		id.established(x.got)
	case protocol.EventFound:
		x.found(&e)
	case protocol.EventRejected:
		x.rejected(state, a, &e)
	case protocol.EventUnreachable:
		id.fail(a, Event{
			Type: Unreachable, Status: -int32(syscall.ETIMEDOUT),
			Err: errno(syscall.ETIMEDOUT, "%v does not answer", id.Remote()),
		})
	case protocol.EventDisconnected:
		var err error
		if e.TimedOut {
			err = errno(syscall.ETIMEDOUT, "%v does not answer the disconnect", id.Remote())
		}
		x.disconnected(err)
	case protocol.EventTimeWaitOver:
		id.mu.Lock()
		if id.attempt == a {
			id.attempt = nil
		}
		id.mu.Unlock()
		a.release(false, nil)
		id.emit(Event{Type: TimewaitExit})
	default: // of listeners
	}
}

// ready moves the QP of the end that has connected to RTS, and tells both.
func (x *exchange) ready(a *Attempt, e *protocol.Event) {
	id := x.id
	var attr protocol.Attr
	id.m.gsi().Do(func(time.Time, *protocol.Manager) { attr = x.conn.Attr(nil) })
	err := id.moveQP(a, &attr)
	if err == nil {
		if !id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = x.conn.Ready(now) }) {
			err = rdma.ErrClosed
		}
	}
	if err != nil {
		x.end()
		id.fail(a, Event{Type: ConnectError, Status: status(err, syscall.EINVAL), Err: err})
		return
	}
	id.established(rdma.ConnParam{
		PrivateData: e.PrivateData, IRD: shownReads(uint16(e.ResponderResources)),
		ORD: shownReads(uint16(e.InitiatorDepth)),
		RoCE: rdma.RoCEParam{
			RetryCount: shownRetries(e.Retries), RNRRetry: shownRetries(e.RNRRetries),
			FlowControl: e.FlowControl, SRQ: e.SRQ, QPN: e.QPN,
		},
	})
}

// found ends a look-up.
func (x *exchange) found(e *protocol.Event) {
	id := x.id
	if e.Status != mad.SIDRValid {
		id.fail(nil, Event{
			Type: Unreachable, Status: int32(e.Status),
			Err:   errno(syscall.ECONNREFUSED, "%v has no QP for it, status %d", id.Remote(), e.Status),
			Param: rdma.ConnParam{PrivateData: e.PrivateData},
		})
		return
	}
	id.established(rdma.ConnParam{PrivateData: e.PrivateData, RoCE: rdma.RoCEParam{
		QPN: e.QPN, QKey: e.QKey, Path: id.path(id.Local().Addr(), id.Remote().Addr(),
			x.asked.RoCE.TrafficClass, 0),
	}})
}

// rejected ends what has not become a connection, or one whose peer has given it up.
func (x *exchange) rejected(state state, a *Attempt, e *protocol.Event) {
	id := x.id
	var err error
	switch e.Reason {
	case mad.ConsumerRejection:
		err = &rdma.RejectedError{PrivateData: e.PrivateData}
	case mad.InvalidServiceID:
		err = errno(syscall.ECONNREFUSED, "nobody listens on %v", id.Remote())
	default:
		err = errno(syscall.ECONNREFUSED, "%v refuses the connection, reason %d", id.Remote(), e.Reason)
	}
	ev := Event{Type: Rejected, Status: int32(e.Reason), Err: err,
		Param: rdma.ConnParam{PrivateData: e.PrivateData}}
	switch state {
	case stateConnecting:
		id.fail(a, ev)
	case stateRequest:
		if _, err := id.takeRequest(stepReject); err == nil {
			id.emit(ev)
		}
	default:
		if a != nil {
			a.qp.Disconnect(a)
		}
		x.disconnected(errno(syscall.ECONNRESET, "%v has given the connection up, reason %d",
			id.Remote(), e.Reason))
	}
}

// disconnected tells, once, that the peer has ended the connection, or that it has heard that we
// have, or that the QP is gone. Unlike a stream's the QP goes on until its program ends it, too.
func (x *exchange) disconnected(err error) {
	id := x.id
	id.mu.Lock()
	told := id.state == stateDisconnected // the QP was destroyed while the peer's answer came
	_ = id.stepLocked(stepDisconnected)   // an error: id is closed, and the event goes nowhere
	id.mu.Unlock()
	if told {
		return
	}
	ev := Event{Type: Disconnected, Err: err}
	if err != nil {
		ev.Status = status(err, syscall.ECONNRESET)
	}
	id.emit(ev)
}

// disconnect is Disconnect on a device of RoCE.
func (id *ID) disconnectRoCE() error {
	id.mu.Lock()
	a, x, s := id.attempt, id.exchange, id.state
	id.mu.Unlock()
	if s != stateConnected && s != stateDisconnected || x == nil || id.space == PortSpaceUDP {
		return fmt.Errorf("disconnect: %w", rdma.ErrNotConnected)
	}
	if a != nil {
		a.qp.Disconnect(a)
	}
	id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) {
		_ = x.conn.Disconnect(now) // an error: it is over
	})
	return nil
}

// end gives the exchange up; the peer is told.
func (x *exchange) end() {
	x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) {
		switch {
		case x.conn != nil:
			x.conn.Close(now)
		case x.lookup != nil:
			x.lookup.Cancel()
		}
	})
}

// path is how packets go to a peer.
func (id *ID) path(local, remote netip.Addr, class uint8, label uint32) rdma.AHAttr {
	index, _ := id.m.cfg.RoCE.GIDIndex(local)
	return rdma.AHAttr{GID: rdma.GIDOf(remote), GIDIndex: index, HopLimit: 64, TrafficClass: class,
		FlowLabel: label, Port: 1, Global: true}
}

// moveQP moves a's QP to RTS, with what was agreed on. It waits for the way to the peer.
func (id *ID) moveQP(a *Attempt, p *protocol.Attr) error {
	rights := rdma.RemoteWrite
	if p.MaxDestRead > 0 {
		rights |= rdma.RemoteRead | rdma.RemoteAtomic
	}
	attr := rdma.QPAttr{
		Access: rights, Port: 1, Path: id.path(p.Local, p.Remote, p.TrafficClass, p.FlowLabel),
		PathMTU: rdma.MTU(p.PathMTU), DestQPN: p.DestQPN, RQPSN: p.RQPSN, SQPSN: p.SQPSN,
		MaxDestRead: p.MaxDestRead, MaxRead: p.MaxRead, MinRNRTimer: p.MinRNRTimer,
		Timeout: p.Timeout, RetryCount: p.Retries, RNRRetry: p.RNRRetries,
	}
	for _, step := range []struct {
		to   rdma.QPState
		mask rdma.QPAttrMask
	}{
		{rdma.QPInit, rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess},
		{rdma.QPRTR, rdma.AttrPath | rdma.AttrPathMTU | rdma.AttrDestQPN | rdma.AttrRQPSN |
			rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer},
		{rdma.QPRTS, rdma.AttrSQPSN | rdma.AttrTimeout | rdma.AttrRetryCount | rdma.AttrRNRRetry |
			rdma.AttrMaxRead},
	} {
		if a.Canceled() {
			return fmt.Errorf("connect QP %d: %w", a.qp.Num(), rdma.ErrClosed)
		}
		attr.State = step.to
		if err := a.qp.Modify(&attr, step.mask|rdma.AttrState); err != nil {
			return err
		}
	}
	return nil
}

// afterFlush calls f when the QP of a connection that is over has been flushed; it does not wait.
func (id *ID) afterFlush(f func()) {
	id.mu.Lock()
	a := id.attempt
	id.mu.Unlock()
	if a == nil || id.m.cfg.RoCE == nil {
		f() // it has been
		return
	}
	if !id.user.start(func() {
		_ = a.qp.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState) // an error: it is gone
		f()
	}) {
		f()
	}
}

// Heard says that a packet has come for the QP: the peer is ready, be its word for that late or
// lost. Whoever runs the QP calls this.
func (a *Attempt) Heard() {
	if a == nil || !a.accepts {
		return
	}
	id := a.id
	id.mu.Lock()
	x := id.exchange
	id.mu.Unlock()
	if x != nil {
		id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { x.conn.Established(now) })
	}
}

// Gone says that the QP is destroyed: its connection is over. Whoever runs it calls this.
func (a *Attempt) Gone() {
	if a == nil || a.id == nil {
		return
	}
	id := a.id
	a.canceled.Store(true)
	id.user.start(func() { // false: the user is shut down, and its ids with it
		id.mu.Lock()
		x, s := id.exchange, id.state
		if id.attempt == a {
			id.attempt = nil
		}
		id.mu.Unlock()
		if x == nil {
			return
		}
		x.end()
		if s == stateConnected {
			x.disconnected(nil)
		}
	})
}

// listenRoCE takes requests on a device of RoCE.
//
// +checklocks:id.mu
func (id *ID) listenRoCELocked(l *acceptor) error {
	var err error
	s := protocol.Service{Space: mad.PortSpaceTCP, Port: id.local.Port()}
	if id.space == PortSpaceUDP {
		s.Space = mad.PortSpaceUDP
	}
	addr := id.local.Addr()
	if !id.m.gsi().Do(func(_ time.Time, c *protocol.Manager) {
		if l.roce, err = c.Listen(s, addr, l.backlog); err == nil {
			l.roce.Owner, l.roce.Account = (*roceAcceptor)(l), id.user.account
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

// acceptNow does nothing: the QP's way to its peer may have to be found.
func (r *roceRequest) acceptNow(*Attempt, rdma.ConnParam) (done bool, err error) {
	return false,
		nil
}

func (r *roceRequest) answered() {}

func (r *roceRequest) accept(_ context.Context, a *Attempt, p rdma.ConnParam) (err error) {
	x := r.x
	id := x.id
	resources, depth := id.user.resources(&p)
	reply := &protocol.Reply{
		QPN: a.qp.Num(), SRQ: p.RoCE.SRQ, ResponderResources: resources, InitiatorDepth: depth,
		RNRRetries: retries(p.RoCE.RNRRetry), FlowControl: p.RoCE.FlowControl,
		PrivateData: p.PrivateData,
	}
	var attr protocol.Attr
	id.m.gsi().Do(func(time.Time, *protocol.Manager) { attr = x.conn.Attr(reply) })
	a.accepts = true
	// The QP takes packets, and may send, before the peer knows that it does: what comes with the
	// peer's word that it is ready, or before it, is answered (docs/decisions.md#C2).
	if err = id.moveQP(a, &attr); err != nil {
		x.end()
		return err
	}
	x.got = rdma.ConnParam{
		PrivateData: x.asked.PrivateData, IRD: shownReads(uint16(attr.MaxDestRead)),
		ORD: shownReads(uint16(attr.MaxRead)), RoCE: x.asked.RoCE,
	}
	if !id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = x.conn.Accept(now, reply) }) {
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
