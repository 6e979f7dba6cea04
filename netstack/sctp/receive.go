package sctp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"
)

// A receiver is the inbound half of an association.
type receiver struct {
	have  tsnMap
	frags reassembler
	in    []inStream

	held   int // octets that have come and are not released, fragments and early messages included
	kept   int // octets of memory that these take, about
	pieces int // chunks of these
	lent   int // messages with the user, or on their way there

	gotData bool // some DATA has come
	// What the packet at hand brought.
	packetData, packetOdd bool // DATA; DATA for which the SACK does not wait
	filled                bool // there was a hole before

	sackNow    bool
	sackAt     time.Time // delayed SACK; zero: none is due
	packets    int       // with DATA, since the last SACK
	dups       []TSN
	dataFrom   *path // where DATA came from last
	advertised int   // a_rwnd as last told, less what has come since
}

// maxDups is how many duplicates a SACK lists.
const maxDups = 32

var (
	errFragments  = errors.New("fragments that are of no one message")
	errSSN        = errors.New("a stream sequence number used twice")
	errTooLarge   = errors.New("a message that the receive buffer does not hold")
	errNoUserData = errors.New("a DATA chunk without user data")
)

// handleData takes a DATA chunk; more is false if the rest of the packet is to be discarded.
// Sections 6.2, 6.5, 6.6 and 6.9.
func (a *Association) handleData(in *inPacket, from *path, c chunk) (more bool) {
	d, ok := parseData(c)
	if !ok {
		return false
	}
	if !a.state.receives() {
		a.e.stats.DataDropped++
		return true
	}
	t, data := d.tsn(), d.data()
	if len(data) == 0 {
		var info [4]byte
		binary.BigEndian.PutUint32(info[:], uint32(t))
		a.abort(CauseNoUserData, info[:], errNoUserData)
		return false
	}
	a.packetData = true
	if from != nil {
		a.dataFrom = from
	}
	if !a.have.reaches(t) {
		a.drop()
		return true
	}
	if a.have.has(t) {
		a.e.stats.Duplicates++
		a.packetOdd = true // "the endpoint MUST immediately send a SACK chunk with no delay"
		if len(a.dups) < maxDups {
			a.dups = append(a.dups, t)
		}
		return true
	}
	if !a.gotData || d.flags()&flagI != 0 {
		a.gotData, a.packetOdd = true, true
	}
	if int(d.stream()) >= len(a.in) {
		a.accept(t, 0)
		a.control(in, func(b []byte) []byte {
			at := len(b)
			return endChunk(appendCause32(beginChunk(b, chunkError, 0), CauseInvalidStream,
				uint32(d.stream())<<16), at)
		})
		return true
	}
	i, left, right, ok := a.frags.place(d, &a.have)
	if !ok { // docs/decisions.md#P2
		a.abort(CauseProtocolViolation, []byte(errFragments.Error()), errFragments)
		return false
	}
	next := t == a.have.cum+1
	cost, small := a.memory(in, len(data))
	if !a.fits(t, len(data), cost, next && a.delivers(d, i, left, right)) {
		if next && a.have.above == 0 && a.lent == 0 {
			// Nothing can be delivered to make room, and nothing else is waited for.
			a.abort(CauseOutOfResource, nil, errTooLarge)
			return false
		}
		a.drop()
		return true
	}
	a.accept(t, len(data))
	m := a.newMessage(in, d, cost, small)
	if m = a.frags.add(m, i, left, right, a.e.free.putMessage); m != nil {
		return a.whole(m)
	}
	return true
}

// memory is about how many octets of memory a chunk of n octets takes that is held. A small one
// keeps a packet that is much larger, which counts as a whole; where there is too much of that it
// is to be copied out of it. Others count as what they are.
func (a *Association) memory(in *inPacket, n int) (cost int, small bool) {
	packet := max(len(in.Data), packetLeast)
	if n >= packet/3 {
		return n, false
	}
	if a.kept+packet <= a.opt.RecvBuffer && a.e.held+packet <= a.e.cfg.HeldMost {
		return packet, false
	}
	return max(n, heldPerPiece), true
}

