package sctp

import (
	"bytes"
	"io"
	"time"
)

// A sender is the outbound half of an association.
type sender struct {
	buf      sendBuffer
	queue    fifo[outMessage] // not or not wholly cut into chunks
	chunks   fifo[outChunk]   // numbered: ackTSN+1 .. nextTSN-1
	sets     chunkSets        // of chunks
	nextTSN  TSN
	ackTSN   TSN // Cumulative TSN Ack Point
	sentID   uint64
	ackedID  uint64
	outSSN   []uint16
	rwnd     int // what the peer can take beside what is in flight
	peerMost int // the largest a_rwnd that it has told
	inFlight int // user data outstanding, over all paths

	marked     int // chunks to be sent again
	markFrom   TSN // none before it is
	gapAcked   int // chunks acknowledged by gap ack blocks
	gapPackets int // of these, those that came first in a packet
	recovering bool
	exit       TSN // Fast Recovery ends when it is acknowledged
	losses     losses

	launched uint32 // counts transmissions of chunks

	burst int // packets with data that may go before something happens

	// Zero window probes. Section 6.1 A.
	probeAt  time.Time
	probe    bool // one chunk may go though the window is closed
	probing  bool // the first chunk is such a one
	sackSeen bool // since T3 was started last
}

// An outMessage waits for being sent. Its octets are in the send buffer.
type outMessage struct {
	id          uint64
	pos         uint64
	n, cut      int // octets, and how many of them have been cut into chunks
	ppid        uint32
	stream, ssn uint16
	flags       byte
}

// An outChunk has a TSN, and stays until that is acknowledged for good.
type outChunk struct {
	pos         uint64
	id          uint64 // of its message
	path        *path  // where it was sent last
	ppid        uint32
	stream, ssn uint16
	n           uint16
	flags       byte
	acked       bool // by a gap ack block
	marked      bool // to be sent again
	resent      bool // more than once
	lead        bool // it came first in its packet
	timedOut    bool // goes to another address, if there is one

	// In flight: when it was sent last, the how manyth of all that was, and its neighbours in that
	// order.
	sentAt      time.Duration
	order       uint32
	older, next TSN
}

// outstanding says whether c is in flight.
func (c *outChunk) outstanding() bool { return !c.acked && !c.marked }

// size is what c takes in a packet.
func (c *outChunk) size() int { return padded(dataLen + int(c.n)) }

// SendOptions say how a message is sent.
type SendOptions struct {
	Stream    uint16
	PPID      uint32
	Unordered bool
	Immediate bool // ask for a SACK at once (the I bit)
}

// Send queues a message, which it reads from src before it returns. Messages of all streams go out
// in the order of Send; they are numbered by id from 1 on, and EventAcked tells up to which they
// have arrived. ErrNoRoom: no room now.
func (a *Association) Send(now time.Time, o SendOptions, src Source) (id uint64, err error) {
	j := a.e.cfg.Journal
	if j == nil {
		return a.send(now, o, src)
	}
	b := make([]byte, src.Len())
	if _, err := io.ReadFull(src, b); err != nil {
		return 0, err
	}
	what := o
	j.Begin(&Call{Kind: CallSend, Now: now, Of: a.num, Octets: b, What: &what})
	id, err = a.send(now, o, bytes.NewReader(b))
	j.End(&Result{N: id, Err: err})
	return id, err
}

func (a *Association) send(_ time.Time, o SendOptions, src Source) (id uint64, err error) {
	n := src.Len()
	switch {
	case a.state == StateClosed:
		return 0, ErrClosed
	case a.state < StateEstablished:
		return 0, ErrNotConnected
	case a.state != StateEstablished:
		return 0, ErrShutdown
	case int(o.Stream) >= len(a.outSSN):
		return 0, ErrStream
	case n == 0:
		// "An endpoint SHOULD NOT send a DATA chunk with no user data part." Section 6.2.
		return 0, ErrEmpty
	case n > a.opt.SendBuffer || a.opt.NoFragments && n > a.MaxPayload():
		return 0, ErrTooLong
	}
	a.buf.limit = max(a.sendLimit(), min(n, a.opt.SendBuffer))
	if n > a.buf.room() || a.queue.len() >= maxMessages {
		return 0, ErrNoRoom
	}
	ring := len(a.buf.ring)
	pos, err := a.buf.put(src, n)
	a.e.grown += len(a.buf.ring) - ring
	if err != nil {
		return 0, err
	}
	a.sentID++
	m := a.queue.push()
	*m = outMessage{id: a.sentID, pos: pos, n: n, ppid: o.PPID, stream: o.Stream}
	if o.Unordered {
		m.flags |= flagU
	} else {
		m.ssn = a.outSSN[o.Stream]
		a.outSSN[o.Stream]++
	}
	if o.Immediate {
		m.flags |= flagI
	}
	a.mayBurst()
	a.e.changed(a)
	return a.sentID, nil
}

