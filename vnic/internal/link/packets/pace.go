package packets

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
)

// A control says when packets go out, and what the peer is told of those that it has sent.
type control interface {
	// ecn is a traffic class as it is sent.
	ecn(class uint8) uint8
	// arrived takes note of a packet of the peer.
	arrived(op packet.Opcode, marked bool, now time.Time)
	// begin is called before packets are made. true: a CNP is to go out, whatever else there is.
	begin(now time.Time) bool
	// notice adds the CNP that is due.
	notice(b []byte, now time.Time) ([]byte, bool)
	// holds reports whether data wait for their time.
	holds(now time.Time) bool
	// sent takes note of a packet, which lacks what udp.Template.Finish adds.
	sent(now time.Time, b []byte)
	// deadline is the earlier of at, if ok is set, and the time that something waits for.
	deadline(at time.Time, ok bool) (time.Time, bool)
	// end is called once, when nothing more is sent.
	end()
}

// A pace is the control of an unreliable connection without congestion control: it has packets wait
// until the peer has taken those before them, as far as that can be known. Nobody acknowledges
// them, but who takes one that says that it has experienced congestion may answer by a CNP: so now
// and then one says so (docs/decisions.md#R17).
//
//	state      packets                    until
//	quiet      go                         half a window has gone since the last that the peer is
//	                                      known to have taken: one is marked
//	asked      go, up to a window; then   a CNP comes, and the peer is known to have taken the one
//	           one now and then, marked   that was marked; or for too long none does
//	deaf       go; one in each window is  a CNP comes
//	           marked
//
// The window is small at first, so that all of the device may begin at the same time, and each CNP
// doubles it. All of a device have a queue in common, of which the window is never more than a
// share.
type pace struct {
	peer   packet.QPN
	crowd  *crowd // nil: the peer is of this process
	window int
	most   int   // what the window grows to
	period int64 // of the crowd's, in which it has sent last
	known  bool  // the peer answers
	deaf   bool
	ahead  int       // packets since the last that the peer is known to have taken
	behind int       // of them, behind the one that was marked
	asked  int       // how often, since the peer has answered last
	again  time.Time // when it is asked once more
	until  time.Time // when something is to be done, if that waits; else zero

	tell bool // the peer has asked
	told time.Time
}

// How long a peer may take to answer: one that has done so before, or is of this process and will,
// may be waiting for a processor; of another it is not known whether it ever does. It is counted
// by the packets that ask, and so while some wait: not to send for a while is no silence of the
// peer's. Each waits twice as long as the one before it: they fill the queue, too.
const (
	askAgain     = 2 * time.Millisecond
	knownAnswers = 9 // packets, and one more: together they wait for 2 s
	othersAnswer = 7 // 0.5 s
)

const (
	// tellEach is how much time is between two CNPs at least.
	tellEach = 50 * time.Microsecond
	// mostUnderWay is a little less than the frames that a TAP of Linux keeps for its reader.
	mostUnderWay = 480
	// firstWindow is that of a connection that has not sent lately, leastWindow that of one of very
	// many.
	firstWindow, leastWindow = 16, 1
)

// newPace makes that of a connection with packets of mtu octets, which is of crowd; nil: the peer
// is of this process, and has room for all that one window lets go.
func newPace(peer packet.QPN, mtu uint32, crowd *crowd) *pace {
	most := min(roce.WindowOf(mtu)/2, mostUnderWay)
	p := &pace{peer: peer, crowd: crowd, window: most, most: most, known: crowd == nil}
	if crowd != nil {
		crowd.all.Add(1)
		p.window = crowd.first()
	}
	return p
}

func (p *pace) end() {
	if p.crowd != nil {
		p.crowd.all.Add(-1)
	}
}

// A crowd are the paced connections of a device: it knows how many of them have sent lately.
type crowd struct {
	all    atomic.Int32
	active atomic.Int32

	mu sync.Mutex
	// The period that runs, and how many have sent in it, and in the one before.
	period      int64 // +checklocks:mu
	now, before int32 // +checklocks:mu
}

