package sctpddp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vrnic/vrnic/iwarp"
)

// A Sink takes the segments of a session; iwarp.Endpoint is one.
type Sink interface {
	// Ahead is shown a segment that has come ahead of order. It may place what it is sure of, and
	// says how many octets at the start have to be kept for Segment.
	Ahead(seg []byte) (keep int)
	// Segment takes the next segment in order: size octets, of which seg holds the first, as many
	// as Ahead said or all. iwarp.ErrNoReceive: it has to come again. Other faults are the Sink's.
	Segment(seg []byte, size int) error
	// Fail ends the stream above for a fault found here.
	Fail(c iwarp.TermCode, err error)
}

var _ Sink = (*iwarp.Endpoint)(nil)

// Stats counts what a Session did.
type Stats struct {
	In, Out  uint64 // messages
	Ahead    uint64 // came ahead of order
	Placed   uint64 // of these, segments that the Sink has placed at once
	Ordered  uint64 // came without the U bit, which harms nothing: docs/decisions.md#D5
	Excess   uint64 // octets behind the function of a Terminate: docs/decisions.md#D9
	Ignored  uint64 // messages for a session that has ended
	Illegal  uint64 // messages that fit no legal session
	Overflow uint64 // messages for which there was no room
}

// A Session is one session on one DDP stream.
type Session struct {
	id        uint16
	assoc     Association
	start     iwarp.StartConfig // active: what was asked for; passive: what this end can do
	allowance int
	opaque    bool // as Config.Opaque
	state     State
	active    bool
	enhanced  bool
	heard     bool      // the peer\'s first message has been sequenced
	refused   bool      // passive: the answer was a refusal; a Terminate may have crossed it
	own       bool      // the owner of the Mux is this one's, too
	until     time.Time // when it has lingered enough
	successor []byte    // an Initiate that came when the session was over

	request Request
	params  iwarp.Params
	err     error
	events  []Event
	stats   Stats

	sink    Sink
	in      window
	blocked bool // the next message in order is held: it cannot be taken now
	ending  bool // the peer's Terminate is held
	discard bool // segments are for nobody: the session was closed before it had a Sink

	out sender

	journal Journal // hears of calls; nil: nobody does, or one is under way
}

// A Request is what an active side asks for.
type Request struct {
	Enhanced    bool
	PeerToPeer  bool
	RTR         iwarp.RTRKinds
	IRD, ORD    uint16 // the peer's; iwarp.NotNegotiated if it did not say
	PrivateData []byte
	data        iwarp.EnhancedData
}

// Stream is the number of the DDP stream.
func (s *Session) Stream() uint16 { return s.id }

// State says where the session is.
func (s *Session) State() State { return s.state }

// Active says whether this end has sent, or is to send, the Initiate.
func (s *Session) Active() bool { return s.active }

// Err is what ended the session, nil if it is well or has ended as it should.
func (s *Session) Err() error { return s.err }

// Params is what was agreed on, once the session is open.
func (s *Session) Params() iwarp.Params { return s.params }

// Stats is what has happened so far.
func (s *Session) Stats() Stats { return s.stats }

// Request is what the peer asks for, in StateAsked.
func (s *Session) Request() (r Request, ok bool) { return s.request, s.state == StateAsked }

// Event takes the oldest event that was not taken.
func (s *Session) Event() (ev Event, ok bool) {
	if len(s.events) == 0 {
		return ev, false
	}
	if s.journal != nil {
		s.noted(&Call{Kind: CallEvent}, func(r *Result) {
			ev, ok = s.Event()
			told := ev
			r.Event = &told
		})
		return ev, ok
	}
	ev = s.events[0]
	s.events = s.events[1:]
	return ev, true
}

func (s *Session) emit(k EventKind, pd []byte, err error) {
	s.events = append(s.events, Event{Kind: k, PrivateData: append([]byte(nil), pd...), Err: err})
}

