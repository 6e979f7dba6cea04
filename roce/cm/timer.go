package cm

import (
	"container/heap"
	"time"
)

// A timer calls due once it is time. It is in the heap of its Manager while it is set.
type timer struct {
	at    time.Time
	index int // in the heap, plus one; 0: not set
	due   func(now time.Time)
}

type timers []*timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h) + 1
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = 0
	return t
}

func (h *timers) set(t *timer, at time.Time) {
	t.at = at
	if t.index > 0 {
		heap.Fix(h, t.index-1)
		return
	}
	heap.Push(h, t)
}

func (h *timers) stop(t *timer) {
	if t.index > 0 {
		heap.Remove(h, t.index-1)
	}
}

// Deadline is when Expire wants to be called; false: there is no such time.
func (m *Manager) Deadline() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].at, true
}

// Expire does what was to be done by now.
func (m *Manager) Expire(now time.Time) {
	if at, ok := m.Deadline(); !ok || at.After(now) {
		return
	}
	_ = m.noted(now, Call{Kind: CallExpire}, func() error { // which does not fail
		m.expire(now)
		return nil
	})
}

func (m *Manager) expire(now time.Time) {
	for len(m.timers) > 0 && !m.timers[0].at.After(now) {
		heap.Pop(&m.timers).(*timer).due(now)
	}
}

// duration is what a code of five bits means.
func duration(code uint8) time.Duration { return 4096 * time.Nanosecond << code }

// within is duration of a code that a peer has chosen, between two others.
func within(code, least, most uint8) time.Duration {
	return duration(min(max(code, least), most))
}

// Times, as Linux's connection manager has them.
const (
	lifetime   = 18 // code of the time that a packet may take
	cmTimeout  = 20 // and of that in which a message is answered
	cmRetries  = 15 // repeats of a message
	ackDelay   = 15 // code of the time in which a packet is acknowledged
	mraService = 24 // what a peer is asked to wait for a program that takes its time

	// DefaultACKTimeout is the code of the local ACK timeout of a path of which nothing is known.
	DefaultACKTimeout = lifetime + 1
)

// Bounds of the times that a peer asks for.
const (
	leastTimeout = 17 // half a second
	mostTimeout  = 22 // 17 s
	mostService  = 25 // 137 s
	// requestLife is how long a request is kept that nobody answers and nobody repeats, and then its
	// answer for those who ask again: longer than who was asked for patience may be silent.
	requestLife = 2 * time.Minute
)