// share is what one of n may have under way.
func share(n int32) int { return max(mostUnderWay/max(int(n), 1), leastWindow) }

// first is the window of one that has not sent lately.
func (c *crowd) first() int { return min(firstWindow, share(c.all.Load())) }

// lately is a period of a crowd's.
const lately = 20 * time.Millisecond

// sends counts a connection that sends in a period, the first time that it does.
func (c *crowd) sends(period int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch period - c.period {
	case -1, 0: // of who has looked at the clock a moment ago
	case 1:
		c.before, c.now, c.period = c.now, 0, period
	default:
		c.before, c.now, c.period = 0, 0, period
	}
	c.now++
	c.active.Store(max(c.now, c.before))
}

// may is how many packets may be under way.
func (p *pace) may() int {
	if p.crowd == nil {
		return p.window
	}
	return min(p.window, share(p.crowd.active.Load()))
}

// join has the crowd know that p sends.
func (p *pace) join(now time.Time) {
	period := now.UnixNano() / int64(lately)
	if p.crowd == nil || period == p.period {
		return
	}
	if period > p.period+1 {
		p.window = p.crowd.first()
	}
	p.period = period
	p.crowd.sends(period)
}

func (p *pace) ecn(class uint8) uint8 { return class }

func (p *pace) arrived(op packet.Opcode, marked bool, _ time.Time) {
	switch {
	case op != packet.CNP:
		p.tell = p.tell || marked
	case p.deaf || p.asked > 0:
		p.known, p.deaf = true, false
		p.ahead, p.asked, p.again = p.behind, 0, time.Time{}
		p.window = min(2*p.window, p.most)
	}
}

func (p *pace) begin(now time.Time) bool {
	p.until = time.Time{}
	return p.mayTell(now)
}

// mayTell reports whether a CNP goes out now. One that is due waits for its time.
func (p *pace) mayTell(now time.Time) bool {
	if !p.tell {
		return false
	}
	at := p.told.Add(tellEach)
	if now.Before(at) {
		p.waits(at)
		return false
	}
	return true
}

func (p *pace) notice(b []byte, now time.Time) ([]byte, bool) {
	if !p.mayTell(now) {
		return b, false
	}
	p.tell, p.told = false, now
	return roce.AppendCNP(b, p.peer), true
}

func (p *pace) holds(now time.Time) bool {
	if p.deaf || p.ahead < p.may() {
		return false
	}
	patience := othersAnswer
	if p.known {
		patience = knownAnswers
	}
	if now.Before(p.again) {
		p.waits(p.again)
		return true
	}
	if p.asked > patience {
		p.deaf, p.ahead, p.behind = true, 0, 0
	}
	return false // one goes, and is marked, or from now on all go
}

func (p *pace) waits(at time.Time) {
	if p.until.IsZero() || at.Before(p.until) {
		p.until = at
	}
}

func (p *pace) sent(now time.Time, b []byte) {
	p.join(now)
	p.ahead++
	p.behind++
	switch {
	case p.deaf:
		if p.ahead < p.most {
			return
		}
		p.ahead = 0
	case p.asked == 0:
		if p.ahead < p.may()/2 {
			return
		}
	case p.ahead <= p.may():
		return
	}
	p.behind, p.again = 0, now.Add(askAgain<<min(p.asked, knownAnswers))
	p.asked++
	udp.Mark(b)
}

func (p *pace) deadline(at time.Time, ok bool) (time.Time, bool) {
	return earlier(p.until, at, ok)
}

// earlier is the earlier of own, unless it is zero, and at, if ok is set.
func earlier(own, at time.Time, ok bool) (time.Time, bool) {
	if own.IsZero() || ok && at.Before(own) {
		return at, ok
	}
	return own, true
}
