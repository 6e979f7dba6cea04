package roce

import (
	"errors"
	"time"

	"github.com/vrnic/vrnic/roce/packet"
)

// A sent is a request of the send queue.
type sent struct {
	Request
	psn packet.PSN // of its first packet
	n   uint32     // PSNs that it takes
	ssn uint32     // the number of its last message among all: what the peer's MSN counts to
}

// A requester is the sending half of an RC. Requests are in a ring, by numbers that run free:
//
//	head ............ next ............ tail
//	 | under way, the   | wait
//	 | oldest first     |
//
// PSNs are given when a request is posted, so that a packet that goes out again, or for the first
// time, is found by where next and off are. All before una is acknowledged.
type requester struct {
	ring             []sent
	mask             uint32
	head, next, tail uint32
	off              uint32     // packets of the request at next that have gone out
	una              packet.PSN // the oldest that is not acknowledged
	high             packet.PSN // behind the last that ever went out
	post             packet.PSN // of the next request that is posted
	ssn              uint32     // of the last that was posted

	reads     int    // Reads and atomics between head and next
	readPSNs  uint32 // their PSNs that have not been answered; they are not in the window
	sinceAck  int    // packets that went out since one had AckReq
	limited   bool   // the peer has said how many messages it has receives for:
	limit     uint32 // up to this ssn, of which 24 bits count
	draining  bool   // no message begins
	again     packet.PSN
	wentAgain bool // packets from again on went out again, and una has not moved since

	// The peer has refused a request for good, behind a Read or an atomic whose answer may still be on
	// its way; nothing else comes (docs/decisions.md#R14). 0: it has not.
	refusal   packet.Syndrome
	refusedAt packet.PSN

	// window is how many packets may be under way: Config.Window, but less behind a loss. Networks are
	// lossy, and what goes out again behind each packet that is missing would fill them.
	window int
	taken  int // packets that were acknowledged since window has grown

	retries, rnrRetries uint8 // left, until there is progress
	silences            int   // timeouts since there was some
	ackDue              time.Time
	rnrUntil            time.Time
}

// maxSpan is how many PSNs may be outstanding: half the circle.
const maxSpan = 1 << 23

func (s *requester) init(cfg *Config) {
	n := 1
	for n < cfg.SendQueue {
		n *= 2
	}
	*s = requester{ring: make([]sent, n), mask: uint32(n) - 1, una: cfg.SQPSN, high: cfg.SQPSN,
		post: cfg.SQPSN, retries: cfg.Retries, rnrRetries: cfg.RNRRetries, window: cfg.Window}
}

// leastWindow is how many packets are under way however many are lost.
const leastWindow = 16

// shrink is for a loss: half as much may be under way, or the least if nothing came back at all.
func (s *requester) shrink(silent bool) {
	least := min(leastWindow, s.window)
	if s.window = max(s.window/2, least); silent {
		s.window = least
	}
	s.taken = 0
}

// grow is for n packets that were acknowledged: a sixteenth more for each window of them.
func (s *requester) grow(n, most int) {
	if s.window >= most {
		return
	}
	if s.taken += n; s.taken >= s.window {
		s.taken = 0
		s.window = min(s.window+max(1, s.window/16), most)
	}
}

func (s *requester) at(i uint32) *sent { return &s.ring[i&s.mask] }

// Why Post refuses a request.
var (
	ErrQueueFull  = errors.New("the send queue is full")
	ErrLength     = errors.New("the message is longer than 2^31 octets")
	ErrNoReads    = errors.New("no Reads or atomics were agreed on (max_rd_atomic 0)")
	ErrMisaligned = errors.New("an atomic at an address that is no multiple of 8")
)

// Post adds a copy of r to what is to be sent. An error says that it is none that can be.
func (c *RC) Post(r *Request) error {
	s := &c.sq
	switch {
	case s.tail-s.head > s.mask:
		return ErrQueueFull
	case r.Length > MaxMessage:
		return ErrLength
	case r.Op.answered() && c.cfg.MaxRead == 0:
		return ErrNoReads
	case r.Op >= CompareSwap && r.Addr%8 != 0:
		return ErrMisaligned
	}
	e := s.at(s.tail)
	*e = sent{Request: *r, psn: s.post, n: r.psns(c.cfg.MTU)}
	s.ssn += c.messages(e)
	e.ssn = s.ssn
	s.post = s.post.Add(e.n)
	s.tail++
	return nil
}

