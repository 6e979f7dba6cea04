package impair

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// plan reads a Plan that is good.
func plan(t *testing.T, text string, seed uint64) *Plan {
	t.Helper()
	p, err := ParsePlan(text, seed)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return &p
}

// TestWords: netem's words, units and defaults.
func TestWords(t *testing.T) {
	for words, want := range map[string]Schedule{
		"delay 100":               {Delay: 100 * time.Microsecond},
		"delay 5ms 1ms":           {Delay: 5 * ms, Jitter: ms},
		"delay 5ms jitter 1msecs": {Delay: 5 * ms, Jitter: ms},
		"delay 1s 250us 25%": {Delay: time.Second, Jitter: ms / 4,
			Correlation: Correlation{Delay: 0.25}},
		"latency 1.5ms 10 distribution normal": {
			Delay: 1500 * time.Microsecond, Jitter: 10 * time.Microsecond, Normal: true},
		"loss 0.1%":                  {Loss: 0.001},
		"loss random 20 25%":         {Loss: 0.2, Correlation: Correlation{Loss: 0.25}},
		"drop 1% burst 8":            {Loss: 0.01, Burst: 8},
		"loss gemodel 1%":            {Gilbert: Gilbert{P: 0.01, R: 0.99, Bad: 1}},
		"loss gemodel 1% 10% 70% 5%": {Gilbert: Gilbert{P: 0.01, R: 0.1, Bad: 0.7, Good: 0.05}},
		"duplicate 2% 50%":           {Duplicate: 0.02, Correlation: Correlation{Duplicate: 0.5}},
		"corrupt 3%":                 {Corrupt: 0.03},
		"reorder 25% 50% gap 5 delay 1ms": {Early: 0.25, Gap: 5, Delay: ms,
			Correlation: Correlation{Reorder: 0.5}},
		"rate 1gbit queue 64k mark 30k":   {Rate: 1e9, Queue: 64 << 10, Mark: 30 << 10},
		"rate 100mbps":                    {Rate: 800e6},
		"delay 1ms limit 7 loss 100% ecn": {Delay: ms, Limit: 7, Loss: 1, ECN: true},
	} {
		if want.Limit == 0 {
			want.Limit = DefaultLimit
		}
		want.Seed = 9
		if p := plan(t, words, 9); p.Schedule != want || p.Phases != nil {
			t.Errorf("%q: %+v, want %+v", words, p.Schedule, want)
		}
	}
	for words, want := range map[string]string{
		"": "what is to be done", "limit 5": "what is to be done", "delay": "how much",
		"delay -1ms": "want a time", "delay 2days": "want a time", "delay 1ms 1ms 101%": "percentage",
		"delay 1e300s": "want a time", "delay NaNs": "want a time",
		"delay 1ms distribution normal": "jitter", "delay 1ms 1ms distribution pareto": "there are",
		"delay 1ms 1ms 5% distribution normal": "correlation", "loss 101%": "percentage",
		"loss nan": "percentage", "loss 60% burst 3": "50%", "loss 1% 1% burst 3": "together",
		"reorder 25%": "delay", "queue 64k": "rate", "mark 64k": "rate", "ecn": "loss",
		"rate 1": "8bit", "rate x": "bits a second", "rate 1mbit queue 0": "at least 1",
		"limit 0 delay 1ms": "from 1 to", "slot 1ms": `"slot": want delay`,
		"delay 1ms\nloss 1%\nat loss 5%": "line 3", "at 5s for 0s loss 1%": "no time",
		"loss 1%\nat 1s loss 0% ecn": "which loss", "loss 1%\nat 1s reorder 5%": "which delay",
		"delay 1ms\nat 1s jump": "line 2",
	} {
		if p, err := ParsePlan(words, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want an error with %q", words, p, err, want)
		}
	}
}

// fates are what becomes of n frames, one each millisecond: when each arrives, and its bit.
func fates(l *Lane, n int) (all []time.Duration) {
	for i := range n {
		now := time.Duration(i) * ms
		f := l.Link(now).Carry(now, 100)
		all = append(all, time.Duration(f.Flip), time.Duration(f.Copies))
		for _, at := range f.At[:f.Copies] {
			all = append(all, at-now)
		}
		if f.Mark {
			all = append(all, -5)
		}
	}
	return all
}

// TestPlanSeed: with all that there is, the same seed does the same to the same frames; another
// seed, or direction, something else.
func TestPlanSeed(t *testing.T) {
	const words = "delay 5ms 3ms 20%\nloss 2% 10%\nduplicate 5%\ncorrupt 5%\nreorder 10% gap 3\n" +
		"rate 10mbit mark 100 queue 10k\nat 1s for 1s loss gemodel 5% 20%\n" +
		"at 3s delay 5ms 1ms distribution normal loss 30% ecn"
	const n = 5000
	first := fates(plan(t, words, 7).Lane(1), n)
	if !slices.Equal(first, fates(plan(t, words, 7).Lane(1), n)) {
		t.Error("a second time: something else happened")
	}
	if slices.Equal(first, fates(plan(t, words, 7).Lane(2), n)) {
		t.Error("the other direction: the same happened")
	}
	if slices.Equal(first, fates(plan(t, words, 8).Lane(1), n)) {
		t.Error("another seed: the same happened")
	}
}

