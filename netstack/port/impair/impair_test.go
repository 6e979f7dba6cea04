package impair

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestSeed: the same seed does the same to the same frames, whenever they come; another seed or
// direction something else.
func TestSeed(t *testing.T) {
	s := Schedule{Seed: 7, Loss: 0.1, Duplicate: 0.1, Reorder: 0.5, Late: time.Millisecond}
	fates := func(s Schedule, direction uint64, apart time.Duration) (after []time.Duration) {
		l := s.Link(direction)
		for i := range 1000 {
			now := time.Duration(i) * apart
			f := l.Carry(now, 100)
			for _, at := range f.At[:f.Copies] {
				after = append(after, at-now)
			}
			after = append(after, -1)
		}
		return after
	}
	first := fates(s, 1, 0)
	if !slices.Equal(first, fates(s, 1, time.Second)) {
		t.Error("a second time, and slower: something else happened")
	}
	if slices.Equal(first, fates(s, 2, 0)) {
		t.Error("the other direction: the same happened")
	}
	s.Seed++
	if slices.Equal(first, fates(s, 1, 0)) {
		t.Error("another seed: the same happened")
	}
}

// TestLoss: as many frames are lost as was said, and in bursts of the length that was said.
func TestLoss(t *testing.T) {
	for _, s := range []Schedule{
		{Loss: 0}, {Loss: 0.01}, {Loss: 0.2}, {Loss: 1}, {Loss: 0.01, Burst: 8}, {Loss: 0.2, Burst: 8},
		{Loss: 0.2, Burst: 3},
	} {
		const n = 400_000
		l, bursts, before := s.Link(1), 0, false
		for range n {
			lost := l.Carry(0, 100).Copies == 0
			if lost && !before {
				bursts++
			}
			before = lost
		}
		share := float64(l.Lost) / n
		if math.Abs(share-s.Loss) > 0.15*s.Loss {
			t.Errorf("%v: %v of all frames lost", s, share)
		}
		// By chance alone, bursts have 1/(1-Loss) frames.
		want := max(s.Burst, 1/(1-s.Loss))
		if mean := share * n / float64(bursts); bursts > 1 && math.Abs(mean-want) > 0.1*want {
			t.Errorf("%v: bursts of %.2f frames, want %.2f", s, mean, want)
		}
	}
}

// TestBottleneck: frames leave one behind the other at the rate, and those that the queue has no
// room for are lost; after a pause it is empty.
func TestBottleneck(t *testing.T) {
	const octets, ms = 1250, time.Millisecond
	// A frame takes a millisecond, and the queue holds four, with the one that is being sent.
	l := Schedule{Rate: 10e6, Queue: 4 * octets, Delay: 5 * ms}.Link(1)
	var at []time.Duration
	for range 6 {
		if f := l.Carry(0, octets); f.Copies == 1 {
			at = append(at, f.At[0])
		}
	}
	if f := l.Carry(20*ms, octets); f.Copies == 1 {
		at = append(at, f.At[0])
	}
	if want := []time.Duration{6 * ms, 7 * ms, 8 * ms, 9 * ms, 26 * ms}; !slices.Equal(at, want) {
		t.Errorf("frames arrive at %v, want %v", at, want)
	}
	if l.Overflow != 2 || l.Lost != 0 || l.Frames != 7 {
		t.Errorf("%+v", l.Stats)
	}
}

// TestJitter: Reorder 1 gives each frame a delay of its own between Delay and Delay+Late.
func TestJitter(t *testing.T) {
	l := Schedule{Reorder: 1, Delay: time.Second, Late: time.Second}.Link(1)
	lo, hi := time.Hour, time.Duration(0)
	for range 1000 {
		f := l.Carry(0, 100)
		lo, hi = min(lo, f.At[0]), max(hi, f.At[0])
	}
	if lo < time.Second || lo > 1010*time.Millisecond || hi > 2*time.Second ||
		hi < 1990*time.Millisecond {
		t.Errorf("delays from %v to %v", lo, hi)
	}
}

// TestCellRate: a cell's bottleneck has the rate of all, unless it has one of its own.
func TestCellRate(t *testing.T) {
	for c, want := range map[Cell]float64{{Loss: 1}: Rate, {Loss: 1, Rate: 4e8}: 4e8} {
		if got := c.Schedule(1).Rate; got != want {
			t.Errorf("%+v: %v bits a second, want %v", c, got, want)
		}
	}
}
