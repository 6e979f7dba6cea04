package cm

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// A state is how far a Conn has come.
type state uint8

const (
	stateAsking      state = iota // a REQ is out
	stateReplied                  // a REP has come, the owner readies its QP
	stateAsked                    // a REQ has come
	stateReplying                 // a REP is out
	stateEstablished              //
	stateLeaving                  // a DREQ is out
	stateTimeWait                 // packets may be on their way
	stateRejected                 // a REJ is kept for who asks again
	stateGone
)

// A Conn is one end of a connection. A call that is not for its state returns ErrState.
type Conn struct {
	// Owner is the caller's.
	Owner any

	m         *Manager
	num       uint64
	state     state
	since     time.Time // when the peer's QP came to be known
	active    bool
	local     netip.Addr
	peer      netip.Addr
	localID   uint32
	remoteID  uint32
	guid      uint64 // the peer's device
	exchange  uint64 // transaction of the set-up
	listener  *Listener
	share     peerKey  // of what a peer has asked for
	account   *Account // who has asked, of this device
	half      bool     // counted as half open
	waiting   bool     // and as waiting at listener
	held      bool     // and as what the peer has
	ownerless bool     // closed: nobody is told any more
	retries   uint8

	qpn, peerQPN     uint32
	psn, peerPSN     uint32 // what this end expects first; what the peer does
	depth, resources uint8  // initiator depth and responder resources of this end, as agreed
	path             mad.Path
	mtu              uint8
	retryCount       uint8
	rnrRetries       uint8 // of this end's QP
	ackTimeout       uint8

	rtu   []byte // private data of the RTU, which is sent for each REP
	sent  []byte // what is repeated
	kind  mad.Attribute
	left  int // repeats
	every time.Duration
	// an MRA has come for what was sent last: it has been given the time that it asks for
	patient bool
	timer   timer
	kept    *list.Element
}

// A Request says what Connect asks for.
type Request struct {
	From, To   netip.Addr
	SourcePort uint16
	Service    Service
	QPN        uint32
	SRQ        bool
	Account    *Account `json:"-"` // who asks, or nil
	// ResponderResources and InitiatorDepth are Reads and atomics at once that this end answers, and
	// that it would have under way.
	ResponderResources, InitiatorDepth uint8
	Retries, RNRRetries                uint8 // of the peer's QP both, and Retries of this end's too
	FlowControl                        bool
	PathMTU                            uint8 // code; 0: the device's
	ACKTimeout                         uint8 // code; 0: DefaultACKTimeout
	TrafficClass                       uint8
	// up to MaxConnectData, or MaxServiceData of a service with an ID of its own
	PrivateData []byte
}

// Connect asks a peer for a connection. EventReplied, EventRejected or EventUnreachable follows.
func (m *Manager) Connect(now time.Time, r *Request) (c *Conn, err error) {
	err = m.made(now, Call{Kind: CallConnect, What: r, Account: r.Account}, func() (uint64, error) {
		c, err = m.connect(now, r)
		return c.Number(), err
	})
	return c, err
}