// mayBurst lets some packets go, and those that take the place of what has arrived: what SACKs have
// said since the last packet counts together, for they may come together. Section 6.1 D.
func (a *Association) mayBurst() { a.burst = max(a.burst, a.opt.MaxBurst) }

// spent is called when all was sent that may be now.
func (a *Association) spent() {
	a.burst = min(a.burst, a.opt.MaxBurst)
	for _, p := range a.paths {
		p.full = p.flight >= p.cwnd
	}
}

// Drop gives up the messages of a stream of which nothing has been sent yet, and says how many: the
// last ones that Send took for it. Their numbers count as acknowledged with those behind them.
func (a *Association) Drop(stream uint16) (n int) {
	if j := a.e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallDrop, Of: a.num, Port: stream})
		defer func() { j.End(&Result{N: uint64(n)}) }()
	}
	if a.queue.len() == 0 {
		return 0
	}
	kept, end := 0, a.queue.at(0).pos
	for i := range a.queue.len() {
		m := *a.queue.at(i)
		if m.stream == stream && m.cut == 0 {
			n++
			if m.flags&flagU == 0 {
				a.outSSN[stream]--
			}
			continue
		}
		// What is behind a gap moves down, so that there is room at once.
		a.buf.move(end, m.pos, m.n)
		m.pos = end
		end += uint64(m.n)
		*a.queue.at(kept) = m
		kept++
	}
	a.buf.tail = end
	for a.queue.len() > kept {
		a.queue.drop()
	}
	a.e.changed(a)
	return n
}

// Sent is the number of the last message that Send took, Acked of the last that has arrived with
// all before it.
func (a *Association) Sent() uint64  { return a.sentID }
func (a *Association) Acked() uint64 { return a.ackedID }

// Room is how many octets Send takes at present.
func (a *Association) Room() int {
	if a.state != StateEstablished || a.queue.len() >= maxMessages {
		return 0
	}
	a.buf.limit = a.sendLimit()
	return max(a.buf.room(), 0)
}

// sendLimit is how many octets are taken from the user. On a long path that is what is kept for the
// peer, also of what has arrived behind a hole, and a window more, so that no more waits here than
// a round trip's worth; a short one has no use for more than the least, and memory that stays in
// the caches is faster.
func (a *Association) sendLimit() int {
	limit := leastSendLimit
	if p := a.dataPath(); p.rack.MinRTT() >= longPath {
		sent := int(a.buf.tail - a.buf.head)
		if a.queue.len() > 0 {
			m := a.queue.at(0)
			sent = int(m.pos-a.buf.head) + m.cut
		}
		limit = max(limit, sent+p.cwnd)
	}
	return min(a.opt.SendBuffer, limit)
}

const (
	leastSendLimit = 1 << 20
	longPath       = time.Millisecond // a round trip in which leastSendLimit makes 8 Gbit/s
)

