package sctp

import (
	"fmt"
	"net/netip"
	"time"
)

// A State is one of an association's. RFC 9260, section 4.
type State uint8

const (
	StateClosed State = iota
	StateCookieWait
	StateCookieEchoed
	StateEstablished
	StateShutdownPending
	StateShutdownSent
	StateShutdownReceived
	StateShutdownAckSent
)

var stateNames = [...]string{
	"CLOSED", "COOKIE-WAIT", "COOKIE-ECHOED", "ESTABLISHED",
	"SHUTDOWN-PENDING", "SHUTDOWN-SENT", "SHUTDOWN-RECEIVED", "SHUTDOWN-ACK-SENT",
}

func (s State) String() string { return stateNames[s] }

// next holds, for each state, the states that may follow it. Every state may be followed by CLOSED,
// which nothing follows: an association that is set up anew is a new one.
//
//	COOKIE-WAIT <-> COOKIE-ECHOED        back when the peer finds its cookie stale
//	COOKIE-WAIT, COOKIE-ECHOED -> ESTABLISHED
//	ESTABLISHED -> SHUTDOWN-PENDING -> SHUTDOWN-SENT -> SHUTDOWN-ACK-SENT
//	ESTABLISHED, SHUTDOWN-PENDING -> SHUTDOWN-RECEIVED -> SHUTDOWN-ACK-SENT
var next = [...]uint16{
	StateClosed:           1<<StateCookieWait | 1<<StateEstablished,
	StateCookieWait:       1<<StateCookieEchoed | 1<<StateEstablished,
	StateCookieEchoed:     1<<StateCookieWait | 1<<StateEstablished,
	StateEstablished:      1<<StateShutdownPending | 1<<StateShutdownReceived,
	StateShutdownPending:  1<<StateShutdownSent | 1<<StateShutdownReceived,
	StateShutdownSent:     1 << StateShutdownAckSent,
	StateShutdownReceived: 1 << StateShutdownAckSent,
	StateShutdownAckSent:  0,
}

// setState moves a to state to. Only it and down assign a.state.
func (a *Association) setState(to State) {
	if to != a.state && next[a.state]&(1<<to) == 0 {
		panic(fmt.Sprintf("sctp: no transition from %v to %v", a.state, to))
	}
	a.state = to
}

// sends says whether DATA may go out; section 6.
func (s State) sends() bool {
	return s == StateEstablished || s == StateShutdownPending || s == StateShutdownReceived
}

// receives says whether DATA is taken.
func (s State) receives() bool {
	return s == StateEstablished || s == StateShutdownPending || s == StateShutdownSent
}

// An Association is one with a peer. It belongs to the owner of its Endpoint.
type Association struct {
	User any // the owner's, for what it likes

	e            *Endpoint
	num          uint64
	opt          *Options
	state        State
	lport, rport uint16
	locals       []netip.Addr
	paths        []*path
	primary      *path
	tag, peerTag uint32
	tie, peerTie uint32
	inbound      bool

	peerAdapts     bool
	peerAdaptation uint32

	// Set-up.
	t1           time.Time
	t1RTO        time.Duration
	setupDue     bool
	setupSent    time.Time
	setupTries   int
	setupPath    int
	initTSN      TSN
	cookie       []byte
	setupError   []byte // parameters of the INIT ACK to be reported
	preservative uint32

	// Answers to what has come, for one packet, and where it goes.
	ctl     []byte
	ctlPath *path

	sender
	receiver

	// Shutdown.
	t2, t5      time.Time
	t2RTO       time.Duration
	shutdownDue bool // SHUTDOWN or SHUTDOWN ACK

	errors   int       // section 8.1
	heard    time.Time // of the peer, last
	silentAt time.Time // when its silence is too long; zero: it has failed to answer nothing since
	beatHold time.Time
	maxData  int // MaxPayload as it was last told

	deadline time.Time
	heapAt   int // index in the heap of timers, plus one
	isReady  bool
}

func (e *Endpoint) newAssociation(opt *Options, locals []netip.Addr, lport,
	rport uint16) *Association {
	e.count++
	return &Association{e: e, num: e.number(), opt: opt, locals: locals, lport: lport, rport: rport,
		t1RTO: opt.RTOInitial}
}