// part is how many packets of an answer a Read asks for in one message: half of a window. Nobody
// paces answers, so a longer Read is asked for in parts, of which two are under way.
func (c *RC) part() uint32 { return uint32(max(1, c.cfg.Window/2)) }

// partEnd is behind which packet of the answer to e the part ends that has packet off.
func (c *RC) partEnd(e *sent, off uint32) uint32 {
	return min(e.n, off-off%c.part()+c.part())
}

// messages is how many e is to the peer.
func (c *RC) messages(e *sent) uint32 {
	if e.Op == Read {
		return (e.n + c.part() - 1) / c.part()
	}
	return 1
}

// Outstanding is how many requests were posted and are not done.
func (c *RC) Outstanding() int { return int(c.sq.tail - c.sq.head) }

// Drain has no message begin that has not begun: the queue pair goes to SQD. Resume takes it back.
func (c *RC) Drain()  { c.sq.draining = true }
func (c *RC) Resume() { c.sq.draining = false }

// Drained reports that nothing that has begun is outstanding.
func (c *RC) Drained() bool {
	s := &c.sq
	return s.una == s.high && (s.head == s.tail || s.una == s.at(s.head).psn)
}

// cursor is the PSN of the packet that goes out next.
func (s *requester) cursor() packet.PSN {
	if s.next == s.tail {
		return s.post
	}
	return s.at(s.next).psn.Add(s.off)
}

// takesReceive reports whether the request whose turn it is takes a receive.
func (s *requester) takesReceive() bool {
	return s.next != s.tail && s.at(s.next).Op.takesReceive()
}

// mayGo reports whether e, whose turn it is, may go out now, or go on.
func (c *RC) mayGo(e *sent) bool {
	s := &c.sq
	span := s.cursor().Sub(s.una)
	switch {
	case s.off == 0 && s.draining && e.psn.Sub(s.high) >= 0,
		e.Fence && s.off == 0 && s.reads > 0:
		return false
	case e.Op.answered():
		n := c.partEnd(e, s.off) - s.off // which has to fit where answers wait
		return s.reads < c.reads(e) && (span == 0 || uint32(span)+n <= maxSpan) &&
			(s.reads == 0 || int(s.readPSNs+n) <= s.window)
	case span-int(s.readPSNs) >= s.window, span >= maxSpan-1:
		return false
	}
	// Without credit one message may go out alone, as a probe: docs of the AETH, chapter 9.7.7.2.5.
	return s.off > 0 || !e.Op.takesReceive() || !s.beyond(e.ssn) || span == 0
}

// reads is how many Reads and atomics may be under way, with e. One that has begun goes on.
func (c *RC) reads(e *sent) int {
	if e.psn.Sub(c.sq.high) < 0 {
		return max(c.cfg.MaxRead, 1)
	}
	return c.cfg.MaxRead
}

// neverGoes reports whether e is a Read or an atomic that waits for one before it, and there can be
// none any more (Update).
func (c *RC) neverGoes(e *sent) bool {
	return e.Op.answered() && c.reads(e) == 0 && !c.sq.draining
}

// appendRequest adds the next packet of the send queue.
func (c *RC) appendRequest(b []byte, now time.Time) ([]byte, bool) {
	s := &c.sq
	if c.fault != nil || s.next == s.tail || !s.rnrUntil.IsZero() {
		return b, false
	}
	e := s.at(s.next)
	if !c.mayGo(e) {
		if c.neverGoes(e) && s.head == s.next { // what was posted before it may still end well
			c.failRequest(LocalOperation, ErrNoReads)
		}
		return b, false
	}
	if e.Op.answered() {
		b = c.appendAnswered(b, e)
	} else {
		var err error
		if b, err = c.appendMessage(b, e); err != nil {
			// What was posted before it may still end well. It is asked for once more behind that.
			if s.head == s.next {
				c.failRequest(LocalProtection, err)
			}
			return b, false
		}
	}
	if cur := s.cursor(); cur.Sub(s.high) > 0 {
		s.high = cur
	}
	if s.ackDue.IsZero() {
		c.startTimer(now)
	}
	return b, true
}

