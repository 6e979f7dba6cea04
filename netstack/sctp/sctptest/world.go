// Package sctptest has what tests of SCTP share, whoever's SCTP it is: a network in memory on a
// clock that jumps to whatever comes next, random numbers that repeat, and a look into packets that
// is not the parser under test. It imports nothing of ours, so that tests inside package sctp can
// use it.
package sctptest

import (
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// Start is when a World begins.
var Start = time.Unix(1_000_000_000, 0)

// A Timer is an endpoint, or whatever else has something to do at a time.
type Timer interface {
	// Deadline is when Expire has something to do; ok is false if that is never.
	Deadline() (at time.Time, ok bool)
	Expire(now time.Time)
}

// A World is a clock, Timers on it, and packets of type P that are under way. All of it runs in the
// test's goroutine, and the same test runs the same way each time.
type World[P any] struct {
	T   testing.TB
	Now time.Time
	// Delay is how long a packet is under way. Fate, if there is one, says it instead for each copy
	// of a packet that arrives; what it returns is read before it is called again.
	Delay time.Duration
	Fate  func(P) []time.Duration
	// Deliver has a packet arrive.
	Deliver func(P)
	// Show says more of what is there when Until fails; it may be nil.
	Show   func() string
	Timers []Timer

	flights flights[P]
	sent    int
}

// NewWorld begins at Start, with a Delay of a millisecond.
func NewWorld[P any](t testing.TB, deliver func(P)) *World[P] {
	return &World[P]{T: t, Now: Start, Delay: time.Millisecond, Deliver: deliver}
}

// Send sends a packet to its fate.
func (w *World[P]) Send(p P) {
	if w.Fate == nil {
		w.Arrive(p, w.Delay)
		return
	}
	for _, after := range w.Fate(p) {
		w.Arrive(p, after)
	}
}

// Arrive has a packet arrive after a time, behind those that arrive then already.
func (w *World[P]) Arrive(p P, after time.Duration) {
	w.sent++
	heap.Push(&w.flights, flight[P]{w.Now.Add(after), w.sent, p})
}

// Step goes to whatever comes next, but not beyond limit; it is false if there was nothing until
// then.
func (w *World[P]) Step(limit time.Time) bool {
	at := limit.Add(1)
	if len(w.flights) > 0 {
		at = w.flights[0].at
	}
	for _, timer := range w.Timers {
		if t, ok := timer.Deadline(); ok && t.Before(at) {
			at = t
		}
	}
	if at.After(limit) {
		w.Now = limit
		return false
	}
	if at.After(w.Now) {
		w.Now = at
	}
	if len(w.flights) > 0 && !w.flights[0].at.After(w.Now) {
		w.Deliver(heap.Pop(&w.flights).(flight[P]).p)
		return true
	}
	for _, timer := range w.Timers {
		if t, ok := timer.Deadline(); ok && !t.After(w.Now) {
			timer.Expire(w.Now)
		}
	}
	return true
}

// Due says whether another packet arrives before any time passes.
func (w *World[P]) Due() bool { return len(w.flights) > 0 && !w.flights[0].at.After(w.Now) }

// Run lets d pass.
func (w *World[P]) Run(d time.Duration) {
	for limit := w.Now.Add(d); w.Step(limit); {
	}
}

// Until runs until cond holds; it fails the test if that takes longer than d.
func (w *World[P]) Until(what string, d time.Duration, cond func() bool) {
	w.T.Helper()
	for limit := w.Now.Add(d); !cond(); {
		if !w.Step(limit) && !cond() {
			if w.Show != nil {
				what += "\n" + w.Show()
			}
			w.T.Fatalf("not within %v: %s", d, what)
		}
	}
}

// A flight is a packet under way. Of those that arrive at the same time the first sent is first.
type flight[P any] struct {
	at  time.Time
	seq int
	p   P
}

type flights[P any] []flight[P]

func (f flights[P]) Len() int { return len(f) }
func (f flights[P]) Less(i, j int) bool {
	return f[i].at.Before(f[j].at) || f[i].at.Equal(f[j].at) && f[i].seq < f[j].seq
}
func (f flights[P]) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights[P]) Push(x any)   { *f = append(*f, x.(flight[P])) }
func (f *flights[P]) Pop() any {
	x := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return x
}

// Seeded gives the same random numbers each time, for sctp.Config's Rand.
func Seeded(seed uint64) *rand.ChaCha8 {
	var s [32]byte
	binary.BigEndian.PutUint64(s[:], seed)
	return rand.NewChaCha8(s)
}