// TestPhases: each time has what its last line says, over what lines without a time say.
func TestPhases(t *testing.T) {
	l := plan(t, "# a path\ndelay 5ms # of light\n\nat 1s for 2s loss 100%\nat 2s for 500ms delay 0\n",
		1).Lane(1)
	for _, tt := range []struct{ at, want time.Duration }{
		{0, 5 * ms}, {999 * ms, 5 * ms}, {time.Second, -1}, {1999 * ms, -1}, {2 * time.Second, 0},
		{2499 * ms, 0}, {2500 * ms, -1}, {3 * time.Second, 5 * ms},
	} {
		got := time.Duration(-1)
		if f := l.Link(tt.at).Carry(tt.at, 100); f.Copies == 1 {
			got = f.At[0] - tt.at
		}
		if got != tt.want {
			t.Errorf("at %v: %v, want %v", tt.at, got, tt.want)
		}
	}
	if s := l.Stats(); s.Frames != 8 || s.Lost != 3 {
		t.Errorf("%+v", s)
	}
}

// TestPhaseWithout: a phase may end what other words need: what is to be marked, or comes early,
// when no frame is lost, or delayed.
func TestPhaseWithout(t *testing.T) {
	const words = "loss 100% ecn delay 5ms reorder 100%\nat 1s for 1s loss 0%\nat 2s delay 0"
	l := plan(t, words, 1).Lane(1)
	for at, want := range map[time.Duration]Stats{
		0:               {Frames: 1, Early: 1, Marked: 1},
		time.Second:     {Frames: 1, Early: 1},
		2 * time.Second: {Frames: 1, Marked: 1},
	} {
		link := l.Link(at)
		if f := link.Carry(at, 100); f.Copies != 1 || f.At[0] != at || link.Stats != want {
			t.Errorf("at %v: %+v, %+v; want %+v", at, f, link.Stats, want)
		}
	}
}

// TestShares: as many frames are lost, doubled, early, marked and wrong as was said.
func TestShares(t *testing.T) {
	const n = 200_000
	for words, share := range map[string]func(*Stats) (uint64, float64){
		"loss 3%":             func(s *Stats) (uint64, float64) { return s.Lost, 0.03 },
		"loss 50% 0%":         func(s *Stats) (uint64, float64) { return s.Lost, 0.5 },
		"loss gemodel 1% 10%": func(s *Stats) (uint64, float64) { return s.Lost, 1. / 11 },
		"loss gemodel 1% 10% 50% 1%": func(s *Stats) (uint64, float64) {
			return s.Lost, 0.5/11 + 0.01*10/11
		},
		"loss 5% ecn":                 func(s *Stats) (uint64, float64) { return s.Marked, 0.05 },
		"duplicate 4%":                func(s *Stats) (uint64, float64) { return s.Doubled, 0.04 },
		"corrupt 6%":                  func(s *Stats) (uint64, float64) { return s.Corrupted, 0.06 },
		"delay 1ms reorder 10%":       func(s *Stats) (uint64, float64) { return s.Early, 0.1 },
		"delay 1s reorder 100% gap 4": func(s *Stats) (uint64, float64) { return s.Early, 0.25 },
	} {
		l := plan(t, words, 3).Lane(1)
		fates(l, n)
		s := l.Stats()
		got, want := share(&s)
		if g := float64(got) / n; math.Abs(g-want) > 0.1*want {
			t.Errorf("%q: %v of all frames, want %v", words, g, want)
		}
	}
}

// TestDelays: uniform jitter is within its bounds and on either side; the normal one has its
// standard deviation; none is below zero; an early frame has none.
func TestDelays(t *testing.T) {
	for words, want := range map[string]struct {
		lo, hi    time.Duration
		mean, dev float64 // milliseconds
	}{
		"delay 10ms 3ms":                     {7 * ms, 13 * ms, 10, 3 / math.Sqrt(3)},
		"delay 10ms 2ms distribution normal": {0, 30 * ms, 10, 2},
		"delay 1ms 3ms":                      {0, 4 * ms, 1.333, 1.333},
		"delay 10ms reorder 50%":             {0, 10 * ms, 5, 5},
		"delay 10ms 3ms 50%":                 {7 * ms, 13 * ms, 10, 1},
	} {
		l := plan(t, words, 3).Lane(1)
		sum, square := 0., 0.
		const n = 100_000
		for range n {
			d := l.Link(0).Carry(0, 100).At[0]
			if d < want.lo || d > want.hi {
				t.Fatalf("%q: %v", words, d)
			}
			x := d.Seconds() * 1e3
			sum, square = sum+x, square+x*x
		}
		mean := sum / n
		dev := math.Sqrt(square/n - mean*mean)
		if math.Abs(mean-want.mean) > 0.05*want.mean || math.Abs(dev-want.dev) > 0.05*want.dev {
			t.Errorf("%q: mean %.3f ms, deviation %.3f ms; want %v, %v", words, mean, dev, want.mean,
				want.dev)
		}
	}
}

// TestMark: what finds more than mark octets before the bottleneck is marked, and not lost.
func TestMark(t *testing.T) {
	l := plan(t, "rate 8mbit mark 2500 queue 5k", 1).Lane(1)
	marked, copies := 0, 0
	for range 6 {
		f := l.Link(0).Carry(0, 1000)
		copies += f.Copies
		if f.Mark && !f.Lose {
			marked++
		}
	}
	if marked != 2 || copies != 5 {
		t.Errorf("%d marked, %d carried", marked, copies)
	}
}

// TestLine: what is due first comes out first, and of those that are due together what went in
// first.
func TestLine(t *testing.T) {
	var q Line[int]
	for i := range 1000 {
		q.Push(time.Duration(i*7919%100), i)
	}
	last, lastV := time.Duration(-1), -1
	for q.Len() > 0 {
		next, _ := q.Next()
		due, v := q.Pop()
		if due != next || due < last || due == last && v < lastV || due != time.Duration(v*7919%100) {
			t.Fatalf("%d, due at %d, behind %d, due at %d", v, due, lastV, last)
		}
		last, lastV = due, v
	}
	if _, ok := q.Next(); ok {
		t.Error("an empty queue has a next one")
	}
}