// Input takes a message for the session's stream. Faults end the session; see Err.
func (s *Session) Input(m Message) {
	if s.journal != nil {
		said := m
		s.noted(&Call{Kind: CallInput, Message: &said}, func(*Result) { s.Input(m) })
		return
	}
	s.stats.In++
	if !m.Unordered {
		s.stats.Ordered++
	}
	if s.state == StateFailed {
		if s.successor == nil && !s.Pending() && begins(m) {
			s.successor = append([]byte(nil), m.Data...) // as in late
			return
		}
		s.stats.Ignored++
		return
	}
	if m.PPID != PPIDSegment && m.PPID != PPIDControl {
		s.illegal(fmt.Errorf("a message with PPID %d", m.PPID))
		return
	}
	if len(m.Data) < ssnLen {
		s.illegal(errShort)
		return
	}
	ssn := SSN(binary.BigEndian.Uint16(m.Data))
	if s.state == StateOver {
		s.late(ssn, m)
		return
	}
	d := int(ssn - s.in.next)
	if d > maxAhead && s.overflows() {
		d = int(ssn - s.in.next) // what was in front has gone
	}
	if d > maxAhead {
		s.illegal(fmt.Errorf("DDP-SSN %d, the next is %d", ssn, s.in.next))
		return
	}
	if d == 0 && !s.blocked {
		s.take(m.PPID, m.Data, len(m.Data))
		s.drain()
		return
	}
	switch {
	case s.in.there(d):
		s.illegal(fmt.Errorf("DDP-SSN %d for the second time", ssn))
		return
	case d >= s.in.high && d-s.in.n > m.Missing+s.allowance:
		// "The receiver MAY perform a validity check on received DDP-SSNs to ensure that any gap
		// could be accounted for by unreceived Data Chunks." RFC 5043, section 10.
		s.illegal(fmt.Errorf("DDP-SSN %d, the next is %d, but only %d messages are missing", ssn,
			s.in.next, m.Missing))
		return
	}
	s.hold(d, m)
}

// hold keeps a message that is d ahead of order, or the next one when it cannot be taken.
func (s *Session) hold(d int, m Message) {
	s.stats.Ahead++
	data, keep := m.Data, len(m.Data)
	if m.PPID == PPIDSegment {
		seg, err := s.segment(data)
		switch {
		case err != nil: // judged in its turn
			m.PPID, keep = ppidBad, 0
		case s.discard:
			keep = ssnLen
		case s.sink != nil:
			if k := s.sink.Ahead(seg); k < len(seg) {
				keep = ssnLen + k
				s.stats.Placed++
			}
		}
	} else if c, err := ParseControl(data); err == nil && c.Function == FuncTerminate {
		s.ending = true
	}
	if s.in.put(d, m.PPID, data, keep) {
		return
	}
	s.stats.Overflow++
	if !s.overflows() {
		s.illegal(fmt.Errorf("no room to hold %d octets ahead of order", len(data)))
		return
	}
	// The stream above has failed and wants nothing more, so what was held is gone.
	if m.PPID == PPIDSegment {
		keep = ssnLen
	}
	if d = int(SSN(binary.BigEndian.Uint16(data)) - s.in.next); d == 0 {
		s.take(m.PPID, data, len(data))
		s.drain()
	} else if d > maxAhead || !s.in.put(d, m.PPID, data, keep) {
		s.illegal(errors.New("no room to hold a message ahead of order"))
	}
}

// overflows ends the stream above if it is what keeps messages from being taken: a Send waits for a
// receive buffer, and there is no room to wait any longer.
func (s *Session) overflows() bool {
	if !s.blocked || s.sink == nil {
		return false
	}
	s.sink.Fail(iwarp.TermNoBuffer,
		errors.New("a Send waited for a receive buffer until too much was behind it"))
	s.Resume()
	return !s.blocked
}

// drain takes what is held and has become the next in order.
func (s *Session) drain() {
	for s.in.high > 0 && s.in.at(0).there && s.state != StateFailed {
		e := s.in.at(0)
		if !s.sequence(e.ppid, e.data(), e.size) {
			s.blocked = true
			return
		}
		if s.state == StateFailed {
			return
		}
		s.in.pop()
	}
	s.blocked = false
}

// take takes the next message in order from the transport's memory, or holds it.
func (s *Session) take(ppid uint32, data []byte, size int) {
	switch {
	case !s.sequence(ppid, data, size):
		if !s.in.put(0, ppid, data, len(data)) {
			s.stats.Overflow++
			s.illegal(errors.New("no room to hold a message"))
			return
		}
		s.blocked = true
	case s.state != StateFailed:
		s.in.pop()
	}
}

// Resume goes on with what is held; call it when a receive buffer was posted, or the Sink has
// failed.
func (s *Session) Resume() {
	if s.journal != nil {
		s.noted(&Call{Kind: CallResume}, func(*Result) { s.Resume() })
		return
	}
	if s.state != StateFailed {
		s.drain()
	}
}

// Blocked says that the next message in order has come and waits: for an answer to the request, for
// Attach, or for a receive buffer.
func (s *Session) Blocked() bool { return s.blocked }

// Ending says that the peer has ended the session, be it behind messages that wait.
func (s *Session) Ending() bool { return s.ending }

