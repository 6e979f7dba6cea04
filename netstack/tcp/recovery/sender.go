package recovery

import (
	"fmt"
	"time"
)

// The states of a Sender.
type state uint8

const (
	open     state = iota
	recovery       // something was lost
	timedOut       // nothing was acknowledged for too long
)

const (
	initialWindow = 10                     // segments, RFC 6928
	maxBurst      = 10                     // segments that go out at once where much was lost
	leastTimeout  = 300 * time.Millisecond // within which one follows what was sent last, mostly
	minWindow     = 2
	maxWindow     = 1 << 30 // octets
	// duplicates is how many segments have to have arrived behind a gap for it to be lost at once, as
	// long as nothing was ever late: RFC 5681's three duplicate ACKs.
	duplicates = 3
	// persist is for how many recoveries a wider reordering window stays (RFC 8985, section 6.2 step
	// 4).
	persist = 16
)

// An Ack is what an ACK says.
type Ack struct {
	At     time.Duration
	Number Seq
	Blocks []Block // of its SACK option
	Seen   bool    // it was seen on the wire, and is not just what is known to be acknowledged
	// Early says that the ACK answers a segment from before the first retransmission of this recovery
	// (RFC 3522): its timestamp is older.
	Early bool
}

// A Sender is one direction of a connection.
type Sender struct {
	mss    int
	board  scoreboard
	nxt    Seq
	state  state
	cwnd   int // octets
	owed   int // what cwnd would be, but that not all of it may go out at once; 0: it is that
	thresh int // octets, slow start's end
	cubic  cubic

	tailUna   Seq           // una when Tail looked last
	tailSince time.Duration // since when it is that, for all that Tail knows
	trouble   time.Duration // until when there is trouble
	recover   Seq           // the state ends when this is acknowledged
	far       Seq           // the end of the farthest octet that has arrived
	order     uint64
	arrived   uint64 // the latest retransmission that has arrived
	probe     Seq    // the end of a tail loss probe
	probing   bool
	detected  bool // a gap became lost at the last look

	// proportional rate reduction, in octets
	delivered, out, flight int
	fresh                  int // delivered since the window was worked out
	advanced               bool

	// undo
	was      before // the losses that may have been none
	timeout  before // the last timeout, or also what was before if that was none for sure
	undoable bool
	silent   bool          // nothing was acknowledged since the last timeout
	doubted  bool          // a timeout, after which nothing was acknowledged yet
	inDoubt  int           // octets that were found lost, and are not known to have been late
	resentAt time.Duration // when something was sent again last
	repaired bool          // in this recovery a retransmission has arrived where nothing else had

	// round trips
	minRTT, lastMin, srtt, rttvar time.Duration
	minSince                      time.Duration

	// reordering
	reordered bool
	late      time.Duration // how late what was late came, at most
	mult      int
	multSeq   Seq // until this is acknowledged mult is not raised again
	persists  int

	// Whole, unless it is nil, is how many octets from a sequence number on, which were sent, are to
	// be sent again at once, if most would fit: receivers count on it that segments begin where they
	// did (docs/interop.md#S5). 0: it does not know.
	Whole func(from Seq, most int) int

	Stats Stats
}

// before is what a recovery that was none gives back.
type before struct {
	cwnd, thresh int
	cubic        cubic
}

// Stats count over the life of a Sender.
type Stats struct {
	Recoveries, Timeouts uint64 // losses that were found, and that a timeout has found
	Undone               uint64 // of them were none
	LostAgain            uint64 // retransmissions that were lost, too
	Probes               uint64 // of the tail
}

// Init begins at una, with segments of mss octets.
func (s *Sender) Init(una Seq, mss int) {
	*s = Sender{mss: max(mss, 1), nxt: una, far: una, recover: una, multSeq: una, mult: 1,
		cwnd: initialWindow * mss, thresh: maxWindow}
	s.board.una, s.board.high = una, una
}

// Active reports whether there is anything that an ACK without news could change.
func (s *Sender) Active() bool {
	return s.state != open || s.board.high != s.board.una || s.probing
}

// pipe is how many octets are under way.
func (s *Sender) pipe() int { return int(s.nxt-s.board.una) - s.board.sacked() - s.board.lost }

