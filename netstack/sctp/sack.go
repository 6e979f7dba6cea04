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
		// "Then drop the SACK chunk": section 6.2.1 D i. It has been overtaken. What has come twice is in
		// no other one.
		a.e.stats.OldSACK++
		a.takeDuplicates(now, s)
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
	a.ackUpTo(now, cum)
	a.ackGaps(now, s, advanced)
	a.takeDuplicates(now, s)
	rwnd := int(min(s.rwnd(), 1<<30))
	a.rwnd, a.peerMost = max(0, rwnd-a.inFlight), max(a.peerMost, rwnd)
	a.growWindows(now)
	if a.recovering && !cum.before(a.exit) {
		a.recovering = false
	}
	a.endAck(now)
	a.findLost(now)

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
	a.ackUpTo(now, cum)
	a.growWindows(now)
	a.endAck(now)
	return true
}

func (a *Association) beginAck() {
	for _, p := range a.paths {
		p.acked, p.waits, p.restart, p.intact, p.sample = 0, false, false, false, -1
	}
}

// arrived accounts for a chunk that is acknowledged for the first time.
func (a *Association) arrived(now time.Time, c *outChunk, tsn TSN) {
	p := c.path
	p.acked += c.size()
	if c.resent {
		a.losses.arrived(now, tsn)
	} else if p.timing && p.timed == tsn {
		p.timing, p.sample = false, instant(now)-c.sentAt
	}
	if c.marked {
		c.marked = false
		a.marked--
		a.losses.doubt--
		p.intact = p.intact || c.timedOut && !c.resent
		if !c.resent {
			p.rack.Delivered(instant(now), c.sentAt, c.order, false)
		}
		return
	}
	p.rack.Delivered(instant(now), c.sentAt, c.order, c.resent)
	a.delist(c, tsn)
	p.flight -= c.size()
	a.inFlight -= int(c.n)
	p.restart = p.restart || !p.waits // rule R3 of section 6.3.2
}