// sequence judges and takes the next message in order. false: not now.
func (s *Session) sequence(ppid uint32, data []byte, size int) bool {
	k := kindBad
	var c Control
	var err error
	switch {
	case ppid == ppidBad:
		err = errShort
	case ppid == PPIDControl:
		if c, err = ParseControl(data); err == nil {
			k = kindOf(c.Function)
		}
	case len(data) == size:
		if _, err = s.segment(data); err == nil {
			k = kindSegment
		}
	default: // the beginning of one that was looked at when it came
		k = kindSegment
	}
	to, ok := arrivals[s.state][k]
	switch {
	case k == kindBad:
		s.illegal(err)
		return true
	case !ok && k == kindInitiate && (s.state == StateInitiating || s.state == StateWithdrawing):
		s.illegal(ErrCrossed)
		return true
	case !ok:
		s.illegal(fmt.Errorf("%v with DDP-SSN %d", describeKind(k, &c), s.in.next))
		return true
	case k == kindAccept && c.Function.Enhanced() != s.enhanced, k == kindReject &&
		c.Function.Enhanced() != s.enhanced:
		// "The responder is REQUIRED to respond with an enhanced RDMA connection establishment
		// response": RFC 6581, section 10.
		s.illegal(fmt.Errorf("%v in answer to a request of the other form", c.Function))
		return true
	}
	if k == kindSegment {
		if s.discard {
			s.stats.Ignored++
			return true
		}
		if s.sink == nil { // nor has a request that is not answered one
			return false
		}
		return !errors.Is(s.sink.Segment(data[ssnLen:], size-ssnLen), iwarp.ErrNoReceive)
	}
	from := s.state
	s.heard = true
	s.setState(to)
	s.control(from, k, &c)
	return true
}

// segment is that in a user message, which has its number.
func (s *Session) segment(msg []byte) ([]byte, error) {
	if s.opaque {
		return msg[ssnLen:], nil
	}
	_, seg, err := ParseSegment(msg)
	return seg, err
}

func describeKind(k kind, c *Control) string {
	if k == kindSegment {
		return k.String()
	}
	return c.Function.String()
}

// control acts on a control message that is legal. The state is what it leads to.
func (s *Session) control(from State, k kind, c *Control) {
	switch k {
	case kindInitiate:
		s.initiated(c)
	case kindAccept:
		s.accepted(from, c)
	case kindReject:
		s.out.answered = true
		r := &iwarp.RejectedError{Revision: 1, IRD: iwarp.NotNegotiated, ORD: iwarp.NotNegotiated,
			PrivateData: append([]byte(nil), c.PrivateData...)}
		if c.Function.Enhanced() {
			r.Revision = 2
		}
		if c.HasData {
			r.Enhanced, r.IRD, r.ORD = true, c.Data.IRD, c.Data.ORD
		}
		s.out.clear()
		s.err = r
		s.emit(EventRejected, c.PrivateData, r)
	case kindTerminate:
		s.stats.Excess += uint64(len(c.PrivateData))
		s.out.answered = true
		switch from {
		case StateInitiating, StateWithdrawing:
			s.out.clear()
			s.err = ErrRefused
			s.emit(EventRefused, nil, ErrRefused)
		case StateAsked:
			// Answered, and the program need not answer any more: docs/decisions.md#D11.
			s.queue(Control{Function: FuncTerminate})
			s.emit(EventWithdrawn, nil, nil)
		default:
			s.emit(EventClosed, nil, nil)
		}
	}
}

func (s *Session) initiated(c *Control) {
	s.enhanced = c.HasData
	s.request = Request{Enhanced: c.HasData, IRD: iwarp.NotNegotiated, ORD: iwarp.NotNegotiated,
		PrivateData: append([]byte(nil), c.PrivateData...)}
	if c.HasData {
		r := &s.request
		r.data, r.PeerToPeer, r.IRD, r.ORD = c.Data, c.Data.PeerToPeer, c.Data.IRD, c.Data.ORD
		if r.PeerToPeer {
			r.RTR = c.Data.RTR
		}
		if r.PeerToPeer && r.RTR&s.start.RTR == 0 {
			// "The Provider MAY generate a reject reply message indicating which RTR indication
			// types it supports." RFC 6581, section 7, and docs/decisions.md#D13.
			s.err = &iwarp.LocalError{Cause: iwarp.TermNoRTR,
				Err: fmt.Errorf("the peer offers %v, this end takes %v", r.RTR, s.start.RTR)}
			s.refuse(FuncEnhancedReject, nil)
			return
		}
	}
	s.emit(EventRequest, c.PrivateData, nil)
}