// delivers says whether d, the next by its TSN, makes a message whole whose turn it is. place has
// said the rest.
func (a *Association) delivers(d dataChunk, i int, joinsLeft, joinsRight bool) bool {
	f := d.flags() & (flagB | flagE)
	if joinsLeft {
		f |= a.frags.runs[i-1].whole
	}
	if joinsRight {
		f |= a.frags.runs[i].whole
	}
	return f == flagB|flagE &&
		(d.flags()&flagU != 0 || d.ssn() == a.in[d.stream()].next)
}

// fits says whether there is room for n octets with TSN t. What fills a hole is always taken, up to
// twice the buffer: an honest sender has counted it into the window already, and what was told to
// have come is not dropped for it (section 6.2 would allow that, and asks not to). Where all
// associations together hold too much only what delivers a message at once is taken, and a little
// beside: the peer sends the rest again.
func (a *Association) fits(t TSN, n, cost int, delivers bool) bool {
	if !delivers && a.e.held+cost > a.e.cfg.HeldMost && a.kept+cost > heldLeast {
		return false
	}
	if t.before(a.have.high) {
		// Where the user has nothing only the next message makes room.
		return a.held+n <= 2*a.opt.RecvBuffer &&
			(a.pieces < 2*a.maxPieces() || delivers && a.lent == 0)
	}
	return a.held+n <= a.opt.RecvBuffer && a.pieces < a.maxPieces()
}

// maxPieces bounds the memory that small chunks take beside their octets.
func (a *Association) maxPieces() int { return max(64, a.opt.RecvBuffer/heldPerPiece) }

// drop refuses a chunk: "the receiver MUST immediately send back a SACK chunk with the current
// receive window showing only DATA chunks received and accepted so far". Section 6.2.
func (a *Association) drop() {
	a.e.stats.DataDropped++
	a.packetOdd = true
}

// accept notes that t has come with n octets that are kept.
func (a *Association) accept(t TSN, n int) {
	a.have.mark(t)
	a.held += n
	a.advertised = max(0, a.advertised-n)
}

// newMessage makes a run of one chunk, and keeps its part of the packet, or a copy if it is small.
// Of its memory cost is counted.
func (a *Association) newMessage(in *inPacket, d dataChunk, cost int, small bool) *Message {
	m, p := a.e.free.message(), a.e.free.piece()
	*p = piece{data: d.data(), ref: in.Ref, cost: cost}
	if small {
		p.data, p.ref = bytes.Clone(p.data), nil
	}
	if p.ref != nil {
		p.ref.Hold()
	}
	a.pieces++
	a.kept += cost
	a.e.held += cost
	f := d.flags()
	*m = Message{
		Stream: d.stream(), SSN: d.ssn(), PPID: d.ppid(), TSN: d.tsn(), Unordered: f&flagU != 0,
		assoc: a, last: d.tsn(), whole: f & (flagB | flagE), first: p, tail: p, size: len(p.data),
	}
	return m
}

// whole delivers a complete message, or keeps it until its turn comes.
func (a *Association) whole(m *Message) (more bool) {
	if m.Unordered {
		a.deliver(m)
		return true
	}
	s := &a.in[m.Stream]
	if m.SSN != s.next {
		if !s.hold(m) {
			a.abort(CauseProtocolViolation, []byte(errSSN.Error()), errSSN)
			a.giveUp(m)
			return false
		}
		return true
	}
	s.next++
	for ; m != nil; m = s.ready() {
		a.deliver(m)
	}
	return true
}

func (a *Association) deliver(m *Message) {
	m.Missing, m.num = a.have.missing(), a.e.number()
	a.lent++
	a.event(Event{Kind: EventMessage, Msg: m})
}