// RTT is told how long a round trip took.
func (s *Sender) RTT(now, rtt time.Duration) {
	rtt = max(rtt, time.Microsecond)
	if s.srtt == 0 {
		s.srtt, s.rttvar = rtt, rtt/2
	} else {
		s.rttvar += ((s.srtt - rtt).Abs() - s.rttvar) / 4
		s.srtt += (rtt - s.srtt) / 8
	}
	// the minimum of the last one to two minutes
	if now-s.minSince > time.Minute {
		s.lastMin, s.minRTT, s.minSince = s.minRTT, 0, now
	}
	if s.minRTT == 0 || rtt < s.minRTT {
		s.minRTT = rtt
	}
}

func (s *Sender) least() time.Duration {
	if s.lastMin > 0 {
		return min(s.lastMin, max(s.minRTT, 1))
	}
	return s.minRTT
}

// MinRTT is the shortest round trip of the last minutes, or 0.
func (s *Sender) MinRTT() time.Duration { return s.least() }

// SRTT is the smoothed round trip, or 0.
func (s *Sender) SRTT() time.Duration { return s.srtt }

// Sent is told that what was sent ends at nxt, and that segments have mss octets.
func (s *Sender) Sent(nxt Seq, mss int) {
	s.mss = max(mss, 1)
	if s.nxt.before(nxt) {
		s.out += int(nxt - s.nxt)
		s.nxt = nxt
	}
}

// Acked is told that an ACK has come.
func (s *Sender) Acked(a Ack) {
	if s.nxt.before(a.Number) {
		return
	}
	early := a.Early && s.board.una.before(a.Number)
	was := s.pipe()
	fresh := 0
	if una := s.board.una; una.before(a.Number) {
		before := s.board.sacked()
		n := int(a.Number - una)
		s.board.advance(a.Number, func(g *gap, n int) {
			// Of what is behind the first gap nobody knows how long it has been there: an ACK has room for
			// three blocks, and some are lost.
			s.arrivedPart(g, n, a.At, g.start == una)
		})
		fresh += n - (before - s.board.sacked())
		s.far = later(s.far, a.Number)
		s.advanced = true
	}
	blocks := a.Blocks
	if len(blocks) > 0 && duplicate(a) {
		s.duplicated(blocks[0], a.At)
		blocks = blocks[1:]
	}
	for _, k := range blocks {
		if k.Start.before(k.End) && s.board.una.before(k.End) && !s.nxt.before(k.End) {
			fresh += s.board.sack(k, a.At, func(g *gap, n int) { s.arrivedPart(g, n, a.At, true) })
			s.far = later(s.far, k.End)
		}
	}
	if s.board.una == s.board.high { // nothing is known beyond una
		s.far = later(s.far, s.board.una)
	}
	s.fresh += fresh
	if fresh > 0 {
		s.doubted, s.silent = false, false
	}
	switch {
	case !s.undoable:
	case s.state == timedOut && early:
		s.undo(a.At, s.timeout)
	case s.state == recovery && (s.inDoubt <= 0 ||
		early && !s.repaired && s.board.lost == 0 && s.board.resent == 0):
		s.undo(a.At, s.was) // all that was thought to be lost has arrived, and no retransmission can have
	}
	s.probed(a, fresh)
	if s.state != open && !s.board.una.before(s.recover) {
		if s.leave(); fresh > maxBurst*s.mss {
			return
		}
	}
	if s.state != recovery {
		s.grow(fresh, was, a.At)
	}
}

// probed looks at what an ACK says of a tail loss probe (RFC 8985, section 7.4.2).
func (s *Sender) probed(a Ack, fresh int) {
	switch {
	case !s.probing || s.board.una.before(s.probe):
	case duplicate(a) || fresh == 0 && len(a.Blocks) == 0 && a.Number == s.probe && a.Seen:
		s.probing = false // the peer has it twice
	case s.probe.before(s.board.una):
		s.probing = false
		if s.state == open { // the probe has repaired a loss
			s.enter(recovery, a.At)
			s.recover, s.inDoubt = s.board.una, s.inDoubt+s.mss
		}
	}
}

