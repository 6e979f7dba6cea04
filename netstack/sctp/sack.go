package sctp

import (
	"errors"
	"time"
)

var errAckedUnsent = errors.New("the peer acknowledges what was never sent")

// handleSack takes a SACK. Sections 6.2.1, 6.7, 7.2.1 to 7.2.4.
func (a *Association) handleSack(now time.Time, s sack) {
	cum := s.cum()
	if cum.before(a.ackTSN) {
		// "Then drop the SACK chunk": section 6.2.1 D i. It has been overtaken.
		a.e.stats.OldSACK++
		return
	}
	bad := !cum.before(a.nextTSN)
	for i := range s.blocks() {
		start, end := s.block(i)
		// A block that ends before it begins says nothing.
		bad = bad || start <= end && uint32(end) > uint32(a.nextTSN-1-cum)
	}
	if bad {
		// "An SCTP implementation MUST abort the association if it receives a SACK chunk
		// acknowledging a TSN that has not been sent." Section 12.4.
		a.abort(CauseProtocolViolation, []byte(errAckedUnsent.Error()), errAckedUnsent)
		return
	}
	a.sackSeen = true
	advanced := cum != a.ackTSN
	a.beginAck()
	a.ackUpTo(cum)
	newest, highest := a.ackGaps(now, s)
	rwnd := int(min(s.rwnd(), 1<<30))
	a.rwnd, a.peerMost = max(0, rwnd-a.inFlight), max(a.peerMost, rwnd)
	a.growWindows()
	if a.recovering && !cum.before(a.exit) {
		a.recovering = false
	}
	a.countMisses(newest, highest, advanced)
	a.endAck(now)

	// The window has opened: a probe that was dropped need not wait for T3.
	if a.probing && a.rwnd > 0 {
		if c := a.chunks.at(0); c.outstanding() && int(c.n) <= a.rwnd {
			a.mark(c, a.ackTSN+1)
			c.path.force = true
		}
		a.probing = false
	}
}

// ackCum takes a cumulative TSN ack that comes without blocks, of a SHUTDOWN: what gap ack blocks
// have said stands. "The receiver of the SHUTDOWN chunk MUST NOT interpret the lack of a Gap Ack
// Block as a renege": section 3.3.8. ok is false if the association has ended for it.
func (a *Association) ackCum(now time.Time, cum TSN) (ok bool) {
	if cum.before(a.ackTSN) {
		return true
	}
	if !cum.before(a.nextTSN) {
		a.abort(CauseProtocolViolation, []byte(errAckedUnsent.Error()), errAckedUnsent)
		return false
	}
	a.beginAck()
	a.ackUpTo(cum)
	a.growWindows()
	a.endAck(now)
	return true
}

func (a *Association) beginAck() {
	for _, p := range a.paths {
		p.acked, p.wasFlight, p.waits, p.restart, p.lost = 0, p.flight, false, false, false
	}
}

// arrived accounts for a chunk that is acknowledged for the first time.
func (a *Association) arrived(c *outChunk) {
	p := c.path
	p.acked += c.size()
	if c.marked {
		c.marked = false
		a.marked--
		return
	}
	p.flight -= c.size()
	a.inFlight -= int(c.n)
	p.restart = p.restart || !p.waits // rule R3 of section 6.3.2
}

// ackUpTo removes the chunks up to cum.
func (a *Association) ackUpTo(cum TSN) {
	for a.ackTSN != cum {
		c := a.chunks.at(0)
		if c.acked {
			a.gapAcked--
		} else {
			a.arrived(c)
		}
		a.ackTSN++
		a.probing = false
		if a.buf.free(c.pos + uint64(c.n)); c.flags&flagE != 0 {
			a.ackedID = c.id
			a.event(Event{Kind: EventAcked, Acked: c.id})
		}
		a.chunks.pop()
	}
}

