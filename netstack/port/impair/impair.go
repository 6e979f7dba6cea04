// Package impair is a model of a bad network: what a path that loses, delays, reorders and doubles
// frames, and has a bottleneck, does to each of them. It is a calculation without a clock of its
// own, frames or goroutines: whoever has a frame asks a Link when it arrives.
//
//	link := impair.Schedule{Seed: 1, Loss: 0.01, Delay: 5 * time.Millisecond}.Link(1)
//	fate := link.Carry(now, len(octets))
//
// Package porttest has a path between two switches in memory that is bad in this way, and
// vrnic-bench badnet one between two TAPs.
package impair

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A Schedule says what becomes of the frames of a path. What becomes of the n-th frame of a
// direction hangs on Seed, the direction and n only, but for the bottleneck, which knows the time:
// the same Seed does the same to the same frames.
type Schedule struct {
	Seed uint64
	// Loss, Duplicate and Reorder are how many of all frames are lost, come twice, or come late: from
	// 0 to 1.
	Loss, Duplicate, Reorder float64
	// Burst is how many frames are lost one after the other, in the mean (the model of Gilbert and
	// Elliott: nothing is lost in its good state, everything in its bad one); Loss is that of all
	// frames still. Up to 1 each frame is lost or not by itself.
	Burst float64
	Delay time.Duration // of every frame
	Late  time.Duration // a frame that comes late takes up to that much longer
	// Rate is what the bottleneck lets through, in bits a second; 0: there is none. Queue is how many
	// octets may wait before it, and what finds no room is lost; 0: as many as come.
	Rate  float64
	Queue int
}

// String names a Schedule in a test's name or report.
func (s Schedule) String() string {
	str := fmt.Sprintf("seed=%d loss=%v duplicate=%v reorder=%v delay=%v late=%v",
		s.Seed, s.Loss, s.Duplicate, s.Reorder, s.Delay, s.Late)
	if s.Burst > 1 {
		str += fmt.Sprintf(" burst=%v", s.Burst)
	}
	if s.Rate > 0 {
		str += fmt.Sprintf(" rate=%v queue=%d", s.Rate, s.Queue)
	}
	return str
}

// A Link is one direction of a path. One goroutine at a time may use it.
type Link struct {
	s    Schedule
	rng  *rand.Rand
	bad  bool          // the state of Gilbert and Elliott
	free time.Duration // when the bottleneck has sent all that it has taken
	Stats
}

// Stats are what a Link has done so far, in frames.
type Stats struct {
	Frames   uint64 // that came
	Lost     uint64 // as Loss says
	Overflow uint64 // that found no room before the bottleneck
	Doubled  uint64
}

// Link is one direction of the path; another number is another direction.
func (s Schedule) Link(direction uint64) *Link {
	return &Link{s: s, rng: rand.New(rand.NewPCG(s.Seed, direction))}
}

// A Fate is when a frame arrives: Copies times, 0 to 2, at the times At.
type Fate struct {
	Copies int
	At     [2]time.Duration
}

// Carry says what becomes of the next frame, which has n octets and comes at now. The time counts
// from anywhere, and does not go back.
func (l *Link) Carry(now time.Duration, n int) (f Fate) {
	s := &l.s
	l.Frames++
	// Each frame takes as many numbers, so that what becomes of one says nothing of the next.
	lost, twice := l.lost(), l.rng.Float64() < s.Duplicate
	late, by, again := l.rng.Float64() < s.Reorder, l.rng.Float64(), l.rng.Float64()
	if lost {
		l.Lost++
		return f
	}
	out := now
	if s.Rate > 0 {
		l.free = max(l.free, now)
		waiting := (l.free - now).Seconds() * s.Rate / 8
		if s.Queue > 0 && waiting+float64(n) > float64(s.Queue) {
			l.Overflow++
			return f
		}
		l.free += time.Duration(float64(n) * 8 / s.Rate * float64(time.Second))
		out = l.free
	}
	f.Copies, f.At[0] = 1, out+s.Delay
	if late {
		f.At[0] += time.Duration(by * float64(s.Late))
	}
	if twice {
		l.Doubled++
		f.Copies, f.At[1] = 2, out+s.Delay+time.Duration(again*float64(s.Late))
	}
	return f
}

// lost says whether the next frame is.
func (l *Link) lost() bool {
	x := l.rng.Float64()
	if l.s.Burst <= 1 {
		return x < l.s.Loss
	}
	change := 1 / l.s.Burst
	if !l.bad {
		change *= l.s.Loss / (1 - l.s.Loss)
	}
	if x < change {
		l.bad = !l.bad
	}
	return l.bad
}