// Tail is what to send again to see whether the end of what was sent is lost, if that is due (RFC
// 8985, section 7); else next is when to ask again, or 0: not before something happens. last is
// when something was sent last. A probe counts as sent.
func (s *Sender) Tail(now, last time.Duration) (b Block, ok bool, next time.Duration) {
	if s.state != open || s.board.high != s.board.una || s.board.una == s.nxt || s.probing ||
		s.srtt == 0 {
		return b, false, 0
	}
	wait := 2*s.srtt + tailWait
	if int(s.nxt-s.board.una) < 2*s.mss { // more is acknowledged at once
		wait += delayedACK
	}
	if s.tailUna != s.board.una { // something was acknowledged since the last look
		s.tailUna, s.tailSince = s.board.una, now
	}
	if due := max(last, s.tailSince) + wait; now < due {
		return b, false, due
	}
	s.probing, s.probe = true, s.nxt
	s.order++
	s.Stats.Probes++
	return Block{later(s.board.una, s.nxt-Seq(s.mss)), s.nxt}, true, 0
}

const (
	// tailWait is what is added to two round trips: timers are not exact.
	tailWait = 2 * time.Millisecond
	// delayedACK is how long a peer may wait with an ACK for a single segment.
	delayedACK = 50 * time.Millisecond
)

// Troubled reports whether something was lost in the last seconds.
func (s *Sender) Troubled(now time.Duration) bool { return s.trouble > 0 && now < s.trouble }

// troubled is how long after a loss a Sender is Troubled.
const troubled = 5 * time.Second

// duplicate reports whether the first block of a says what the peer has got twice (RFC 2883).
func duplicate(a Ack) bool {
	if len(a.Blocks) == 0 {
		return false
	}
	b := a.Blocks[0]
	if b.Start.before(a.Number) {
		return true
	}
	return len(a.Blocks) > 1 && !b.Start.before(a.Blocks[1].Start) && !a.Blocks[1].End.before(b.End)
}

// arrivedPart notes that n octets of g have arrived, and if it is known, that they have just now.
func (s *Sender) arrivedPart(g *gap, n int, now time.Duration, known bool) {
	if g.state == lost {
		s.inDoubt -= n
	}
	if !g.again { // it was late, not lost
		if known {
			s.reordered = true
			s.late, s.persists = max(s.late, now-g.since), persist
		}
		if s.doubted && s.undoable {
			s.undo(now, s.timeout) // F-RTO, RFC 5682: the peer had it all the time
		}
		return
	}
	if now-g.sentAt >= s.least() { // else it is the first transmission that has come
		s.arrived, s.repaired = max(s.arrived, g.order), true
	}
}

// duplicated is told of octets that the peer has got twice.
func (s *Sender) duplicated(k Block, now time.Duration) {
	n := int(k.End - k.Start)
	if n <= 0 || n > 1<<30 {
		return
	}
	if s.probing {
		s.probing = false // a probe was for nothing, as most are
		return
	}
	if s.order == 0 {
		return // nothing was sent twice: the network has doubled it
	}
	s.reordered, s.persists = true, persist
	if !s.board.una.before(s.multSeq) {
		s.mult, s.multSeq = min(s.mult+1, 64), s.nxt
	}
	if s.undoable {
		if s.inDoubt -= n; s.inDoubt <= 0 {
			s.undo(now, s.was)
		}
	}
}

// enter begins a recovery or what follows a timeout.
func (s *Sender) enter(to state, now time.Duration) {
	// The peer may still be about to say that what was sent again in the last recovery was not needed:
	// then there were not two losses, but none or one.
	w := max(s.cwnd, s.owed)
	within := s.srtt + 4*s.rttvar
	if to == timedOut {
		within = max(within, leastTimeout)
	}
	if !s.undoable || s.inDoubt <= 0 || s.srtt > 0 && now-s.resentAt > within {
		s.was = before{w, s.thresh, s.cubic}
		s.repaired, s.inDoubt = false, 0
	}
	// That a timeout was none says nothing of a loss before it that a retransmission has repaired.
	if s.timeout = s.was; s.repaired {
		s.timeout = before{w, s.thresh, s.cubic}
	}
	s.undoable = true
	least := s.cubic.lost(float64(w) / float64(s.mss))
	s.thresh, s.owed = max(int(least*float64(s.mss)), minWindow*s.mss), 0
	s.state, s.recover = to, s.nxt
	s.delivered, s.out, s.flight = 0, 0, max(s.pipe()+s.board.lost, s.mss)
	if to == recovery {
		s.Stats.Recoveries++
	} else {
		s.Stats.Timeouts++
		s.cwnd = s.mss
	}
}