// start sets what both sides have agreed on.
func (a *Association) start(tsn, peerTSN TSN, rwnd uint32, out, in uint16) {
	a.nextTSN, a.ackTSN = tsn, tsn-1
	a.rwnd = int(min(rwnd, 1<<30))
	a.peerMost = a.rwnd
	a.e.grown += streamsRoom(int(out), int(in)) - streamsRoom(a.Streams())
	a.outSSN = make([]uint16, out)
	a.have.init(peerTSN - 1)
	a.in = make([]inStream, in)
	a.advertised = a.opt.RecvBuffer
}

// streamsRoom is what so many streams take, octets.
func streamsRoom(out, in int) int { return 2*out + 32*in }

// establish enters ESTABLISHED.
func (a *Association) establish(now time.Time) {
	a.inbound = a.state == StateClosed
	a.setState(StateEstablished)
	a.t1, a.setupDue, a.cookie, a.setupError = time.Time{}, false, nil, nil
	a.errors = 0
	for _, p := range a.paths {
		a.beginHeartbeats(now, p)
	}
	a.maxData = a.MaxPayload()
	a.e.changed(a)
	*a.e.events.push() = Event{Kind: EventUp, Assoc: a}
}

// An EventKind says what an Event is about.
type EventKind uint8

const (
	// established; with Inbound one that began a new Association
	EventUp      EventKind = iota + 1
	EventMessage           // Msg
	// all messages up to number Acked have arrived, and there is room again
	EventAcked
	EventMaxPayload   // MaxPayload has changed
	EventPath         // Addr is Path now
	EventPeerShutdown // the peer shuts down: Send is over, what was sent will be delivered
	EventPeerError    // Err is the *PeerError that came
	EventDown         // the end, for Err; nil: by a shutdown
)

// A PathState is what has become of an address of the peer.
type PathState uint8

const (
	PathConfirmed PathState = iota + 1
	PathActive
	PathInactive
)

func (s PathState) String() string {
	return [...]string{"unconfirmed", "confirmed", "active", "inactive"}[s]
}

// An Event is something that the owner of an association wants to know. EventDown is the last.
type Event struct {
	Kind    EventKind
	Assoc   *Association
	Msg     *Message // to be released
	Acked   uint64
	Inbound bool
	Addr    netip.Addr
	Path    PathState
	Err     error
}

// NextEvent takes the oldest event; ok is false if there is none.
func (e *Endpoint) NextEvent() (ev Event, ok bool) {
	if e.events.len() == 0 {
		return Event{}, false
	}
	j := e.cfg.Journal
	if j == nil {
		return e.nextEvent(), true
	}
	j.Begin(&Call{Kind: CallEvent})
	ev = e.nextEvent()
	told := ev
	j.End(&Result{Event: &told})
	return ev, true
}

// nextEvent takes the oldest event, which there is.
func (e *Endpoint) nextEvent() (ev Event) {
	ev = *e.events.at(0)
	e.events.pop()
	if ev.Kind == EventUp {
		ev.Inbound = ev.Assoc.inbound
	}
	return ev
}

// event queues one for a. What is said of acknowledgements last is all that counts.
func (a *Association) event(ev Event) {
	ev.Assoc = a
	q := &a.e.events
	if n := q.len(); ev.Kind == EventAcked && n > 0 {
		if last := q.at(n - 1); last.Kind == EventAcked && last.Assoc == a {
			last.Acked = ev.Acked
			return
		}
	}
	*q.push() = ev
}

// input takes a packet from an address of a's peer. Section 8.5.
func (a *Association) input(in *inPacket) {
	rest := in.Data[headerLen:]
	c, _, _ := nextChunk(rest)
	setup := a.state == StateCookieWait || a.state == StateCookieEchoed
	switch {
	case c.typ() == chunkAbort, c.typ() == chunkShutdownComplete:
		// "If the Verification Tag field of the packet matches its own tag and the T bit is not
		// set OR if it is set to its Peer's Tag and the T bit is set": section 8.5.1 B and C.
		want := a.tag
		if c.flags()&flagT != 0 {
			want = a.peerTag
		}
		if in.tag != want || want == 0 {
			a.e.stats.BadTag++
			return
		}
	case c.typ() == chunkShutdownAck && setup:
		a.e.outOfTheBlue(in) // section 8.5.1 E
		return
	case in.tag != a.tag:
		a.e.stats.BadTag++
		return
	}
	a.inputRest(in, rest)
}

