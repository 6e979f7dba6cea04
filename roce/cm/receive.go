package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// req is a peer's wish to connect.
func (in *incoming) req(r *mad.REQ) {
	m := in.m
	key := askedKey{in.from, r.LocalID, r.GUID}
	if c := m.asked[key]; c != nil {
		in.duplicate(mad.AttrREQ)
		c.askedAgain(in)
		return
	}
	l := m.listener(r.ServiceID, in.to, false)
	if l == nil && in.waits(r.ServiceID) {
		return
	}
	head, private, reason := in.check(r, l)
	if reason != 0 {
		in.reject(r, reason)
		return
	}
	end := endKey{in.from, r.GUID, r.QPN}
	if old := m.connected[end]; old != nil {
		if in.now.Before(old.since.Add(duration(lifetime))) {
			return // it may be older than old is (C12)
		}
		in.reject(r, mad.StaleConnection)
		old.stale(in)
		return
	}
	share := in.keyOf(in.asker(r))
	if !m.admit(l, share) {
		return // the peer asks again, and the program may have answered some by then
	}
	c := &Conn{
		m: m, num: m.number(), state: stateAsked, since: in.now, local: in.to,
		peer: in.from, localID: newID(m, m.conns),
		remoteID: r.LocalID, guid: r.GUID, exchange: in.transaction, listener: l, share: share,
		half: true, waiting: true, held: true, retries: r.MaxCMRetries & 15, psn: m.psn(), peerQPN: r.QPN,
		peerPSN: r.StartingPSN, depth: r.ResponderResources, resources: r.InitiatorDepth, mtu: r.PathMTU,
		retryCount: r.Retries, rnrRetries: r.RNRRetries, ackTimeout: r.Primary.ACKTimeout,
		every: within(r.LocalCMTimeout, leastTimeout, mostTimeout),
		path:  mad.Path{TrafficClass: r.Primary.TrafficClass, FlowLabel: r.Primary.FlowLabel},
	}
	if c.ackTimeout == 0 { // the peer wants none of its own, which need not be ours
		c.ackTimeout = DefaultACKTimeout
	}
	c.timer.due = c.expire
	m.conns[c.localID], m.asked[key], m.connected[end] = c, c, c
	m.timers.set(&c.timer, in.now.Add(requestLife))
	m.tell(Event{
		Kind: EventRequest, Conn: c, Listener: l, Source: netip.AddrPortFrom(in.from, head.Port),
		Dest: in.to, ResponderResources: r.InitiatorDepth, InitiatorDepth: r.ResponderResources,
		Retries: r.Retries, RNRRetries: r.RNRRetries, FlowControl: r.FlowControl, SRQ: r.SRQ, QPN: r.QPN,
		PrivateData: clone(private),
	})
}

// asker is who of this device has sent r; nil: nobody has.
func (in *incoming) asker(r *mad.REQ) *Account {
	c := in.m.conns[r.LocalID]
	if c == nil || !c.active || c.local != in.from || c.peer != in.to || r.GUID != in.m.cfg.GUID {
		return nil
	}
	return c.account
}

// check looks whether a REQ can be taken; if not it says why.
func (in *incoming) check(r *mad.REQ, l *Listener) (head mad.Address, private []byte,
	reason mad.Reason) {
	private = r.PrivateData
	var err error
	rdmaCM := l != nil && l.key.service.ID == 0
	if rdmaCM {
		head, private, err = mad.ParseAddress(r.PrivateData)
	}
	switch {
	case l == nil:
		return head, nil, mad.InvalidServiceID
	case r.Transport != mad.TransportRC:
		return head, nil, mad.InvalidTransport
	case r.PKey&0x7fff != 0x7fff, r.Primary.RemoteGID != mad.GIDOf(in.to),
		r.Primary.LocalGID != mad.GIDOf(in.from):
		return head, nil, mad.InvalidGID
	case r.PathMTU == 0 || r.PathMTU > in.m.mtu():
		return head, nil, mad.InvalidMTU
	case r.QPN <= mad.QPN:
		return head, nil, mad.UnsupportedReq
	case err != nil || rdmaCM && (head.Source != in.from || head.Dest != in.to):
		// Only the address that a packet has come from is believed (C4).
		return head, nil, mad.ConsumerRejection
	}
	return head, private, 0
}

