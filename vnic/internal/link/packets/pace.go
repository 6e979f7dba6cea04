package packets

import (
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
//	           one each askAgain, marked  that was marked; or for too long none does
//	deaf       go; one in each window is  a CNP comes
//	           marked
type pace struct {
	peer   packet.QPN
	window int
	known  bool // the peer answers
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
// peer's.
const (
	knownAnswers = time.Second
	othersAnswer = 200 * time.Millisecond
	askAgain     = 2 * time.Millisecond
)

const (
	// tellEach is how much time is between two CNPs at least.
	tellEach = 50 * time.Microsecond
	// mostUnderWay is a little less than the frames that a TAP of Linux keeps for its reader.
	mostUnderWay = 480
)

// newPace makes that of a connection with packets of mtu octets; near: the peer is of this process.
func newPace(peer packet.QPN, mtu uint32, near bool) *pace {
	return &pace{peer: peer, window: min(roce.WindowOf(mtu)/2, mostUnderWay), known: near}
}

func (p *pace) ecn(class uint8) uint8 { return class }

func (p *pace) arrived(op packet.Opcode, marked bool, _ time.Time) {
	switch {
	case op != packet.CNP:
		p.tell = p.tell || marked
	case p.deaf || p.asked > 0:
		p.known, p.deaf = true, false
		p.ahead, p.asked = p.behind, 0
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
	if p.deaf || p.ahead < p.window {
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
	if p.asked > int(patience/askAgain) {
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
	p.ahead++
	p.behind++
	switch {
	case p.deaf:
		if p.ahead < p.window {
			return
		}
		p.ahead = 0
	case p.asked == 0:
		if p.ahead < p.window/2 {
			return
		}
	case p.ahead <= p.window:
		return
	}
	p.asked++
	p.behind, p.again = 0, now.Add(askAgain)
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
