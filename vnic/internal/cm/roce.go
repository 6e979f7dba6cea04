package cm

import (
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
	// Has reports whether a user has a QP of a number.
	Has func(u *User, qpn uint32) bool
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
	own   uint32         // the number of a QP that its program moves by itself; 0: of the Attempt

	got      rdma.ConnParam // as agreed; guarded by id.mu
	answered bool           // of the end that connects: the peer has accepted; guarded by id.mu

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
	a, own, err := id.connectedQP(qp, &p)
	if err != nil {
		return err
	}
	id.mu.Lock()
	if err := id.stepLocked(stepConnect); err != nil {
		id.mu.Unlock()
		a.release(false, nil)
		return err
	}
	id.attempt = a
	x := id.newExchangeLocked(p)
	x.own = own
	local, remote := id.local, id.remote
	id.mu.Unlock()
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
	if x.id.space == PortSpaceUDP {
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
	qpn := x.own
	if a != nil {
		qpn = a.qp.Num()
	}
	x.conn, err = c.Connect(now, &protocol.Request{
		From: local.Addr(), To: remote.Addr(), SourcePort: local.Port(),
		Service: protocol.Service{Space: mad.PortSpaceTCP, Port: remote.Port()},
		Account: x.id.user.account, QPN: qpn, SRQ: r.SRQ,
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
		x.replied(a, &e)
	case protocol.EventEstablished:
		x.established()
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

// replied has the QP of the end that has connected moved to RTS, by the program if it is its own.
func (x *exchange) replied(a *Attempt, e *protocol.Event) {
	id := x.id
	p := rdma.ConnParam{
		PrivateData: e.PrivateData, IRD: shownReads(uint16(e.ResponderResources)),
		ORD: shownReads(uint16(e.InitiatorDepth)),
		RoCE: rdma.RoCEParam{
			RetryCount: shownRetries(e.Retries), RNRRetry: shownRetries(e.RNRRetries),
			FlowControl: e.FlowControl, SRQ: e.SRQ, QPN: e.QPN,
		},
	}
	id.mu.Lock()
	x.got, x.answered = p, true
	id.mu.Unlock()
	if x.own != 0 {
		id.emit(Event{Type: ConnectResponse, Param: p})
		return
	}
	if a == nil { // the id or its QP has gone since the reply came, and whoever ended it ends x
		return
	}
	if !id.user.start(func() { x.ready(a) }) {
		x.end()
	}
}

// ready moves the QP of the end that has connected to RTS, and tells the peer; EventEstablished
// comes of that.
func (x *exchange) ready(a *Attempt) {
	id := x.id
	var attr protocol.Attr
	id.m.gsi().Do(func(time.Time, *protocol.Manager) { attr = x.conn.Attr(nil) })
	err := id.moveQP(a, &attr, true)
	if err == nil {
		err = x.sayReady()
	}
	if err != nil {
		x.end()
		id.fail(a, Event{Type: ConnectError, Status: status(err, syscall.EINVAL), Err: err})
	}
}

// sayReady tells the peer that the QP is ready.
func (x *exchange) sayReady() (err error) {
	if !x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = x.conn.Ready(now, nil) }) {
		err = rdma.ErrClosed
	}
	return err
}

// established tells that the connection is there, unless its program has said so itself.
func (x *exchange) established() {
	id := x.id
	id.mu.Lock()
	p, tell := x.got, x.own == 0 || !x.answered
	if id.stepLocked(stepEstablished) == nil {
		id.param = p
	}
	id.mu.Unlock()
	if tell {
		id.emit(Event{Type: Established, Param: p})
	}
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
			a.qp.Disconnect(a, nil)
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
	tell := func() {
		id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) {
			_ = x.conn.Disconnect(now) // an error: it is over
		})
	}
	if a == nil {
		tell()
		return nil
	}
	// Behind what the QP still owes its peer, who is told that the connection is over and may give it
	// up. So who runs the QP tells, and where that one waits for memory of the program's that hangs,
	// so does the peer. A QP that is destroyed meanwhile has the peer told by its end.
	a.qp.Disconnect(a, tell)
	return nil
}

// end gives the exchange up; the peer is told.
func (x *exchange) end() {
	x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) {
		switch {
		case x.conn != nil:
			x.conn.Close(now)
		case x.lookup != nil:
			x.lookup.Cancel(now)
		}
	})
}
