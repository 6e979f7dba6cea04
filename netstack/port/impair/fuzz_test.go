package impair

import (
	"testing"
	"time"
)

// FuzzParsePlan: whatever words say, a frame comes at most twice, not before it was sent nor beyond
// a bound, and has its wrong bit within it; the same words and seed do the same again.
func FuzzParsePlan(f *testing.F) {
	for _, words := range []string{
		"delay 5ms 3ms 20% loss 2% 10%\nduplicate 5% corrupt 5%", "rate 10mbit mark 100 queue 10k",
		"delay 1ms reorder 10% gap 3 # some", "loss 1% ecn\nat 1s for 1s loss gemodel 5% 20%\nat 3s loss 0",
		"delay 10 1 distribution normal limit 7", "loss 5% burst 8",
	} {
		f.Add(words, uint64(1))
	}
	f.Fuzz(func(t *testing.T, words string, seed uint64) {
		p, err := ParsePlan(words, seed)
		again, errAgain := ParsePlan(words, seed)
		if (err == nil) != (errAgain == nil) {
			t.Fatalf("%v, and then %v", err, errAgain)
		}
		if err != nil {
			return
		}
		lanes := [...]*Lane{p.Lane(1), again.Lane(1)}
		for i := range 40 {
			now, n := time.Duration(i)*100*time.Millisecond, 1+i*37
			fate := lanes[0].Link(now).CarryBehind(i, now, n)
			if other := lanes[1].Link(now).CarryBehind(i, now, n); other != fate {
				t.Fatalf("frame %d: %+v, and then %+v", i, fate, other)
			}
			if fate.Copies < 0 || fate.Copies > 2 || fate.Flip >= 8*n {
				t.Fatalf("frame %d of %d octets: %+v", i, n, fate)
			}
			for _, at := range fate.At[:fate.Copies] {
				// A day of delay, as much of jitter and more where it is normal, and the bottleneck.
				if at < now || at > now+30*24*time.Hour {
					t.Fatalf("frame %d, sent at %v: %+v", i, now, fate)
				}
			}
		}
		if s := lanes[0].Stats(); s.Frames != 40 {
			t.Fatalf("%+v", s)
		}
	})
}