// accepted applies an Accept.
func (s *Session) accepted(from State, c *Control) {
	s.out.answered = true
	if from == StateWithdrawing {
		return
	}
	s.params = iwarp.Params{Initiator: true, Revision: 1, IRD: s.start.IRD, ORD: s.start.ORD,
		PeerIRD: iwarp.NotNegotiated, PeerORD: iwarp.NotNegotiated,
		PrivateData: append([]byte(nil), c.PrivateData...)}
	if s.enhanced {
		s.params.Revision = 2
		if err := s.start.Conclude(&s.params, c.Data); err != nil {
			s.negotiationFailed(err)
			return
		}
	}
	s.emit(EventAccepted, c.PrivateData, nil)
}

// negotiationFailed ends an accepted session with the Terminate of RDMAP that RFC 6581, sections
// 9.1 and 9.2, ask for, and then that of the session.
func (s *Session) negotiationFailed(err error) {
	cause := iwarp.TermMPACatastrophic
	var le *iwarp.LocalError
	if errors.As(err, &le) {
		cause = le.Cause
	}
	if !s.opaque {
		t := iwarp.Terminate{Cause: cause}
		s.out.segment = t.Append(iwarp.AppendUntagged(nil, true, iwarp.OpTerminate, 0, 1, 0))
	}
	s.err = err
	s.setState(StateFailed)
	s.in.clear()
	s.queue(Control{Function: FuncTerminate})
	s.emit(EventFailed, nil, err)
}

// FailNegotiation ends a session that has just been accepted for a fault of this end: RFC 6581,
// section 9.3. It takes the place of Attach. ErrState.
func (s *Session) FailNegotiation(err error) error {
	if s.journal != nil {
		return s.notedError(&Call{Kind: CallFailNegotiation, Err: err},
			func() error { return s.FailNegotiation(err) })
	}
	if s.state != StateOpen || !s.active || s.sink != nil || s.out.next > 1 {
		return fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	s.negotiationFailed(&iwarp.LocalError{Cause: iwarp.TermMPACatastrophic, Err: err})
	return nil
}

// illegal ends the session for a message of the peer.
func (s *Session) illegal(err error) {
	s.stats.Illegal++
	if s.state == StateOver || s.state == StateFailed {
		return
	}
	s.fail(&ProtocolError{Stream: s.id, State: s.state, Err: err})
}

// fail breaks the session off: a Terminate goes out, if one is still legal, and nothing after it.
func (s *Session) fail(err error) {
	s.err = err
	s.setState(StateFailed)
	s.blocked = false
	s.in.clear()
	s.out.breakOff(s)
	s.emit(EventFailed, nil, err)
}

// late deals with what comes when the session is over. "Each Data Chunk unambiguously belongs to
// exactly one session" (RFC 5043, section 6), and this one belongs to none: a session begins with
// number 0.
func (s *Session) late(ssn SSN, m Message) {
	if s.refused && m.PPID == PPIDControl && ssn == s.in.next {
		if c, err := ParseControl(m.Data); err == nil && c.Function == FuncTerminate {
			s.refused = false // it has crossed the refusal: docs/decisions.md#D11
			s.in.next++
			return
		}
	}
	if s.successor == nil && begins(m) {
		s.successor = append([]byte(nil), m.Data...) // for Release
		return
	}
	s.illegal(nil)
}

// begins says whether m can begin the next session on the stream.
func begins(m Message) bool {
	if m.PPID != PPIDControl {
		return false
	}
	c, err := ParseControl(m.Data)
	return err == nil && c.SSN == 0 && kindOf(c.Function) == kindInitiate
}

// Attach gives the segments of the session to sink, those that wait first. ErrState: the session
// was not accepted.
func (s *Session) Attach(sink Sink) error {
	if s.journal != nil {
		c := &Call{Kind: CallAttach, Sink: sink}
		return s.notedError(c, func() error { return s.Attach(c.Sink) })
	}
	open := s.state == StateOpen || s.state == StateClosing || s.state == StatePeerClosed
	if !open || s.discard || s.sink != nil {
		return fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	s.sink = sink
	s.Resume()
	return nil
}

// Lost ends the session with its association. Nothing is sent.
func (s *Session) Lost(kind LossKind, err error) {
	if s.journal != nil {
		if s.gone() {
			return
		}
		s.noted(&Call{Kind: CallLost, Loss: kind, Err: err}, func(*Result) { s.Lost(kind, err) })
		return
	}
	told := s.state == StateFailed || s.state == StateOver
	s.setState(StateFailed)
	s.blocked = false
	s.in.clear()
	s.out.clear()
	if told {
		return
	}
	s.err = &LostError{kind, err}
	s.emit(EventLost, nil, s.err)
}

// gone says that Lost would change nothing.
func (s *Session) gone() bool {
	return s.state == StateFailed && !s.blocked && s.in.ring == nil && s.in.free == nil &&
		s.out.closed && !s.Pending() && s.out.segment == nil
}