// appendAnswered adds an atomic, or a Read Request for the next part. A Read of which some has come
// goes on behind it.
func (c *RC) appendAnswered(b []byte, e *sent) []byte {
	s := &c.sq
	h := c.header(packet.ReadRequest, e.psn.Add(s.off))
	h.AckReq = true
	h.RKey, h.Addr, h.DMA = e.RKey, e.Addr, e.Length
	end := c.partEnd(e, s.off)
	switch skip := s.off * c.cfg.MTU; e.Op {
	case CompareSwap:
		h.Opcode, h.Swap, h.Compare = packet.CompareSwap, e.Swap, e.Compare
	case FetchAdd:
		h.Opcode, h.Swap = packet.FetchAdd, e.Swap
	default:
		h.Addr, h.DMA = e.Addr+uint64(skip), min(e.Length-skip, (end-s.off)*c.cfg.MTU)
	}
	s.reads++
	s.readPSNs += end - s.off
	s.off, s.sinceAck = end, 0
	if end == e.n {
		s.next++
		s.off = 0
	}
	return h.Append(b)
}

// appendMessage adds the next packet of a Send or a Write. After an error it is still the next.
func (c *RC) appendMessage(b []byte, e *sent) ([]byte, error) {
	s := &c.sq
	mtu := c.cfg.MTU
	h := c.header(opcodeAt(e.Op, s.off, e.n), e.psn.Add(s.off))
	off := s.off * mtu
	n := min(e.Length-off, mtu)
	if s.off == 0 {
		h.RKey, h.Addr, h.DMA = e.RKey, e.Addr, e.Length
	}
	last := s.off+1 == e.n
	if last {
		h.Solicited = e.Solicited && e.Op != Write
		h.Imm, h.RKey = e.Imm, e.RKey
	}
	// A long message asks now and then, so that it does not stand still.
	h.AckReq = last || s.sinceAck+1 >= max(1, s.window/4)
	out, err := appendPacket(b, &h, e.Data, off, n)
	if err != nil {
		return b, err
	}
	s.off++
	s.sinceAck++
	if last {
		s.next++
		s.off = 0
	}
	if h.AckReq {
		s.sinceAck = 0
	}
	return out, nil
}

// latestTimeout is how many times the local ACK timeout an answer is waited for at most. It may be
// four times; what is left is for who runs the timer and is late.
const latestTimeout = 3

// startTimer begins to wait for an answer: for one local ACK timeout, since most that does not come
// is lost, and behind a silence for longer, since a peer that has no processor cannot answer and
// only so many retries are left (docs/decisions.md#R16).
func (c *RC) startTimer(now time.Time) {
	d := packet.ACKTimeout(c.cfg.Timeout)
	if d == 0 {
		return
	}
	times := min(1+c.sq.silences, latestTimeout)
	if c.cfg.LastMoment {
		times = latestTimeout
	}
	c.sq.ackDue = now.Add(d * time.Duration(times))
}

// goOnAtUna has una go out next.
func (s *requester) goOnAtUna() {
	s.next, s.off = s.head, 0
	if s.head != s.tail {
		s.off = uint32(s.una.Sub(s.at(s.head).psn))
	}
}

// rewind has all from una on go out again.
func (s *requester) rewind() {
	s.goOnAtUna()
	s.reads, s.readPSNs, s.sinceAck = 0, 0, 0
	s.again, s.wentAgain = s.una, true
}

var errNoAnswer = errors.New("no answer within the local ACK timeout")

// retry sends all from una on again, or gives up.
func (c *RC) retry(now time.Time, why error) {
	s := &c.sq
	if s.head == s.tail || s.una == s.high {
		return
	}
	if s.retries == 0 || s.refusal != 0 {
		c.failRequest(RetryExceeded, why)
		return
	}
	s.retries--
	silent := why == errNoAnswer
	if silent {
		s.silences++
	}
	s.shrink(silent)
	c.counts.Again++
	s.rewind()
	c.startTimer(now)
}

// failRequest fails the oldest request that is not done.
func (c *RC) failRequest(st Status, err error) {
	s := &c.sq
	switch st {
	case RetryExceeded:
		c.counts.RetryExceeded++
	case RNRRetryExceeded:
		c.counts.RNRExceeded++
	default:
	}
	f := &Fault{Requester: true, Status: st, Err: err}
	if s.head != s.tail {
		f.Token = s.at(s.head).Token
	}
	c.fail(f)
	// The peer has gone, or will be: what it has asked for would go there for nothing, as much as it
	// has asked for, before anybody here is told.
	for r := &c.rq; len(r.queue) > 0; {
		c.finish(&r.ring[r.queue[0]])
		r.ackDue, r.nakDue = false, false // which are for what comes behind
	}
}

// done completes the oldest request.
func (c *RC) done(e *sent) {
	s := &c.sq
	token := e.Token
	e.Data = nil
	s.head++
	c.host.Done(token)
}