func (m *Manager) connect(now time.Time, r *Request) (*Conn, error) {
	most := MaxConnectData
	if r.Service.ID != 0 {
		most = MaxServiceData
	}
	if len(r.PrivateData) > most {
		return nil, fmt.Errorf("connect with %d octets, at most %d: %w", len(r.PrivateData), most,
			ErrPrivate)
	}
	c := &Conn{
		m: m, num: m.number(), state: stateAsking, active: true, local: plain(r.From), peer: plain(r.To),
		localID: newID(m, m.conns), exchange: m.transaction(), psn: m.psn(), qpn: r.QPN,
		account: r.Account,
		depth:   r.InitiatorDepth, resources: r.ResponderResources, mtu: r.PathMTU,
		retryCount: r.Retries & 7, retries: cmRetries, ackTimeout: r.ACKTimeout & 31,
		every: 2*duration(lifetime) + duration(cmTimeout),
	}
	if c.mtu == 0 {
		c.mtu = m.mtu()
	}
	if c.ackTimeout == 0 {
		c.ackTimeout = DefaultACKTimeout
	}
	c.path = mad.Path{
		LocalLID: permissive, RemoteLID: permissive, LocalGID: mad.GIDOf(c.local),
		RemoteGID: mad.GIDOf(c.peer), FlowLabel: m.draw() & 0xfffff, TrafficClass: r.TrafficClass,
		HopLimit: hopLimit, ACKTimeout: c.ackTimeout,
	}
	var private []byte
	if r.Service.ID == 0 {
		head := mad.Address{Source: c.local, Dest: c.peer, Port: r.SourcePort}
		private = head.Append(nil)
	}
	c.timer.due = c.expire
	m.conns[c.localID] = c
	c.begin(now, c.exchange, &mad.REQ{
		LocalID: c.localID, ServiceID: r.Service.id(), GUID: m.cfg.GUID, QPN: r.QPN,
		ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth,
		RemoteCMTimeout: cmTimeout, FlowControl: r.FlowControl, StartingPSN: c.psn,
		LocalCMTimeout: cmTimeout, Retries: c.retryCount, PKey: fullMember, PathMTU: c.mtu,
		RNRRetries: r.RNRRetries & 7, MaxCMRetries: cmRetries, SRQ: r.SRQ, Primary: c.path,
		PrivateData: append(private, r.PrivateData...),
	})
	return c, nil
}

const (
	permissive = 0xffff // LID of those that have none
	fullMember = 0xffff // P_Key
	hopLimit   = 64
)

// A Reply says what Accept agrees to.
type Reply struct {
	QPN                                uint32
	SRQ                                bool
	ResponderResources, InitiatorDepth uint8 // as a Request's; no more than what was asked is given
	RNRRetries                         uint8 // of the peer's QP
	FlowControl                        bool
	PrivateData                        []byte // up to MaxAcceptData
}

// Accept answers a request. EventEstablished follows, or EventUnreachable or EventRejected. The QP
// should be ready for packets: see Attr.
func (c *Conn) Accept(now time.Time, r *Reply) error {
	return c.m.noted(now, Call{Kind: CallAccept, Of: c.num, What: r}, func() error {
		return c.accept(now, r)
	})
}

func (c *Conn) accept(now time.Time, r *Reply) error {
	switch {
	case c.state != stateAsked:
		return fmt.Errorf("accept: %w", ErrState)
	case len(r.PrivateData) > MaxAcceptData:
		return fmt.Errorf("accept with %d octets, at most %d: %w", len(r.PrivateData), MaxAcceptData,
			ErrPrivate)
	}
	c.agree(r)
	c.decided()
	c.state, c.qpn = stateReplying, r.QPN
	c.begin(now, c.exchange, &mad.REP{
		LocalID: c.localID, RemoteID: c.remoteID, QPN: r.QPN, StartingPSN: c.psn,
		ResponderResources: c.resources, InitiatorDepth: c.depth, TargetACKDelay: ackDelay,
		FlowControl: r.FlowControl, RNRRetries: r.RNRRetries & 7, SRQ: r.SRQ, GUID: c.m.cfg.GUID,
		PrivateData: r.PrivateData,
	})
	return nil
}

// agree bounds what this end has offered by what the peer has (C3).
func (c *Conn) agree(r *Reply) {
	c.resources, c.depth = min(c.resources, r.ResponderResources), min(c.depth, r.InitiatorDepth)
}

// Reject refuses a request for a program, or a peer's reply, with up to MaxRejectData octets for
// the peer's.
func (c *Conn) Reject(now time.Time, privateData []byte) error {
	return c.m.noted(now, Call{Kind: CallReject, Of: c.num, Octets: privateData}, func() error {
		return c.reject(now, privateData)
	})
}