// inputRest takes chunks of a packet whose tag has been found good.
func (a *Association) inputRest(in *inPacket, rest []byte) {
	a.heard, a.silentAt = in.now, time.Time{}
	from := a.path(in.Src)
	if from != nil && from.encap != in.Encap {
		// "Update the remote encapsulation port after the verification of the tag": RFC 6951, 5.4.
		from.encap = in.Encap
		from.pmtu = min(from.pmtu, a.e.mtu(from.addr, from.encap))
	}
	for a.state != StateClosed {
		c, r, ok := nextChunk(rest)
		if !ok || !a.handleChunk(in, from, c) {
			break
		}
		rest = r
	}
	if a.state == StateClosed {
		return
	}
	a.endOfPacket(in.now)
	a.mayBurst()
	if from != nil {
		a.hears(in.now, from)
	}
	a.progress(in.now)
	a.e.changed(a)
	a.e.timers.set(a)
}

// handleChunk takes one chunk; more is false if the rest of the packet is to be discarded.
func (a *Association) handleChunk(in *inPacket, from *path, c chunk) (more bool) {
	if a.state == StateCookieWait && c.typ() != chunkInitAck && c.typ() != chunkAbort {
		return false
	}
	switch c.typ() {
	case chunkData:
		return a.handleData(in, from, c)
	case chunkInitAck:
		a.handleInitAck(in, c)
	case chunkSack:
		if s, ok := parseSack(c); ok && a.state.sends() {
			a.handleSack(in.now, s)
		}
	case chunkHeartbeat:
		a.handleHeartbeat(in, c)
	case chunkHeartbeatAck:
		a.handleHeartbeatAck(in.now, c)
	case chunkAbort:
		// "If an endpoint receives an ABORT chunk with a format error, it MUST silently discard
		// it." Section 3.3.7. The tag of one that is not first was checked as that of the packet.
		causes, ok := parseCauses(c.value())
		switch {
		case !ok || (c.flags()&flagT == 0) != (in.tag == a.tag):
		case a.state == StateShutdownAckSent && c.flags()&flagT != 0:
			// The peer has forgotten the association, as it does behind a SHUTDOWN COMPLETE, which
			// was lost or overtaken; a late packet of ours brought this. Nothing else was open.
			a.down(nil)
		default:
			a.down(&PeerAbort{causes})
		}
		return false
	case chunkShutdown:
		if cum, ok := parseShutdown(c); ok {
			a.handleShutdown(in.now, cum)
		}
	case chunkShutdownAck:
		a.handleShutdownAck()
	case chunkError:
		a.handleError(in.now, c)
	case chunkCookieAck:
		// "At any state other than COOKIE-ECHOED, an endpoint SHOULD silently discard a received
		// COOKIE ACK chunk." Section 5.2.5.
		if a.state == StateCookieEchoed {
			a.establish(in.now)
		}
	case chunkShutdownComplete:
		if a.state == StateShutdownAckSent {
			a.down(nil)
		}
	case chunkInit, chunkCookieEcho, chunkECNE, chunkCWR:
		// An INIT is alone, a COOKIE ECHO leads its packet; ECN has not been agreed on.
	default:
		if c.typ().reports() {
			a.reportChunk(in, c)
		}
		return c.typ().skips()
	}
	return true
}

// reportChunk tells the peer of a chunk that is not known.
func (a *Association) reportChunk(in *inPacket, c chunk) {
	a.control(in, func(b []byte) []byte {
		at := len(b)
		return endChunk(appendParam(beginChunk(b, chunkError, 0), uint16(CauseUnrecognizedChunk), c), at)
	})
}

// handleError takes an ERROR chunk. None is fatal by itself: section 3.3.10.
func (a *Association) handleError(now time.Time, c chunk) {
	causes, _ := parseCauses(c.value())
	for _, x := range causes {
		if x.Code == CauseStaleCookie {
			if a.state == StateCookieEchoed {
				a.staleCookie(now)
			}
			return
		}
	}
	if len(causes) > 0 && a.state >= StateEstablished {
		a.event(Event{Kind: EventPeerError, Err: &PeerError{causes}})
	}
}