// output builds the next packet of a over b; ok is false if there is none to be sent.
func (a *Association) output(now time.Time, b []byte) (d Datagram, ok bool) {
	switch {
	case a.state == StateClosed:
		return Datagram{}, false
	case a.setupDue:
		a.setupDue = false
		p := a.paths[a.setupPath%len(a.paths)]
		if a.state == StateCookieWait {
			return finishPacket(p, a.appendInit(header{a.lport, a.rport, 0}.append(b))), true
		}
		return finishPacket(p, a.appendCookieEcho(a.header().append(b), p.pmtu)), true
	case len(a.ctl) > 0:
		return a.packet(now, a.ctlPath, b)
	}
	for _, p := range a.paths {
		if p.beatDue {
			p.beatDue = false
			return finishPacket(p, p.appendHeartbeat(a.header().append(b), p.nonce)), true
		}
		if p.prober.due {
			p.prober.due = false
			d = finishPacket(p, p.appendProbe(a.header().append(b)))
			d.DF = true
			return d, true
		}
	}
	if p := a.next(now); p != nil {
		if d, ok = a.packet(now, p, b); ok {
			return d, true
		}
	}
	if a.sackNow {
		return a.packet(now, a.sackPath(), b)
	}
	if a.shutdownDue {
		a.shutdownDue = false
		b = a.header().append(b)
		if a.state == StateShutdownAckSent {
			b = appendChunk(b, chunkShutdownAck, 0, nil)
		} else {
			b = appendShutdown(b, a.have.cum)
		}
		return finishPacket(a.dataPath(), b), true
	}
	return Datagram{}, false
}

// finishPacket addresses a packet. One that is larger than the path takes may be fragmented: it was
// cut before the path was known to be narrow, or is part of the set-up.
func finishPacket(p *path, b []byte) Datagram {
	finish(b)
	return Datagram{p.src, p.addr, b, len(b) <= p.pmtu, p.encap}
}

// packet builds a packet to p: control chunks, then a SACK, then DATA (section 6.10).
func (a *Association) packet(now time.Time, p *path, b []byte) (Datagram, bool) {
	b = a.header().append(b)
	if len(a.ctl) > 0 && a.ctlPath == p {
		b = append(b, a.ctl...)
		a.ctl = a.ctl[:0]
	}
	may := p.confirmed && a.state.sends() && a.mayFill(now, p)
	if (a.sackNow || may && !a.sackAt.IsZero()) && p.confirmed && (p == a.sackPath() ||
		len(a.paths) == 1) {
		b = a.appendSack(b, p.pmtu)
	}
	if may {
		b = a.fill(now, p, b)
	}
	if len(b) == headerLen {
		return Datagram{}, false
	}
	return finishPacket(p, b), true
}

// next is the path that DATA is to be sent to now; nil if none may be.
func (a *Association) next(now time.Time) *path {
	if !a.state.sends() {
		return nil
	}
	if c := a.firstMarked(); c != nil {
		if p := a.target(c); a.mayFill(now, p) {
			return p
		}
		return nil
	}
	if p := a.dataPath(); a.queue.len() > 0 && a.mayFill(now, p) {
		return p
	}
	return nil
}

// mayFill says whether cwnd lets DATA go to p, and there is some for it. "If data is available, the
// sender SHOULD exceed cwnd by up to (PMDCS - 1) bytes on a new data transmission if the flightsize
// does not currently reach cwnd. The breach of cwnd MUST constitute one packet only." Section 6.1
// B.
func (a *Association) mayFill(now time.Time, p *path) bool {
	if c := a.firstMarked(); c != nil {
		return a.target(c) == p && (p.force || a.open(p))
	}
	p.force = false
	if a.queue.len() == 0 || p != a.dataPath() || a.chunks.len() >= maxOutstanding {
		return false
	}
	a.decay(now, p)
	return a.open(p) && a.windowOpen(now, p)
}

// open says whether a packet may be put into flight on p.
func (a *Association) open(p *path) bool {
	return a.burst > 0 && (p.extra || p.flight < p.cwnd && !(p.alone && p.flight > 0))
}

// decay shrinks cwnd of a path that had no data for a while. Section 7.2.1.
func (a *Association) decay(now time.Time, p *path) {
	if p.flight > 0 {
		return
	}
	if now.Sub(p.lastData) >= p.rto {
		p.cubic.Pause()
	}
	for floor := 4 * p.pmdcs(); p.cwnd > floor && now.Sub(p.lastData) >= p.rto; {
		p.lastData = p.lastData.Add(p.rto)
		if !p.decays { // "before the first cwnd adjustment"
			p.decays, p.ssthresh = true, p.cwnd
		}
		p.cwnd = max(p.cwnd/2, floor)
	}
}