// Release gives up the ranges of a message, which opens the window. Nothing of m may be used then.
func (m *Message) Release() {
	a := m.assoc
	if a == nil {
		return
	}
	if j := a.e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallRelease, Of: m.num})
		defer j.End(&Result{})
	}
	a.lent--
	a.giveUp(m)
	// "When the window opens up, an SCTP receiver SHOULD send additional SACK chunks to update the
	// window": when it has opened by a quarter of the buffer. Section 6.2.
	if a.state.receives() && a.window()-a.advertised >= a.opt.RecvBuffer/4 {
		a.sackNow = true
		a.e.changed(a)
	}
}

// giveUp releases the packets that m lies in.
func (a *Association) giveUp(m *Message) {
	a.held -= m.size
	for p := m.first; p != nil; {
		n := p.next
		if p.ref != nil {
			p.ref.Release()
		}
		a.pieces--
		a.kept -= p.cost
		a.e.held -= p.cost
		a.e.free.putPiece(p)
		p = n
	}
	a.e.free.putMessage(m)
}

// discard gives up what has come and will not be delivered.
func (a *Association) discard() {
	for _, m := range a.frags.runs {
		a.giveUp(m)
	}
	a.frags.runs = nil
	for i := range a.in {
		for _, m := range a.in[i].held {
			a.giveUp(m)
		}
		a.in[i].held = nil
	}
}

// window is the room there is.
func (a *Association) window() int {
	if a.pieces >= a.maxPieces() {
		return 0
	}
	return max(0, a.opt.RecvBuffer-a.held)
}

// advertise is the window to be told: it opens in steps only, so that nobody sends into slivers.
func (a *Association) advertise() uint32 {
	w := a.window()
	if w < a.advertised || w == a.opt.RecvBuffer || w-a.advertised >= min(a.opt.RecvBuffer/4,
		a.dataPath().pmdcs()) {
		a.advertised = w
	}
	return uint32(a.advertised)
}

// endOfPacket decides when what has come is acknowledged: "for at least every second packet",
// "within 200 ms", and at once where a TSN is missing or came twice. Sections 6.2, 6.7 and 9.2.
func (a *Association) endOfPacket(now time.Time) {
	if a.state == StateShutdownSent {
		// "The reception of any packet from its peer SHOULD clear the endpoint's retransmission
		// count and restart the T2-shutdown timer."
		a.errors = 0
		a.t2 = now.Add(a.t2RTO)
	}
	if !a.packetData {
		return
	}
	odd := a.packetOdd || a.have.above > 0 || a.filled
	a.packetData, a.packetOdd, a.filled = false, false, a.have.above > 0
	if a.state == StateShutdownSent {
		// "MUST immediately respond to each received packet containing one or more DATA chunks with
		// a SHUTDOWN chunk"; gaps and duplicates need a SACK.
		a.shutdownDue = true
		if a.have.above == 0 && len(a.dups) == 0 {
			return
		}
		odd = true
	}
	if a.packets++; odd || a.packets >= 2 {
		a.sackNow = true
	} else if a.sackAt.IsZero() {
		a.sackAt = now.Add(a.opt.SACKDelay)
	}
}

// sackPath is where SACKs go: "always to the same destination address from which the last DATA
// chunk was received", section 6.7, if that is confirmed.
func (a *Association) sackPath() *path {
	if p := a.dataFrom; p != nil && p.confirmed && a.path(p.addr) == p {
		return p
	}
	return a.dataPath()
}

// appendSack appends a SACK to a packet that may have limit octets: "The SCTP endpoint MUST report
// as many Gap Ack Blocks as can fit", from the lowest on.
func (a *Association) appendSack(b []byte, limit int) []byte {
	room := (limit - len(b) - sackLen) / 4
	if room < 0 {
		return b
	}
	e := a.e
	e.gaps = a.have.gaps(e.gaps[:0], room)
	dups := a.dups[:min(len(a.dups), room-len(e.gaps))]
	b = appendSack(b, a.have.cum, a.advertise(), e.gaps, dups)
	a.dups = a.dups[:0]
	a.sackNow, a.sackAt, a.packets = false, time.Time{}, 0
	return b
}