func (c *Conn) reject(now time.Time, privateData []byte) error {
	switch {
	case c.state != stateAsked && c.state != stateReplied:
		return fmt.Errorf("reject: %w", ErrState)
	case len(privateData) > MaxRejectData:
		return fmt.Errorf("reject with %d octets, at most %d: %w", len(privateData), MaxRejectData,
			ErrPrivate)
	}
	if c.state == stateReplied {
		c.sendREJ(mad.AboutREP, mad.ConsumerRejection, privateData)
		c.ownerless = true
		c.timeWait(now)
		return nil
	}
	c.sendREJ(mad.AboutREQ, mad.ConsumerRejection, privateData)
	c.remember(now)
	return nil
}

// remember keeps a request that has come to nothing for those who ask again.
func (c *Conn) remember(now time.Time) {
	c.forget()
	c.state, c.ownerless = stateRejected, true
	c.m.asked[askedKey{c.peer, c.remoteID, c.guid}] = c
	c.keep()
	c.m.timers.set(&c.timer, now.Add(requestLife))
}

// keep has c, which is over and which nobody owns, kept. It is in the way of nothing that its peer
// asks for next: how many are kept has a bound of its own.
func (c *Conn) keep() {
	c.kept = c.m.keep(c)
	c.settled()
}

// settled gives back the place of c among what its peer has.
func (c *Conn) settled() {
	if c.held {
		c.held = false
		c.m.over(c.share)
	}
}

// Ready says that the QP is ready for the connection, which begins: the peer is told, and
// EventEstablished follows, in front of all that the peer does then. It gets up to MaxReadyData
// octets for its program.
func (c *Conn) Ready(now time.Time, privateData []byte) error {
	return c.m.noted(now, Call{Kind: CallReady, Of: c.num, Octets: privateData}, func() error {
		return c.ready(privateData)
	})
}

func (c *Conn) ready(privateData []byte) error {
	switch {
	case c.state != stateReplied:
		return fmt.Errorf("establish: %w", ErrState)
	case len(privateData) > MaxReadyData:
		return fmt.Errorf("establish with %d octets, at most %d: %w", len(privateData), MaxReadyData,
			ErrPrivate)
	}
	c.state, c.rtu = stateEstablished, clone(privateData)
	c.sendRTU()
	c.tell(Event{Kind: EventEstablished})
	return nil
}

func (c *Conn) sendRTU() {
	c.send(c.exchange, &mad.RTU{LocalID: c.localID, RemoteID: c.remoteID, PrivateData: c.rtu})
}

// Established says that a packet of the peer's QP has come, which shows that the peer is ready; its
// word for that can be late, or lost. ErrOpen if it was not.
func (c *Conn) Established(now time.Time) error {
	return c.m.noted(now, Call{Kind: CallEstablished, Of: c.num}, func() error {
		return c.established()
	})
}

func (c *Conn) established() error {
	switch c.state {
	case stateReplying:
		c.establish(nil)
		return nil
	case stateEstablished:
		return fmt.Errorf("establish: %w", ErrOpen)
	}
	return fmt.Errorf("establish: %w", ErrState)
}

func (c *Conn) establish(private []byte) {
	c.m.timers.stop(&c.timer)
	c.sent = nil
	c.m.peers[c.share].hears = true
	c.opened()
	c.state = stateEstablished
	c.tell(Event{Kind: EventEstablished, PrivateData: private})
}

// Disconnect ends the connection. EventDisconnected follows, unless it has come, and then
// EventTimeWaitOver. The QP should be in Error.
func (c *Conn) Disconnect(now time.Time) error {
	return c.m.noted(now, Call{Kind: CallDisconnect, Of: c.num}, func() error {
		return c.disconnect(now)
	})
}

func (c *Conn) disconnect(now time.Time) error {
	switch c.state {
	case stateEstablished:
		c.state = stateLeaving
		id := c.exchange
		if !c.active {
			id = c.m.transaction()
		}
		c.begin(now, id, &mad.DREQ{LocalID: c.localID, RemoteID: c.remoteID, RemoteQPN: c.peerQPN})
	case stateReplying: // whether the peer is there is not known
		c.sendREJ(mad.AboutOther, mad.ConsumerRejection, nil)
		c.tell(Event{Kind: EventDisconnected})
		c.timeWait(now)
	case stateLeaving, stateTimeWait:
	default:
		return fmt.Errorf("disconnect: %w", ErrState)
	}
	return nil
}