// cutLen is how long the next chunk will be: never longer than the peer's whole buffer, or it would
// have to go as a probe.
func (a *Association) cutLen() int {
	m := a.queue.at(0)
	if m.cut == 0 && m.n <= min(a.maxChunk(), a.peerMost) {
		return m.n // one chunk is better than two with room beside them
	}
	return min(m.n-m.cut, a.MaxPayload(), a.peerMost)
}

// windowOpen says whether the peer has room for the next chunk; if not, it sees to probes. A chunk
// is never made smaller to fit the window, so no silly ones are sent.
func (a *Association) windowOpen(now time.Time, p *path) bool {
	if a.cutLen() <= a.rwnd {
		a.probeAt, a.probe = time.Time{}, false
		return true
	}
	// "A zero window probe SHOULD only be sent when all outstanding DATA chunks have been
	// cumulatively acknowledged and no DATA chunks are in flight." Section 6.1 A.
	if a.chunks.len() > 0 {
		return false
	}
	if a.probe {
		return true
	}
	if a.probeAt.IsZero() {
		a.probeAt = now.Add(p.rto)
	}
	return false
}

// firstMarked finds the lowest TSN that is to be sent again.
func (a *Association) firstMarked() *outChunk {
	if a.marked == 0 {
		return nil
	}
	for i := max(0, int(int32(a.markFrom-a.ackTSN-1))); ; i++ {
		if c := a.chunks.at(i); c.marked {
			a.markFrom = a.ackTSN + 1 + TSN(i)
			return c
		}
	}
}

// target is where a chunk that is to be sent again goes: section 6.4.
func (a *Association) target(c *outChunk) *path {
	if c.timedOut {
		if p := a.alternate(c.path); p != nil {
			return p
		}
	}
	if c.path.active && c.path.confirmed {
		return c.path
	}
	return a.dataPath()
}

// fill appends DATA chunks for p: those to be sent again first, then new ones, in the order of
// TSNs.
func (a *Association) fill(now time.Time, p *path, b []byte) []byte {
	empty, last := len(b), -1
	open := a.open(p) // for new data
	probe := p.probes > 0 && (p.extra || p.force)
	for a.marked > 0 {
		c := a.firstMarked()
		// A chunk that is larger than the packet may be goes alone, in IP fragments: "Once a user
		// message is fragmented, it cannot be re-fragmented." Section 6.9.
		if a.target(c) != p || len(b)+c.size() > p.pmtu && len(b) > headerLen {
			break
		}
		c.lead, last = last < 0, len(b)
		b = a.resend(now, p, c, b)
		p.force = false // if none has fitted beside what is there already, the next packet is still due
	}
	for open && a.marked == 0 && a.queue.len() > 0 && p == a.dataPath() &&
		a.chunks.len() < maxOutstanding {
		n := a.cutLen()
		if len(b)+padded(dataLen+n) > p.pmtu || !a.windowOpen(now, p) {
			break
		}
		lead := last < 0
		last = len(b)
		b = a.cut(now, p, n, b)
		a.chunks.at(a.chunks.len() - 1).lead = lead
	}
	if len(b) > empty {
		// Where so little is in flight that the peer's delay of its SACK would be waited for, it is
		// asked not to: RFC 9260, section 3.3.1, the I bit.
		p.prompt = probe || p.flight <= 4*p.pmtu && (p.alone || p.flight >= p.cwnd)
		if p.prompt {
			b[last+1] |= flagI
		}
		p.extra = false
		a.watchTail(now, p)
		a.burst--
		p.lastData, p.decays = now, false
	}
	return b
}

// cut numbers n octets of the first message that waits, and appends them.
func (a *Association) cut(now time.Time, p *path, n int, b []byte) []byte {
	m := a.queue.at(0)
	c := a.chunks.push()
	*c = outChunk{
		pos: m.pos + uint64(m.cut), id: m.id, path: p, ppid: m.ppid, stream: m.stream, ssn: m.ssn,
		n:     uint16(n),
		flags: m.flags &^ flagI,
	}
	if m.cut == 0 {
		c.flags |= flagB
	}
	if a.probe {
		a.probe, a.probing = false, true
	}
	if m.cut += n; m.cut == m.n {
		c.flags |= flagE | m.flags&flagI
		a.queue.pop()
		// The peer's delay of its SACK would delay the shutdown.
		if a.state == StateShutdownPending && a.queue.len() == 0 {
			c.flags |= flagI
		}
	}
	tsn := a.nextTSN
	a.nextTSN++
	a.sets.fit(a.ackTSN+1, a.chunks.len())
	if !p.timing {
		p.timing, p.timed = true, tsn
	}
	if p.confirmed {
		a.idle(now, p)
	}
	a.launch(now, p, c, tsn, false)
	return a.appendData(b, c, tsn)
}