// reject refuses a REQ of which nothing is kept.
func (in *incoming) reject(r *mad.REQ, why mad.Reason) {
	in.answer(&mad.REJ{RemoteID: r.LocalID, About: mad.AboutREQ, Reason: why})
}

// askedAgain answers a REQ that has come before.
func (c *Conn) askedAgain(in *incoming) {
	switch c.state {
	case stateAsked:
		c.m.timers.set(&c.timer, in.now.Add(duration(mraService)+requestLife))
		c.send(c.exchange, &mad.MRA{LocalID: c.localID, RemoteID: c.remoteID, About: mad.AboutREQ,
			ServiceTimeout: mraService})
	case stateRejected:
		if c.ownerless { // else the program has not closed it, and its places are free when it is time
			c.m.timers.set(&c.timer, in.now.Add(requestLife))
		}
		if c.sent != nil {
			c.again()
		}
	case stateReplying:
		c.again()
	case stateTimeWait:
		if c.sent != nil {
			c.again()
		}
	default: // the peer has had its answer
	}
}

// stale ends a connection whose peer uses its QP for another one.
func (c *Conn) stale(in *incoming) {
	switch c.state {
	case stateEstablished:
		_ = c.disconnect(in.now) // it can in this state
	case stateAsked, stateReplying:
		c.rejected(in.now, Event{Kind: EventRejected, Reason: mad.StaleConnection})
	default: // over, or soon
	}
}

// conn is the connection that a message is about: it has the own id, and the peer's id and address.
func (in *incoming) conn(own, peers uint32) *Conn {
	c := in.m.conns[own]
	if c == nil || c.peer != in.from || c.remoteID != peers || c.state == stateAsking {
		return nil
	}
	return c
}

func (in *incoming) mra(r *mad.MRA) {
	c := in.m.conns[r.RemoteID]
	if c == nil || c.peer != in.from ||
		!(c.state == stateAsking && r.About == mad.AboutREQ ||
			c.state == stateReplying && r.About == mad.AboutREP && r.LocalID == c.remoteID) {
		return
	}
	if c.patient { // each message is waited for longer once (C8)
		in.duplicate(mad.AttrMRA)
		return
	}
	c.patient = true
	wait := within(r.ServiceTimeout, 0, mostService) + duration(lifetime)
	c.m.timers.set(&c.timer, in.now.Add(max(wait, c.every)))
}

func (in *incoming) rep(r *mad.REP) {
	m := in.m
	c := m.conns[r.RemoteID]
	switch {
	case c == nil:
		// Whoever has asked is gone, and the peer need not go on repeating (C6).
		in.answer(&mad.REJ{LocalID: r.RemoteID, RemoteID: r.LocalID, About: mad.AboutREP,
			Reason: mad.InvalidCommID})
		return
	case c.peer != in.from || !c.active:
		return
	case c.state != stateAsking:
		in.duplicate(mad.AttrREP)
		switch {
		case c.remoteID != r.LocalID:
		case c.state == stateEstablished:
			c.sendRTU()
		case c.state == stateReplied: // the program takes its time
			c.send(c.exchange, &mad.MRA{LocalID: c.localID, RemoteID: c.remoteID, About: mad.AboutREP,
				ServiceTimeout: mraService})
		}
		return
	}
	c.remoteID, c.guid = r.LocalID, r.GUID
	end := endKey{in.from, r.GUID, r.QPN}
	old := m.connected[end]
	if old != nil || r.QPN <= mad.QPN {
		why := mad.UnsupportedReq
		if old != nil {
			why = mad.StaleConnection
			old.stale(in)
		}
		c.sendREJ(mad.AboutREP, why, nil)
		c.tell(Event{Kind: EventRejected, Reason: why})
		c.drop()
		return
	}
	m.timers.stop(&c.timer)
	m.connected[end] = c
	c.state, c.since, c.sent, c.peerQPN, c.peerPSN = stateReplied, in.now, nil, r.QPN, r.StartingPSN
	c.rnrRetries = r.RNRRetries
	c.depth, c.resources = min(c.depth, r.ResponderResources), min(c.resources, r.InitiatorDepth)
	c.tell(Event{
		Kind: EventReplied, ResponderResources: c.resources, InitiatorDepth: c.depth,
		RNRRetries: r.RNRRetries, Retries: c.retryCount, FlowControl: r.FlowControl, SRQ: r.SRQ,
		QPN: r.QPN, PrivateData: clone(r.PrivateData),
	})
}