// leave ends it.
func (s *Sender) leave() {
	if s.state == recovery {
		s.cwnd = min(s.thresh, s.pipe()+maxBurst*s.mss) // RFC 6582, section 3.2, step 3
		s.owed = s.thresh
	}
	s.state = open
	if s.persists > 0 {
		if s.persists--; s.persists == 0 {
			s.mult, s.late = 1, 0
		}
	}
}

// undo gives back what a loss that was none has taken: docs/decisions.md#N6. The window grows back
// as in slow start, so that not all of it goes out at once (RFC 4015).
func (s *Sender) undo(now time.Duration, was before) {
	s.Stats.Undone++
	s.undoable = false
	if s.state != open {
		s.state = open
		s.wait(now)
	}
	s.cwnd = max(s.cwnd, min(was.cwnd, s.pipe()+maxBurst*s.mss))
	s.thresh, s.cubic = max(s.thresh, was.thresh), was.cubic
	if s.owed = was.cwnd; s.cwnd < s.owed {
		s.thresh = max(s.thresh, s.owed)
	}
}

// wait has what is lost count as late.
func (s *Sender) wait(now time.Duration) {
	for b := &s.board; len(b.missing) > 0; {
		g := b.missing[0]
		g.since = now
		b.change(g, waiting, false)
	}
}

// grow lets the window grow for n octets that have arrived, when was octets were under way.
func (s *Sender) grow(n, was int, now time.Duration) {
	if n <= 0 {
		return
	}
	if s.cwnd >= s.owed {
		s.owed = 0
	}
	if s.cwnd < s.thresh { // slow start, until something is lost: docs/decisions.md#N7
		if s.cwnd < 2*was { // else it is not the window that holds the sender back
			s.cwnd = min(s.cwnd+n, maxWindow)
		}
		return
	}
	if was < s.cwnd-max(s.cwnd/8, s.mss) {
		return
	}
	mss := float64(s.mss)
	w := s.cubic.acked(float64(s.cwnd)/mss, float64(n)/mss, now, s.srtt)
	s.cwnd = min(int(w*mss), maxWindow)
}

// reorderingWindow is how long a gap may be late (RFC 8985, section 6.2 step 4;
// docs/decisions.md#N3).
func (s *Sender) reorderingWindow() time.Duration {
	if !s.reordered && (s.state != open || s.board.sacked() >= duplicates*s.mss) {
		return 0
	}
	least := s.least()
	if least == 0 {
		least = time.Millisecond
	}
	w := max(least/4*time.Duration(s.mult), s.late+s.late/4)
	if s.srtt > 0 {
		w = min(w, max(s.srtt+4*s.rttvar, least/4))
	}
	return w
}

// Look finds out what is lost by now, and returns when to look again; 0: at the next ACK.
func (s *Sender) Look(now time.Duration) (next time.Duration) {
	w := s.reorderingWindow()
	newly := 0
	b := &s.board
	for g := b.again.first; g != nil && (g.order < s.arrived || g.mark.before(s.far)); {
		g.since = now
		b.change(g, resent, true)
		g = b.again.first
	}
	for g := b.late.first; g != nil; g = b.late.first {
		if due := g.since + w; now < due {
			next = due
			break
		}
		if g.state == resent {
			s.Stats.LostAgain++
		}
		b.change(g, lost, false)
		newly += g.len()
	}
	if newly > 0 {
		s.trouble = now + troubled
		if s.state == open {
			s.enter(recovery, now)
		}
		s.inDoubt += newly
	}
	s.detected = newly > 0
	return next
}

