package roce

import (
	"errors"
	"fmt"
	"time"

	"github.com/vrnic/vrnic/roce/packet"
)

// What a peer answers that is no answer, or none that a request can end well with.
var (
	errResponse = errors.New("the answer is none to the request, or has another length")
	errSequence = errors.New("the peer missed a packet")
	errRNR      = errors.New("the peer had no receive")
)

// answered takes an answer of the peer. One to nothing that is under way says nothing.
func (c *RC) answered(now time.Time, h *packet.Header, payload []byte) {
	s := &c.sq
	if h.PSN.Sub(s.una) < 0 || h.PSN.Sub(s.high) >= 0 ||
		s.refusal != 0 && h.PSN.Sub(s.refusedAt) >= 0 {
		return
	}
	if h.Opcode != packet.ReadResponseMiddle {
		if !h.Syndrome.IsACK() {
			c.refused(now, h)
			return
		}
		s.grant(h)
	}
	if h.Opcode == packet.Acknowledge {
		if c.advance(now, h.PSN.Add(1)) {
			c.missing(now, errSequence)
		}
		return
	}
	c.advance(now, h.PSN)
	if h.PSN != s.una {
		c.missing(now, errSequence)
		return
	}
	c.response(now, h, payload)
	if s.refusal != 0 && c.fault == nil && !c.advance(now, s.refusedAt) {
		c.failRefused(s.refusal)
	}
}

// grant notes how many messages the peer has receives for.
func (s *requester) grant(h *packet.Header) {
	n, limited := h.Syndrome.Credits()
	s.limited, s.limit = limited, h.MSN+n
}

// beyond reports whether the message ssn is one that the peer has no receive for, as far as it has
// said. MSNs have 24 bits.
func (s *requester) beyond(ssn uint32) bool {
	return s.limited && packet.PSN(ssn).Sub(packet.PSN(s.limit)) > 0
}

// advance counts all before to as acknowledged, but that a Read or an atomic is so by its own
// answer only: then it stops there, and stopped is true.
func (c *RC) advance(now time.Time, to packet.PSN) (stopped bool) {
	s := &c.sq
	from := s.una
	for s.una != to {
		e := s.at(s.head)
		if e.Op.answered() {
			stopped = true
			break
		}
		end := e.psn.Add(e.n)
		if end.Sub(to) > 0 {
			s.una = to
			break
		}
		s.una = end
		c.done(e)
	}
	if n := s.una.Sub(from); n != 0 {
		c.progress(now, n)
	}
	return stopped
}

// progress is called when una has moved on by n: what went out before it does not go out again, and
// all there was to be counted is counted anew.
func (c *RC) progress(now time.Time, n int) {
	s := &c.sq
	s.grow(n, c.cfg.Window)
	if s.cursor().Sub(s.una) < 0 || int32(s.next-s.head) < 0 {
		s.goOnAtUna()
	}
	s.wentAgain = false
	s.retries, s.rnrRetries, s.silences = c.cfg.Retries, c.cfg.RNRRetries, 0
	s.ackDue = time.Time{}
	if s.una != s.high {
		c.startTimer(now)
	}
}

// missing has all from una on go out again, once until there is progress or a timeout.
func (c *RC) missing(now time.Time, why error) {
	s := &c.sq
	if s.wentAgain && s.again == s.una || s.refusal != 0 {
		return
	}
	c.retry(now, why)
}

// patience is for how many of the peer's RNR timers who waits to the last moment does so. The timer
// is what is to be waited at least; nothing says how long at most.
const patience = 2

// refused takes an answer that is no ACK.
func (c *RC) refused(now time.Time, h *packet.Header) {
	s := &c.sq
	if !h.Syndrome.IsRNR() && !h.Syndrome.IsNAK() {
		return // reserved
	}
	stopped := c.advance(now, h.PSN)
	if stopped && h.Syndrome.IsRNR() {
		c.missing(now, errSequence)
		return
	}
	switch {
	case h.Syndrome.IsRNR():
		c.counts.RNRReceived++
		d := h.Syndrome.RNRTimer() // at least
		if c.cfg.LastMoment {
			d *= patience
		}
		c.wait(now, d)
	case h.Syndrome == packet.NAKSequence:
		c.counts.SequenceNAKs++
		c.missing(now, errSequence)
	case stopped && !s.ackDue.IsZero():
		s.refusal, s.refusedAt = h.Syndrome, h.PSN
		c.startTimer(now)
	case s.head != s.tail:
		c.failRefused(h.Syndrome)
	}
}

func (c *RC) failRefused(s packet.Syndrome) { c.failRequest(statusOf(s), fmt.Errorf("%v", s)) }

// statusOf is the status of a request that was refused for good.
func statusOf(s packet.Syndrome) Status {
	switch s {
	case packet.NAKInvalid:
		return RemoteInvalid
	case packet.NAKAccess:
		return RemoteAccess
	default:
		return RemoteOperation
	}
}

// wait has the oldest request, for which the peer had no receive, go out again in d.
func (c *RC) wait(now time.Time, d time.Duration) {
	s := &c.sq
	if !s.rnrUntil.IsZero() {
		return
	}
	if c.cfg.RNRRetries != RNRForever {
		if s.rnrRetries == 0 {
			c.failRequest(RNRRetryExceeded, errRNR)
			return
		}
		s.rnrRetries--
	}
	s.rewind()
	s.wentAgain = false
	s.ackDue = time.Time{}
	s.rnrUntil = now.Add(d)
}

// response takes the next part of the answer to the oldest request.
func (c *RC) response(now time.Time, h *packet.Header, payload []byte) {
	s := &c.sq
	e := s.at(s.head)
	if !e.Op.answered() {
		return // an ACK is all that it takes
	}
	if (h.Opcode == packet.AtomicAcknowledge) != (e.Op != Read) {
		c.failRequest(BadResponse, errResponse)
		return
	}
	if e.Op != Read {
		if err := c.host.PlaceOriginal(e.Token, h.Original); err != nil {
			c.failRequest(LocalProtection, err)
			return
		}
		c.answerTaken(now, e, true)
		return
	}
	at := uint32(s.una.Sub(e.psn))
	off := at * c.cfg.MTU
	n, ends := uint32(len(payload)), h.Opcode.Ends()
	left := min(e.Length-off, (c.partEnd(e, at)-at)*c.cfg.MTU)
	if n > left || ends != (n == left) || n > c.cfg.MTU ||
		!ends && n != c.cfg.MTU {
		c.failRequest(BadResponse, errResponse)
		return
	}
	if n > 0 {
		if err := c.host.PlaceRead(e.Token, off, payload); err != nil {
			c.failRequest(LocalProtection, err)
			return
		}
	}
	c.answerTaken(now, e, ends)
}

// answerTaken counts a packet of the answer to e, the oldest request; ends: it was the last of a
// part.
func (c *RC) answerTaken(now time.Time, e *sent, ends bool) {
	s := &c.sq
	if s.cursor().Sub(s.una) > 0 { // it is not about to go out again
		s.readPSNs--
		if ends {
			s.reads--
		}
	}
	s.una = s.una.Add(1)
	if s.una == e.psn.Add(e.n) {
		c.done(e)
	}
	c.progress(now, 1)
}