// resend appends a chunk again.
func (a *Association) resend(now time.Time, p *path, c *outChunk, b []byte) []byte {
	tsn := a.markFrom // firstMarked has just found it
	a.e.stats.Retransmits++
	c.marked = false
	a.marked--
	a.losses.resent(now, c, tsn)
	if q := c.path; q.timing && q.timed == tsn {
		q.timing = false // Karn's rule: docs/decisions.md#P5
	}
	c.path, c.timedOut, c.resent = p, false, true
	// A tail loss probe does not put T3 off.
	a.launch(now, p, c, tsn, p.probes == 0 && a.isEarliest(p, c))
	return a.appendData(b, c, tsn)
}

// launch accounts for a chunk that goes to p, and sees to T3: section 6.1, and rule R1 of section
// 6.3.2.
func (a *Association) launch(now time.Time, p *path, c *outChunk, tsn TSN, restart bool) {
	p.flight += c.size()
	a.launched++
	c.sentAt, c.order = instant(now), a.launched
	a.enlist(p, c, tsn)
	a.inFlight += int(c.n)
	a.rwnd = max(0, a.rwnd-int(c.n))
	if p.t3.IsZero() || restart {
		p.t3 = now.Add(p.rto)
		a.sackSeen = false
	}
}

// isEarliest says whether no chunk before c is outstanding on p.
func (a *Association) isEarliest(p *path, c *outChunk) bool {
	for i := range a.chunks.len() {
		switch d := a.chunks.at(i); {
		case d == c:
			return true
		case d.path == p && d.outstanding():
			return false
		}
	}
	return true
}

func (a *Association) appendData(b []byte, c *outChunk, tsn TSN) []byte {
	at := len(b)
	b = appendDataHeader(b, c.flags, tsn, c.stream, c.ssn, c.ppid, int(c.n))
	x, y := a.buf.at(c.pos, int(c.n))
	return appendPadding(append(append(b, x...), y...), at)
}

// mark has a chunk in flight sent again.
func (a *Association) mark(c *outChunk, tsn TSN) {
	a.delist(c, tsn)
	c.path.flight -= c.size()
	a.inFlight -= int(c.n)
	a.rwnd += int(c.n)
	a.markAgain(c, tsn)
}

// markAgain has a chunk that is not in flight sent again.
func (a *Association) markAgain(c *outChunk, tsn TSN) {
	if a.marked == 0 || tsn.before(a.markFrom) {
		a.markFrom = tsn
	}
	c.marked = true
	a.marked++
	a.losses.doubt++
}

// sentChunk is the chunk with a TSN that is not acknowledged for good.
func (a *Association) sentChunk(tsn TSN) *outChunk {
	return a.chunks.at(int(uint32(tsn - a.ackTSN - 1)))
}

// enlist puts a chunk at the end of those in flight on p, and delist takes it out.
func (a *Association) enlist(p *path, c *outChunk, tsn TSN) {
	if c.older = p.newest; p.listed == 0 {
		p.oldest = tsn
	} else {
		a.sentChunk(p.newest).next = tsn
	}
	p.newest = tsn
	p.listed++
	a.sets.add(inFlight, tsn)
}

func (a *Association) delist(c *outChunk, tsn TSN) {
	p := c.path
	a.sets.remove(inFlight, tsn)
	if p.listed--; p.listed == 0 {
		return
	}
	switch tsn {
	case p.oldest:
		p.oldest = c.next
	case p.newest:
		p.newest = c.older
	default:
		a.sentChunk(c.older).next, a.sentChunk(c.next).older = c.next, c.older
	}
}