// control puts a chunk into the packet that answers in: "the sender of the response chunk(s) MUST
// NOT send more than one packet", section 12.4, so what does not fit is not sent. The answer goes
// where the question came from, unless that address is not confirmed; then only a HEARTBEAT ACK
// may.
func (a *Association) control(in *inPacket, chunks func([]byte) []byte) {
	p := a.path(in.Src)
	if p == nil || !p.confirmed {
		p = a.dataPath()
	}
	a.controlTo(p, chunks)
}

func (a *Association) controlTo(p *path, chunks func([]byte) []byte) {
	had := len(a.ctl)
	if had > 0 && a.ctlPath != p {
		return
	}
	a.ctl, a.ctlPath = chunks(a.ctl), p
	if had > 0 && len(a.ctl) > p.pmtu-headerLen {
		a.ctl = a.ctl[:had]
	}
}

// abort ends the association with an ABORT for the peer, if that has a tag yet.
func (a *Association) abort(cause CauseCode, info []byte, err error) {
	if a.peerTag != 0 && a.state != StateCookieWait {
		p := a.dataPath()
		a.e.push(p.src, p.addr, p.encap, a.header(), func(b []byte) []byte {
			at := len(b)
			return endChunk(appendParam(beginChunk(b, chunkAbort, 0), uint16(cause), info), at)
		})
	}
	a.down(&LocalAbort{cause, err})
}

func (a *Association) header() header { return header{a.lport, a.rport, a.peerTag} }

// down removes a from everywhere.
func (a *Association) down(err error) {
	if a.state == StateClosed {
		return
	}
	a.state = StateClosed
	a.e.count--
	for _, p := range a.paths {
		delete(a.e.table, peerKey{a.lport, a.rport, p.addr})
	}
	a.e.spent.add(a.tag)
	a.e.timers.remove(a)
	a.discard()
	a.event(Event{Kind: EventDown, Err: err, Acked: a.ackedID})
}

// Abort ends the association at once. The peer is told, and told reason. RFC 9260, section 9.1.
func (a *Association) Abort(now time.Time, reason string) {
	if j := a.e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallAbort, Now: now, Of: a.num, What: reason})
		defer j.End(&Result{})
	}
	if a.state == StateClosed {
		return
	}
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	a.abort(CauseUserAbort, []byte(reason), fmt.Errorf("%q", reason))
}

// maxReason is how much of a reason for an Abort is sent.
const maxReason = 256

// Number tells an Association from all others of its Endpoint, and from its Messages.
func (a *Association) Number() uint64 { return a.num }

// State returns the state; StateClosed once the association is gone.
func (a *Association) State() State { return a.state }

// Ports returns our port and the peer's.
func (a *Association) Ports() (local, remote uint16) { return a.lport, a.rport }

// Streams is how many streams there are each way; they are numbered from 0. It is known from
// EventUp on.
func (a *Association) Streams() (out, in int) { return len(a.outSSN), len(a.in) }

// PeerAdaptation is the indication that the peer sent in its INIT or INIT ACK; present tells one of
// 0 from none. RFC 5061, section 4.2.6.
func (a *Association) PeerAdaptation() (code uint32, present bool) {
	return a.peerAdaptation, a.peerAdapts
}

// Missing is how many TSNs below the highest that has come are missing.
func (a *Association) Missing() int { return a.have.missing() }

// MaxPayload is the length of the longest message that goes into one chunk, on any of the peer's
// confirmed addresses, with room for a SACK beside it. Those that are too long without that room,
// too, are fragmented.
func (a *Association) MaxPayload() int {
	n := a.maxChunk()
	if !a.opt.NoSACKReserve {
		n -= sackReserve
	}
	return n
}

// maxChunk is the length of the longest message that goes into one chunk, if need be with nothing
// beside it.
func (a *Association) maxChunk() int {
	n := 0
	for _, p := range a.paths {
		if d := p.pmdcs(); p.confirmed && (n == 0 || d < n) {
			n = d
		}
	}
	return n - dataLen
}

// checkMaxPayload tells of a change of MaxPayload.
func (a *Association) checkMaxPayload() {
	if n := a.MaxPayload(); n != a.maxData && a.state >= StateEstablished {
		a.maxData = n
		a.event(Event{Kind: EventMaxPayload})
	}
}