// Close gives a Conn up: the peer learns it, and the owner hears no more. What has to be repeated
// or waited for goes on without it.
func (c *Conn) Close(now time.Time) {
	_ = c.m.noted(now, Call{Kind: CallClose, Of: c.num}, func() error { // which does not fail
		c.close(now)
		return nil
	})
}

func (c *Conn) close(now time.Time) {
	if c.ownerless {
		return
	}
	c.ownerless = true
	switch c.state {
	case stateAsking:
		c.giveUp()
		c.drop()
	case stateAsked:
		c.sendREJ(mad.AboutREQ, mad.ConsumerRejection, nil)
		c.remember(now)
	case stateReplied:
		c.sendREJ(mad.AboutREP, mad.ConsumerRejection, nil)
		c.timeWait(now)
	case stateReplying, stateEstablished:
		_ = c.disconnect(now) // it can in these states
	case stateTimeWait:
		c.keep()
	case stateRejected: // by its peer
		c.remember(now)
	default: // it is on its way out
	}
}

// giveUp tells a peer that has not answered that its answer is no longer waited for. As it may not
// have an id, what it knows is the device and the own id.
func (c *Conn) giveUp() {
	guid := binary.BigEndian.AppendUint64(nil, c.m.cfg.GUID)
	r := &mad.REJ{LocalID: c.localID, RemoteID: c.remoteID, Reason: mad.Timeout, Info: guid,
		InfoLen: uint8(len(guid))}
	if c.state == stateReplying {
		r.About = mad.AboutREP
	}
	c.sendFinal(r)
}

func (c *Conn) sendREJ(about uint8, reason mad.Reason, private []byte) {
	c.sendFinal(&mad.REJ{LocalID: c.localID, RemoteID: c.remoteID, About: about, Reason: reason,
		PrivateData: private})
}

// sendFinal sends a REJ, which is repeated only if the peer asks again.
func (c *Conn) sendFinal(r *mad.REJ) {
	c.sent, c.kind = mad.Append(nil, c.exchange, r), mad.AttrREJ
	c.transmit(c.sent, c.kind)
}

func (c *Conn) send(transaction uint64, msg mad.Message) {
	c.transmit(mad.Append(nil, transaction, msg), msg.Attribute())
}

func (c *Conn) transmit(b []byte, a mad.Attribute) {
	c.m.send(Packet{From: c.local, To: c.peer, TrafficClass: c.path.TrafficClass, Answers: !c.active,
		Of: c.num, MAD: b}, a)
}

// begin sends a message that is repeated until it is answered.
func (c *Conn) begin(now time.Time, transaction uint64, msg mad.Message) {
	c.sent, c.kind, c.left = mad.Append(nil, transaction, msg), msg.Attribute(), int(c.retries)
	c.patient = false
	c.transmit(c.sent, c.kind)
	c.m.timers.set(&c.timer, now.Add(c.every))
}

// again repeats what was sent last.
func (c *Conn) again() {
	c.m.stats.Retries[c.kind-mad.AttrREQ]++
	c.transmit(c.sent, c.kind)
}

// expire is what happens when nothing has come in time.
func (c *Conn) expire(now time.Time) {
	switch c.state {
	case stateAsking, stateReplying, stateLeaving:
		if c.left > 0 {
			c.left--
			c.patient = false
			if c.state != stateReplying || c.m.mayRepeat(c.share) {
				c.again()
			}
			c.m.timers.set(&c.timer, now.Add(c.every))
			return
		}
	case stateAsked:
		c.tell(Event{Kind: EventRejected, Reason: mad.Timeout})
		c.drop()
		return
	case stateTimeWait:
		c.tell(Event{Kind: EventTimeWaitOver})
		if !c.active && c.sent != nil { // the peer may not have heard our REJ
			c.remember(now)
			return
		}
		c.drop()
		return
	default:
		c.drop()
		return
	}
	switch c.state {
	case stateAsking:
		c.giveUp()
		c.tell(Event{Kind: EventUnreachable, TimedOut: true})
		c.drop()
	case stateReplying:
		c.giveUp()
		c.tell(Event{Kind: EventUnreachable, TimedOut: true})
		c.timeWait(now)
	default:
		c.tell(Event{Kind: EventDisconnected, TimedOut: true})
		c.timeWait(now)
	}
}

