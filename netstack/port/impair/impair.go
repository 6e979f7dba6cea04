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
// direction hangs on Seed, the direction and n only, but for what knows the time, as the bottleneck
// does: the same Seed does the same to the same frames.
type Schedule struct {
	Seed uint64
	// Loss, Duplicate and Reorder are how many of all frames are lost, come twice, or come late: from
	// 0 to 1.
	Loss, Duplicate, Reorder float64
	// Burst is how many frames are lost one after the other, in the mean (the model of Gilbert and
	// Elliott: nothing is lost in its good state, everything in its bad one); Loss is that of all
	// frames still. Up to 1 each frame is lost or not by itself.
	Burst float64
	// Gilbert, if it is not zero, is that model with all its numbers, in place of Loss and Burst.
	Gilbert Gilbert
	Delay   time.Duration // of every frame
	Late    time.Duration // a frame that comes late takes up to that much longer
	// Jitter is how far the delay of a frame is from Delay: at most that much, all of it as likely, or
	// if Normal in the mean (the standard deviation).
	Jitter time.Duration
	Normal bool
	// Early is how many of all frames come without a delay, and so before others; Gap: only one that
	// has so many less one before it that were delayed.
	Early float64
	Gap   int
	// Corrupt is how many of all frames have a bit wrong when they come.
	Corrupt float64
	// Correlation is how much what becomes of a frame hangs on the one before it.
	Correlation Correlation
	// Rate is what the bottleneck lets through, in bits a second; 0: there is none. Queue is how many
	// octets may wait before it, and what finds no room is lost; 0: as many as come. Of more than Mark
	// octets that wait, frames are marked (ECN); 0: none is.
	Rate        float64
	Queue, Mark int
	// ECN: what would be lost, but for want of room, is marked instead, if it can be.
	ECN bool
	// Limit is how many frames may be on their way; 0: as many as come. Who carries them says how
	// many are: Link.CarryBehind.
	Limit int
}

// Gilbert is the model of Gilbert and Elliott: before each frame it goes from the good state to the
// bad one with probability P, and back with R. Bad and Good are how many frames each of them loses.
type Gilbert struct{ P, R, Bad, Good float64 }

// Correlation is from 0, none, to 1: that much of a random number is the one before it.
type Correlation struct{ Delay, Loss, Duplicate, Corrupt, Reorder float64 }

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
	more *rand.Rand // for what not every Schedule has, so that this changes nothing else
	last Correlation
	bad  bool          // the state of Gilbert and Elliott
	run  int           // frames that were delayed since the last early one
	free time.Duration // when the bottleneck has sent all that it has taken
	Stats
}

// Stats are what a Link has done so far, in frames.
type Stats struct {
	Frames    uint64 // that came
	Lost      uint64 // as Loss says
	Overflow  uint64 // that found no room
	Doubled   uint64
	Corrupted uint64
	Early     uint64
	Marked    uint64 // that were to be marked: who carries them knows which cannot be
}

// Link is one direction of the path; another number is another direction.
func (s Schedule) Link(direction uint64) *Link {
	return &Link{s: s, rng: rand.New(rand.NewPCG(s.Seed, direction)),
		more: rand.New(rand.NewPCG(s.Seed, ^direction))}
}

// A Fate is when a frame arrives: Copies times, 0 to 2, at the times At.
type Fate struct {
	Copies int
	At     [2]time.Duration
	// Lose: it is lost unless it can be marked.
	Lose, Mark bool
	// Flip is the bit of the frame that is wrong; below 0: none.
	Flip int
}

// Carry says what becomes of the next frame, which has n octets, at least 1, and comes at now. The
// time counts from anywhere, and does not go back.
func (l *Link) Carry(now time.Duration, n int) Fate { return l.CarryBehind(0, now, n) }

