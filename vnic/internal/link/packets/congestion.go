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

// A flow is both ends of congestion control of a link, its control: it tells the peer of packets
// that came marked, and slows down when the peer tells of some. A nil flow does neither.
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

// ecn is as of a control: that of who takes note of marks says so, unless the program has set these
// bits.
func (f *flow) ecn(class uint8) uint8 {
	if f != nil && class&udp.ECNMask == 0 {
		return class | udp.ECT0
	}
	return class
}

// arrived is as of a control. Which are told of: docs/decisions.md#R3.
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

func (f *flow) begin(time.Time) bool {
	if f == nil {
		return false
	}
	f.until = time.Time{}
	return f.tell
}

func (f *flow) notice(b []byte, _ time.Time) ([]byte, bool) {
	if f == nil || !f.tell {
		return b, false
	}
	f.tell = false
	f.common.Told.Add(1)
	return roce.AppendCNP(b, f.peer), true
}

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

func (f *flow) sent(now time.Time, b []byte) {
	if f != nil && f.limit.Limited() {
		f.limit.Sent(now, len(b))
	}
}

func (f *flow) deadline(at time.Time, ok bool) (time.Time, bool) {
	if f == nil {
		return at, ok
	}
	return earlier(f.until, at, ok)
}

func (*flow) end() {}
