package packets

import (
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/dcqcn"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
)

// Congestion is what the links of a device with congestion control have in common.
type Congestion struct {
	Config dcqcn.Config
	// Packets that came marked, CNPs that were sent for them, and CNPs of peers that were heeded.
	Marked, Told, Heeded atomic.Uint64
}

// A flow is both ends of congestion control of a link: it tells the peer of packets that came
// marked, and slows down when the peer tells of some. A nil flow does neither.
type flow struct {
	common *Congestion
	limit  dcqcn.Limiter
	notify dcqcn.Notifier
	peer   packet.QPN
	tell   bool      // a CNP is to go out
	until  time.Time // when more may be sent, if that is what sending waits for
}

func newFlow(c *Congestion, peer packet.QPN) *flow {
	if c == nil {
		return nil
	}
	return &flow{common: c, limit: dcqcn.NewLimiter(&c.Config), peer: peer}
}

// ecn is a traffic class as it is sent: that of who takes note of marks says so, unless the program
// has set these bits.
func (f *flow) ecn(class uint8) uint8 {
	if f != nil && class&udp.ECNMask == 0 {
		return class | udp.ECT0
	}
	return class
}

// arrived takes note of a packet of the peer. Which are told of: docs/decisions.md#R3.
func (f *flow) arrived(op packet.Opcode, marked bool, now time.Time) {
	switch {
	case f == nil:
	case op == packet.CNP:
		f.common.Heeded.Add(1)
		f.limit.CNP(now)
	case marked && op != packet.Acknowledge && op != packet.AtomicAcknowledge:
		f.common.Marked.Add(1)
		f.tell = f.tell || f.notify.Marked(&f.common.Config, now)
	}
}

// begin is called before packets are made. true: a CNP is to go out, whatever else there is.
func (f *flow) begin() bool {
	if f == nil {
		return false
	}
	f.until = time.Time{}
	return f.tell
}

// notice adds the CNP that is due.
func (f *flow) notice(b []byte) ([]byte, bool) {
	if f == nil || !f.tell {
		return b, false
	}
	f.tell = false
	f.common.Told.Add(1)
	return roce.AppendCNP(b, f.peer), true
}

// holds reports whether data wait for their time.
func (f *flow) holds(now time.Time) bool {
	if f == nil || !f.limit.Limited() {
		return false
	}
	ok, at := f.limit.Ready(now)
	if ok {
		at = time.Time{}
	}
	f.until = at
	return !ok
}

// sent takes note of a packet of n octets.
func (f *flow) sent(now time.Time, n int) {
	if f != nil && f.limit.Limited() {
		f.limit.Sent(now, n)
	}
}

// deadline is the earlier of at, if ok is set, and the time that data wait for.
func (f *flow) deadline(at time.Time, ok bool) (time.Time, bool) {
	if f == nil || f.until.IsZero() || ok && at.Before(f.until) {
		return at, ok
	}
	return f.until, true
}