// CarryBehind is Carry where so many are on their way already. What they leave no room for takes no
// time of the bottleneck.
func (l *Link) CarryBehind(waiting int, now time.Duration, n int) (f Fate) {
	s := &l.s
	l.Frames++
	f.Flip = -1
	// Each frame takes as many numbers, so that what becomes of one says nothing of the next.
	lost, twice := l.lost(), l.draw(&l.last.Duplicate, s.Correlation.Duplicate) < s.Duplicate
	late, by, again := l.rng.Float64() < s.Reorder, l.rng.Float64(), l.rng.Float64()
	e := l.others(n)
	if lost && !s.ECN {
		l.Lost++
		return f
	}
	f.Copies = 1
	if twice {
		f.Copies = 2
	}
	if s.Limit > 0 && waiting+f.Copies > s.Limit {
		l.Overflow++
		f.Copies = 0
		return f
	}
	first, second := now, now
	mark := lost
	if e.early {
		l.Early++
	} else {
		out, long, ok := l.bottleneck(now, n)
		if !ok {
			l.Overflow++
			f.Copies = 0
			return f
		}
		mark = mark || long
		first, second = out+max(s.Delay+e.jitter, 0), out+s.Delay+time.Duration(again*float64(s.Late))
		if late {
			first += time.Duration(by * float64(s.Late))
		}
	}
	f.At[0], f.Lose, f.Mark = first, lost, mark
	if twice {
		l.Doubled++
		f.At[1] = second
	}
	if e.corrupt {
		l.Corrupted++
		f.Flip = e.flip
	}
	if mark {
		l.Marked++
	}
	return f
}

// bottleneck is when a frame of n octets that comes at now has passed it, and whether it has found
// so much before it that it is to be marked; false: it finds no room.
func (l *Link) bottleneck(now time.Duration, n int) (out time.Duration, long, ok bool) {
	s := &l.s
	if s.Rate == 0 {
		return now, false, true
	}
	l.free = max(l.free, now)
	waiting := (l.free - now).Seconds() * s.Rate / 8
	if s.Queue > 0 && waiting+float64(n) > float64(s.Queue) {
		return 0, false, false
	}
	l.free += time.Duration(float64(n) * 8 / s.Rate * float64(time.Second))
	return l.free, s.Mark > 0 && waiting > float64(s.Mark), true
}

// extra is what not every Schedule has.
type extra struct {
	jitter  time.Duration
	early   bool
	corrupt bool
	flip    int
}

// others draws it for a frame of n octets.
func (l *Link) others(n int) (e extra) {
	s := &l.s
	if s.Jitter > 0 {
		if s.Normal {
			e.jitter = time.Duration(l.more.NormFloat64() * float64(s.Jitter))
		} else {
			x := correlated(l.more.Float64(), &l.last.Delay, s.Correlation.Delay)
			e.jitter = time.Duration((2*x - 1) * float64(s.Jitter))
		}
	}
	if s.Early > 0 {
		x := l.more.Float64()
		if l.run < s.Gap-1 {
			l.run++
		} else if correlated(x, &l.last.Reorder, s.Correlation.Reorder) < s.Early {
			e.early, l.run = true, 0
		} else {
			l.run++
		}
	}
	if s.Corrupt > 0 {
		x, at := l.more.Float64(), l.more.Float64()
		e.corrupt = correlated(x, &l.last.Corrupt, s.Correlation.Corrupt) < s.Corrupt
		e.flip = min(int(at*float64(8*n)), 8*n-1)
	}
	return e
}

// draw is the next random number, which hangs on the last one by rho.
func (l *Link) draw(last *float64, rho float64) float64 {
	return correlated(l.rng.Float64(), last, rho)
}

func correlated(x float64, last *float64, rho float64) float64 {
	*last = (1-rho)*x + rho**last
	return *last
}

// lost says whether the next frame is.
func (l *Link) lost() bool {
	s := &l.s
	if s.Gilbert != (Gilbert{}) {
		g := &s.Gilbert
		x, y := l.rng.Float64(), l.more.Float64()
		if l.bad {
			l.bad = x >= g.R
		} else {
			l.bad = x < g.P
		}
		if l.bad {
			return y < g.Bad
		}
		return y < g.Good
	}
	x := l.draw(&l.last.Loss, s.Correlation.Loss)
	if s.Burst <= 1 {
		return x < s.Loss
	}
	change := 1 / s.Burst
	if !l.bad {
		change *= s.Loss / (1 - s.Loss)
	}
	if x < change {
		l.bad = !l.bad
	}
	return l.bad
}