// ackGaps goes over what is outstanding as far as the blocks, or what earlier blocks said, reach.
// newest is the highest TSN acknowledged for the first time, highest the highest acknowledged; both
// are the cumulative one if there is none.
func (a *Association) ackGaps(now time.Time, s sack) (newest, highest TSN) {
	newest, highest = a.ackTSN, a.ackTSN
	next, left := 0, a.gapAcked
	var start, end uint16
	for i := 0; i < a.chunks.len() && (left > 0 || next < s.blocks() || int(end) > i); i++ {
		off, tsn := uint16(i+1), a.ackTSN+1+TSN(i)
		// Blocks are in order and apart; of those that are not, what lies behind counts for nothing.
		for end < off && next < s.blocks() {
			start, end = s.block(next)
			next++
		}
		c := a.chunks.at(i)
		if c.acked {
			left--
		}
		if start <= off && off <= end {
			highest = tsn
			if !c.acked {
				a.arrived(c)
				c.acked = true
				a.gapAcked++
				newest = tsn
			}
			continue
		}
		if c.acked {
			// Taken back: "consider the corresponding DATA that might be possibly missing", 6.2.1 D iii.
			c.acked = false
			a.gapAcked--
			c.path.flight += c.size()
			a.inFlight += int(c.n)
			if c.path.t3.IsZero() {
				c.path.t3 = now.Add(c.path.rto)
			}
		}
		if !c.marked {
			c.path.waits = true
		}
	}
	return newest, highest
}

// growWindows opens the congestion windows of paths on which something has arrived.
func (a *Association) growWindows() {
	for _, p := range a.paths {
		if p.acked == 0 || a.recovering {
			continue
		}
		d := p.pmdcs()
		full := p.wasFlight >= p.cwnd
		if p.cwnd <= p.ssthresh {
			if full { // slow start, section 7.2.1
				p.cwnd += min(p.acked, d)
			}
			continue
		}
		p.partial += p.acked // congestion avoidance, section 7.2.2
		if p.partial >= p.cwnd {
			if full {
				p.partial -= p.cwnd
				p.cwnd += d
			} else {
				p.partial = p.cwnd
			}
		}
	}
	if a.chunks.len() == 0 {
		for _, p := range a.paths {
			p.partial = 0
		}
	}
}

// countMisses is Fast Retransmit on gap reports. Section 7.2.4.
func (a *Association) countMisses(newest, highest TSN, advanced bool) {
	until := newest // "incremented only for missing TSNs prior to the HTNA"
	if a.recovering && advanced {
		until = highest
	}
	any := false
	for i := 0; (a.ackTSN + 1 + TSN(i)).before(until); i++ {
		c := a.chunks.at(i)
		if !c.outstanding() || c.fast {
			continue
		}
		if c.misses++; c.misses < 3 {
			continue
		}
		a.mark(c, a.ackTSN+1+TSN(i))
		c.fast, c.path.lost, any = true, true, true
		a.e.stats.FastRetransmits++
	}
	if !any || a.recovering {
		return
	}
	a.recovering, a.exit = true, a.nextTSN-1
	for _, p := range a.paths {
		if p.lost {
			p.ssthresh = max(p.cwnd/2, 4*p.pmdcs()) // section 7.2.3
			p.cwnd = p.ssthresh
			p.partial = 0
		}
	}
	a.target(a.firstMarked()).force = true
}

// endAck sees to T3, errors and the measurement of the round trip after an acknowledgement.
func (a *Association) endAck(now time.Time) {
	any := false
	for _, p := range a.paths {
		if p.acked > 0 {
			any = true
			p.alone = false
			p.prober.holes = 0
			a.works(p)
		}
		switch {
		case p.flight == 0:
			p.t3 = time.Time{} // rule R2 of section 6.3.2
		case p.restart:
			p.t3 = now.Add(p.rto) // rule R3
		}
		if p.timing && a.hasAcked(p.timed) {
			p.timing = false
			p.measure(now.Sub(p.timedAt), a.opt)
		}
	}
	if any {
		a.errors = 0 // "each time a DATA chunk sent to that peer endpoint is acknowledged": section 8.1
	}
}

// hasAcked says whether t, which was sent, has been acknowledged.
func (a *Association) hasAcked(t TSN) bool {
	if !a.ackTSN.before(t) {
		return true
	}
	return a.chunks.at(int(uint32(t - a.ackTSN - 1))).acked
}