func (in *incoming) rtu(r *mad.RTU) {
	c := in.conn(r.RemoteID, r.LocalID)
	switch {
	case c == nil:
	case c.state == stateReplying:
		c.establish(clone(r.PrivateData))
	default:
		in.duplicate(mad.AttrRTU)
	}
}

// rej is the end of what has not begun, or of what has. It is never answered.
func (in *incoming) rej(r *mad.REJ) {
	c := in.m.conns[r.RemoteID]
	if r.RemoteID == 0 && r.Reason == mad.Timeout && len(r.Info) >= 8 {
		// The peer has had no answer and does not know our id.
		c = in.m.asked[askedKey{in.from, r.LocalID, binary.BigEndian.Uint64(r.Info)}]
	}
	if c == nil || c.peer != in.from || c.state != stateAsking && c.remoteID != r.LocalID {
		return
	}
	e := Event{Kind: EventRejected, Reason: r.Reason, PrivateData: clone(r.PrivateData)}
	switch c.state {
	case stateAsking:
		if r.About != mad.AboutREP {
			c.tell(e)
			c.drop()
		}
	case stateAsked, stateReplied, stateReplying:
		c.rejected(in.now, e)
	case stateEstablished:
		// That a REP is not known any more is said of one that has come late; that the peer has waited in
		// vain for what is to follow its REP ends the connection.
		if r.About == mad.AboutOther || r.About == mad.AboutREP && r.Reason == mad.Timeout {
			c.tell(e)
			c.timeWait(in.now)
		}
	case stateLeaving:
		c.tell(Event{Kind: EventDisconnected})
		c.timeWait(in.now)
	default: // it is over
	}
}

// rejected ends what has not come to a connection.
func (c *Conn) rejected(now time.Time, e Event) {
	c.tell(e)
	if c.state == stateAsked { // no QP had anything to do with it
		c.withdrawn(now)
		return
	}
	c.timeWait(now)
}

// withdrawn keeps a request that its peer has given up as remember does, but its places are taken
// until the program has closed it: it could be told of any number of requests else, each of which
// is given up behind its back.
func (c *Conn) withdrawn(now time.Time) {
	c.disconnected()
	delete(c.m.conns, c.localID)
	c.state = stateRejected
	c.m.timers.set(&c.timer, now.Add(requestLife))
}

func (in *incoming) dreq(r *mad.DREQ) {
	c := in.m.conns[r.RemoteID]
	drep := &mad.DREP{LocalID: r.RemoteID, RemoteID: r.LocalID}
	switch {
	case c == nil, c.state != stateAsking && c.remoteID != r.LocalID && c.peer == in.from:
		in.answer(drep) // it is over here
		return
	case c.peer != in.from, c.remoteID != r.LocalID, c.qpn != r.RemoteQPN:
		return
	}
	switch c.state {
	case stateReplying: // who ends it was ready; C1
		c.establish(nil)
		fallthrough
	case stateEstablished, stateLeaving:
		in.answer(drep)
		c.tell(Event{Kind: EventDisconnected, PrivateData: clone(r.PrivateData)})
		c.timeWait(in.now)
	case stateTimeWait:
		in.duplicate(mad.AttrDREQ)
		in.answer(drep)
	default: // the peer asks again
	}
}

func (in *incoming) drep(r *mad.DREP) {
	c := in.conn(r.RemoteID, r.LocalID)
	if c == nil || c.state != stateLeaving {
		return
	}
	c.tell(Event{Kind: EventDisconnected, PrivateData: clone(r.PrivateData)})
	c.timeWait(in.now)
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }
