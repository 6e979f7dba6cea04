package packets

import (
	"time"

	"github.com/vrnic/vrnic/roce/packet"
)

// An ackWait says whether the ACK of a Write waits for what the program answers, to go with it in
// one frame. Where no answer comes the peer's completion waits in vain, so it is for programs that
// have answered at once many times in a row, and twice as many are wanted each time that one has
// not: it costs little, whatever a program does (docs/decisions.md#R19).
type ackWait struct {
	wanted   int       // answers in a row, 0: fewestAnswers
	answered int       // in a row
	due      time.Time // since when an ACK is, for a Write that may have an answer; else zero
	until    time.Time // it waits; else zero
}

const (
	fewestAnswers, mostAnswers = 16, 4096
	// atOnce is within which a program answers: a round trip is as long.
	atOnce = 100 * time.Microsecond
	// ackPatience is how long an ACK waits at most. A timer runs out as often, though most ACKs have
	// gone by then, and wakes some threads: at 2 ms that has cost more than the frames.
	ackPatience = 10 * time.Millisecond
)

// came takes note of a request of the peer's, who goes on without an answer to the last one.
func (a *ackWait) came(op packet.Opcode, now time.Time) {
	if !a.until.IsZero() {
		a.missed()
	} else if !a.due.IsZero() {
		a.answered = 0
	}
	a.due = time.Time{}
	if op == packet.WriteOnly || op == packet.WriteLast {
		a.due = now
	}
}

// waits reports whether an ACK that is due, and would go alone, waits.
func (a *ackWait) waits(now time.Time) bool {
	switch {
	case a.until.IsZero():
		if a.due.IsZero() || a.answered < max(a.wanted, fewestAnswers) {
			return false
		}
		a.until = a.due.Add(ackPatience)
	case !now.Before(a.until):
		a.missed()
	}
	return !a.until.IsZero()
}

// replied takes note of a request of the program's.
func (a *ackWait) replied(now time.Time) {
	if a.due.IsZero() {
		return
	}
	if a.answered++; now.Sub(a.due) > atOnce {
		a.answered = 0
	}
	a.due, a.until = time.Time{}, time.Time{}
}

// missed is where an ACK has waited in vain.
func (a *ackWait) missed() {
	a.wanted = min(2*max(a.wanted, fewestAnswers), mostAnswers)
	a.answered, a.due, a.until = 0, time.Time{}, time.Time{}
}