// Timeout is told that nothing was acknowledged for too long: what has not arrived is lost.
func (s *Sender) Timeout(now time.Duration) {
	s.probing = false
	if s.state == open {
		s.enter(timedOut, now)
		s.doubted = true
	} else { // the threshold was lowered for this window
		s.Stats.Timeouts++
		s.undoable, s.owed = false, 0
		s.state, s.cwnd, s.recover = timedOut, s.mss, s.nxt
	}
	s.silent, s.trouble = true, now+troubled
	s.board.all(s.nxt, now)
	s.inDoubt += s.board.lost
}

// Silent reports whether nothing was acknowledged since the last timeout.
func (s *Sender) Silent() bool { return s.silent }

// Retry has what was sent again since the last timeout sent once more, if nothing was acknowledged
// since. It reports whether there is anything.
func (s *Sender) Retry() bool {
	if !s.silent || s.state != timedOut || len(s.board.gaps) == 0 {
		return false
	}
	for _, g := range s.board.gaps {
		if g.state == resent {
			s.board.change(g, lost, false)
		}
	}
	return true
}

// Pace works the window out after what was told: proportional rate reduction in a recovery.
func (s *Sender) Pace() {
	if s.state == recovery {
		s.delivered += s.fresh
		pipe := s.pipe()
		n := 0
		if pipe > s.thresh {
			n = int((int64(s.delivered)*int64(s.thresh)+int64(s.flight)-1)/int64(s.flight)) - s.out
		} else {
			n = max(s.delivered-s.out, s.fresh)
			if s.advanced && !s.detected {
				n += s.mss
			}
			n = min(n, s.thresh-pipe)
		}
		if s.out == 0 {
			n = max(n, s.mss)
		}
		s.cwnd = pipe + max(n, 0)
	}
	s.fresh, s.advanced = 0, false
}

// Next is what to send again now; false: nothing, or the window is full. It counts as sent.
func (s *Sender) Next(now time.Duration) (b Block, ok bool) {
	if s.board.lost == 0 || s.pipe() >= s.cwnd {
		return b, false
	}
	g := s.board.missing[0]
	n := 0
	if s.Whole != nil {
		n = s.Whole(g.start, s.mss)
	}
	if n <= 0 {
		n = s.mss
	}
	s.board.cut(g, n)
	return s.resend(g, now), true
}

func (s *Sender) resend(g *gap, now time.Duration) Block {
	s.board.change(g, resent, false)
	s.order++
	g.again, g.sentAt, g.order, g.mark = true, now, s.order, s.nxt
	s.out += g.len()
	s.resentAt = now
	return Block{g.start, g.end}
}

// Again is told that the first n octets that are lost were sent again by somebody else.
func (s *Sender) Again(n int, now time.Duration) {
	if len(s.board.gaps) > 0 && s.board.gaps[0].state == lost {
		s.board.cut(s.board.gaps[0], n)
		s.resend(s.board.gaps[0], now)
	}
}

// Recovering reports whether something that was lost has still to be acknowledged.
func (s *Sender) Recovering() bool { return s.state != open }

// WantsTime reports whether the time of an ACK without news matters.
func (s *Sender) WantsTime() bool { return s.Active() || s.cwnd >= s.thresh }

// Resize has the window be n octets, and slow start over.
func (s *Sender) Resize(n int) { s.cwnd, s.thresh, s.owed = n, n, 0 }

// Room is how many more octets may be under way; it may be less than none.
func (s *Sender) Room() int { return s.cwnd - s.pipe() }

// Window is the congestion window in octets.
func (s *Sender) Window() int { return s.cwnd }

// Threshold is where slow start ends, in octets.
func (s *Sender) Threshold() int { return s.thresh }

// Restart has the window be at most what a connection begins with: it was idle.
func (s *Sender) Restart() { s.cwnd, s.owed = min(s.cwnd, initialWindow*s.mss), 0 }

// String describes s, for tests and logs.
func (s *Sender) String() string {
	return fmt.Sprintf("state %d, window %d, threshold %d, %d octets under way, %d lost, %d sacked, "+
		"%d gaps, reordered %v by %v times %d, round trip %v, at least %v, %+v", s.state, s.cwnd,
		s.thresh,
		s.pipe(), s.board.lost, s.board.sacked(), len(s.board.gaps), s.reordered, s.late, s.mult, s.srtt,
		s.least(), s.Stats)
}