// timeWait waits until no packet of the connection can be on its way. The peer may use its QP for
// another connection meanwhile; that is its business.
func (c *Conn) timeWait(now time.Time) {
	c.decided()
	c.opened()
	c.disconnected()
	c.state = stateTimeWait
	if c.kind != mad.AttrREJ {
		c.sent = nil
	}
	if c.ownerless {
		c.keep()
	}
	c.m.timers.set(&c.timer, now.Add(within(c.ackTimeout, 0, mostTimeout)))
}

func (c *Conn) tell(e Event) {
	if !c.ownerless {
		e.Conn = c
		c.m.tell(e)
	}
}

func (c *Conn) decided() {
	if c.waiting {
		c.waiting = false
		c.listener.decided(c.share)
	}
}

func (c *Conn) opened() {
	if c.half {
		c.half = false
		c.listener.opened(c.share)
	}
}

// disconnected frees the peer's QP for another connection.
func (c *Conn) disconnected() {
	key := endKey{c.peer, c.guid, c.peerQPN}
	if c.m.connected[key] == c {
		delete(c.m.connected, key)
	}
}

// forget takes c out of all tables.
func (c *Conn) forget() {
	m := c.m
	c.decided()
	c.opened()
	c.disconnected()
	m.timers.stop(&c.timer)
	if m.conns[c.localID] == c {
		delete(m.conns, c.localID)
	}
	if key := (askedKey{c.peer, c.remoteID, c.guid}); m.asked[key] == c {
		delete(m.asked, key)
	}
	if c.kept != nil {
		m.kept.Remove(c.kept)
		c.kept = nil
	}
	c.settled()
}

func (c *Conn) drop() {
	c.forget()
	c.state, c.sent = stateGone, nil
}

// An Attr is what the QP of a connection is given: the attributes of ibv_modify_qp.
type Attr struct {
	DestQPN       uint32
	RQPSN, SQPSN  uint32
	PathMTU       uint8 // code
	MaxRead       uint8 // Reads and atomics under way
	MaxDestRead   uint8 // and answered at once
	Timeout       uint8 // code of the local ACK timeout
	Retries       uint8
	RNRRetries    uint8
	TrafficClass  uint8
	HopLimit      uint8
	FlowLabel     uint32
	Local, Remote netip.Addr
	MinRNRTimer   uint8 // code
}

// Agreed reports whether the peer's QP is known, and the connection is not over: then there is an
// Attr.
func (c *Conn) Agreed() bool {
	return c.state == stateAsked || c.state == stateReplied || c.state == stateReplying ||
		c.state == stateEstablished
}

// Attr is what the QP is to be given, of the end that has asked once EventReplied has come. The end
// that accepts tells by r what it is going to.
func (c *Conn) Attr(r *Reply) Attr {
	a := Attr{
		DestQPN: c.peerQPN, RQPSN: c.psn, SQPSN: c.peerPSN, PathMTU: c.mtu, MaxRead: c.depth,
		MaxDestRead: c.resources, Timeout: c.ackTimeout, Retries: c.retryCount, RNRRetries: c.rnrRetries,
		TrafficClass: c.path.TrafficClass, HopLimit: hopLimit, FlowLabel: c.path.FlowLabel,
		Local: c.local, Remote: c.peer,
	}
	if r != nil {
		a.MaxRead, a.MaxDestRead = min(c.depth, r.InitiatorDepth), min(c.resources, r.ResponderResources)
	}
	return a
}