// ackUpTo removes the chunks up to cum.
func (a *Association) ackUpTo(now time.Time, cum TSN) {
	for a.ackTSN != cum {
		c := a.chunks.at(0)
		if c.acked {
			a.uncount(c)
			a.sets.remove(gapAcked|doubted, a.ackTSN+1)
		} else {
			a.arrived(now, c, a.ackTSN+1)
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

// uncount takes c out of those that gap ack blocks have acknowledged.
func (a *Association) uncount(c *outChunk) {
	a.gapAcked--
	if c.lead {
		a.gapPackets--
	}
}

// growWindows opens the congestion windows of paths on which something has arrived. Slow start ends
// when something is lost: docs/decisions.md#N7.
func (a *Association) growWindows(now time.Time) {
	for _, p := range a.paths {
		// "Only if the current congestion window is being fully utilized and the data sender is not in
		// Fast Recovery": section 7.2.1. Behind the first of several SACKs that have come together it is
		// not, for want of a turn to send.
		if p.acked == 0 || a.recovering || !p.full {
			continue
		}
		d := p.pmdcs()
		if p.cwnd <= p.ssthresh {
			// Behind a loss they are equal: many packets at once would take the cut back.
			p.cwnd += min(p.acked, slowStartPackets*d, max(p.ssthresh-p.cwnd, d))
			continue
		}
		p.cwnd = p.cubic.Grow(instant(now), p.srtt, p.cwnd, p.acked, d)
	}
}

// slowStartPackets is L of section 7.2.1: peers acknowledge every second packet, or several that
// have come together at once.
const slowStartPackets = 16

// replaces is how many packets may take the place of what has arrived: as many, or twice as many
// where slow start doubles what is in flight.
func (a *Association) replaces(p *path) int {
	n := (p.acked + p.pmdcs() - 1) / p.pmdcs()
	if p.cwnd < p.ssthresh && !a.recovering {
		n *= 2
	}
	return n
}

// endAck sees to T3, errors and the measurement of the round trip after an acknowledgement.
func (a *Association) endAck(now time.Time) {
	any := false
	for _, p := range a.paths {
		if p.acked > 0 {
			any = true
			a.burst += a.replaces(p)
			p.alone, p.probes = false, 0
			p.prober.holes = 0
			a.works(p)
			if p.intact {
				// F-RTO: what was not sent again after a T3 expiry has arrived, so the path was slow and
				// lost nothing. RFC 5682, section 3. Of what was lost before that says nothing.
				a.undo(p, p.timeout)
			}
			p.baseRTO(a.opt)
		}
		if p.sample >= 0 {
			p.measure(p.sample, a.opt)
		}
		switch {
		case p.flight == 0 && !p.doubts:
			p.t3 = time.Time{} // rule R2 of section 6.3.2
		case p.restart:
			p.t3 = now.Add(p.rto) // rule R3
		}
		if p.acked > 0 || p.flight == 0 {
			a.watchTail(now, p)
		}
	}
	if any {
		a.errors = 0 // "each time a DATA chunk sent to that peer endpoint is acknowledged": section 8.1
	}
}

// findLost marks what is later than what was sent after it by more than reordering explains, and
// begins Fast Recovery if there is any. RFC 8985, section 6.2, in place of the three reports of
// RFC 9260, section 7.2.4: docs/decisions.md#P4.
func (a *Association) findLost(now time.Time) {
	any := false
	for _, p := range a.paths {
		p.lost, p.lateAt = false, time.Time{}
		window := time.Duration(0)
		switch {
		case !p.rack.Reordered() && (a.recovering || a.gapPackets >= 3):
			// Where nothing has come late yet, three later packets are enough.
		case p.srtt == 0:
			window = p.rack.Window(p.rto)
		default:
			window = p.rack.Window(p.srtt + 4*p.rttvar)
		}
		for p.listed > 0 {
			tsn := p.oldest
			c := a.sentChunk(tsn)
			by, ok := p.rack.Lost(c.sentAt, c.order, window)
			if !ok {
				break
			}
			if wait := by - instant(now); wait > 0 {
				p.lateAt = now.Add(wait)
				break
			}
			if !a.recovering && !any {
				a.beginLosses(now)
			}
			a.mark(c, tsn)
			p.lost, any = true, true
			a.e.stats.FastRetransmits++
		}
	}
	if !any {
		return
	}
	if !a.recovering {
		a.recover()
	}
	a.target(a.firstMarked()).force = true
}

// recover begins Fast Recovery on the paths that have lost something. Section 7.2.3.
func (a *Association) recover() {
	a.recovering, a.exit = true, a.nextTSN-1
	for _, p := range a.paths {
		if p.lost {
			p.rack.Recovered()
			p.cut()
		}
	}
}

// undo restores what was cut for losses that were none: u of p.
func (a *Association) undo(p *path, u undo) {
	if u.valid {
		a.e.stats.Undone++
		p.restore(u)
	}
	a.recovering = false
}

// losses remembers what was sent again, to find out whether that was needed. The peer reports TSNs
// that come for the second time: RFC 3708.
type losses struct {
	recent []resentChunk // by the low bits of its TSN; nil: nothing was sent again yet
	// In this recovery: how often a chunk was marked to be sent again, but for where it is known that
	// there was no need.
	doubt int
	round uint32        // counts recoveries
	last  time.Duration // when something was sent again last
}

// A resentChunk was sent more than once.
type resentChunk struct {
	tsn            TSN
	path           *path // where it was sent before; nil: there is none here
	first, arrived time.Duration
	round          uint32
	times          int // it was sent again, but for those of which the peer has told
}

const recentLosses = 256

// begin begins a recovery in which so many chunks are marked already.
func (l *losses) begin(marked int) {
	l.doubt = marked
	l.round++
}

// undecided says whether the peer may still report that the last losses on p were none, of which
// something was sent again within that time. More losses are then counted with them: else the
// window that there was before the first would be forgotten with the second.
func (a *Association) undecided(now time.Time, p *path, within time.Duration) bool {
	return p.undo.valid && a.losses.doubt > 0 &&
		(p.srtt == 0 || instant(now)-a.losses.last <= max(within, p.srtt+4*p.rttvar))
}

// beginLosses begins to count losses, unless those before are undecided.
func (a *Association) beginLosses(now time.Time) {
	for _, p := range a.paths {
		if a.undecided(now, p, 0) {
			return
		}
	}
	a.losses.begin(a.marked)
	for _, p := range a.paths {
		p.undo.valid = false
	}
}

// resent notes that c, which has not been launched yet, is sent again.
func (l *losses) resent(now time.Time, c *outChunk, tsn TSN) {
	l.last = instant(now)
	if l.recent == nil {
		l.recent = make([]resentChunk, recentLosses)
	}
	r := &l.recent[tsn%recentLosses]
	if !c.resent || r.tsn != tsn || r.path == nil {
		*r = resentChunk{tsn: tsn, path: c.path, first: c.sentAt}
	}
	r.round = l.round
	r.times++
}

// arrived notes that such a chunk was acknowledged.
func (l *losses) arrived(now time.Time, tsn TSN) {
	if r := &l.recent[tsn%recentLosses]; r.path != nil && r.tsn == tsn {
		r.arrived = instant(now)
	}
}

// takeDuplicates looks at the TSNs that have come to the peer more than once. If all that was sent
// again in this recovery was needless, it is taken back.
func (a *Association) takeDuplicates(now time.Time, s sack) {
	l := &a.losses
	if l.recent == nil {
		return
	}
	any := false
	for i := range s.dups() {
		r := &l.recent[s.dup(i)%recentLosses]
		if r.path == nil || r.tsn != s.dup(i) || r.arrived == 0 {
			continue // the network has doubled it, or it is not ours
		}
		a.e.stats.Spurious++
		p := r.path
		p.rack.Spurious(r.arrived - r.first)
		p.sample = max(p.sample, r.arrived-r.first)
		if r.round == l.round {
			l.doubt--
			any = true
		}
		if r.times--; r.times == 0 {
			r.path = nil
		}
	}
	if any && l.doubt <= 0 && a.marked == 0 {
		for _, p := range a.paths {
			if p.undo.valid {
				a.undo(p, p.undo)
			}
		}
	}
}

// watchTail sets when the loss of all that was sent last to p is probed for. T3 would find it, too,
// but later: RFC 8985, section 7.2.
func (a *Association) watchTail(now time.Time, p *path) {
	p.tailAt = time.Time{}
	if p.flight == 0 || p.srtt == 0 || p.alone || a.probing {
		return
	}
	wait := max(2*p.srtt, p.srtt+4*p.rttvar, minTailWait)
	if !p.prompt && p.listed == 1 {
		wait += sackWait
	}
	wait <<= min(p.probes, maxTailProbes)
	if at := now.Add(wait); at.Before(p.t3) {
		p.tailAt = at
	}
}

const (
	minTailWait   = 4 * time.Millisecond   // so long may a peer's program be without a processor
	sackWait      = 200 * time.Millisecond // how long a peer delays the SACK of a single packet
	maxTailProbes = 16
)

// probeTail sends one packet whatever cwnd is, so that a SACK tells what is lost: new data, or what
// was sent last once more. RFC 8985, section 7.3; there is one after the other, at doubled
// distances, until T3 expires: docs/decisions.md#P7.
func (a *Association) probeTail(now time.Time, p *path) {
	if p.flight == 0 || !a.state.sends() {
		return
	}
	p.probes++
	a.e.stats.TailProbes++
	switch {
	case a.marked > 0:
		a.target(a.firstMarked()).force = true
	case a.queue.len() > 0 && p == a.dataPath() && a.chunks.len() < maxOutstanding &&
		a.cutLen() <= a.rwnd:
		p.extra = true
	default:
		a.mark(a.sentChunk(p.newest), p.newest)
		p.force = true
	}
	a.watchTail(now, p)
}

// t3Timeout: nothing was heard of what was sent to p. Section 6.3.3.
func (a *Association) t3Timeout(now time.Time, p *path) {
	a.e.stats.Timeouts++
	// "If the sender continues to receive SACK chunks from the peer while doing zero window probing,
	// the unacknowledged window probes SHOULD NOT increment the error counter", nor does probing
	// affect cwnd: section 6.1 A.
	if !a.probing || !a.sackSeen {
		if a.fails(p, now.Add(-p.rto), true); a.state == StateClosed {
			return
		}
		// Of several in a row only the first says something of the window that there was: "the value
		// of ssthresh is held constant", RFC 5681, section 3.1.
		if !p.alone {
			if !a.undecided(now, p, p.rto) {
				p.undo.valid = false
				a.losses.begin(a.marked)
			}
			p.timeout = p.windows()
			p.cut()
		}
		p.cwnd = p.pmdcs()
		p.alone = true
		a.recovering = false
		a.swallowed(now, p, p.flight)
	}
	p.backOff(a.opt)
	p.probes, p.tailAt, p.lateAt = 0, time.Time{}, time.Time{}
	a.takeBack(a.chunks.len(), p)
	for i := range a.chunks.len() {
		if c := a.chunks.at(i); c.path == p && c.outstanding() {
			a.mark(c, a.ackTSN+1+TSN(i))
			c.timedOut = true
		}
	}
	if c := a.firstMarked(); c != nil {
		a.target(c).force = true
	}
}
