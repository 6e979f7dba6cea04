package roce

import (
	"time"

	"github.com/vrnic/vrnic/roce/packet"
)

// An Engine is one end of a connection: an RC, or a UC made like one (Unreliable).
type Engine interface {
	Post(r *Request) error
	Append(b []byte, now time.Time) ([]byte, bool)
	Pending() bool
	OnlyACK() bool
	Receive(now time.Time, h *packet.Header, payload []byte)
	Fault() *Fault
	Deadline() (time.Time, bool)
	Expire(now time.Time)
	Start(c Config)
	Update(c Config)
	Drain()
	Resume()
	Drained() bool
	Hold(on bool)
	PSNs() (sq, rq packet.PSN)
	Counters() *Counters
	Rests() bool
	Pass(psns uint32)
	Serves() bool
	Passed(psns, requests uint32)
}

// Unreliable is a UC that looks like an RC.
type Unreliable struct{ *UC }

func (u Unreliable) Append(b []byte, _ time.Time) ([]byte, bool) { return u.UC.Append(b) }
func (u Unreliable) Receive(_ time.Time, h *packet.Header, payload []byte) {
	u.UC.Receive(h, payload)
}
func (u Unreliable) OnlyACK() bool               { return false }
func (u Unreliable) Deadline() (time.Time, bool) { return time.Time{}, false }
func (u Unreliable) Expire(time.Time)            {}
func (u Unreliable) Counters() *Counters         { return &noCounters }

// noCounters are those of a UC, which knows of nothing amiss.
var noCounters Counters
