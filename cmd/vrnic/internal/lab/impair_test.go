package lab

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/netstack/detour"
)

// What is done to the packets of something that goes by itself, as a queue pair's connection does,
// ends soon behind it, though nobody asks for anything; what is done to others stays.
func TestEndsWithItsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Impairments
		var gone [2]atomic.Bool
		var open [3]bool
		begin := func(i int, name string, over func() bool) {
			t.Helper()
			target := Target{Name: name, Over: over, Open: func(_, _ *detour.Road) (func(), error) {
				open[i] = true
				return func() { open[i] = false }, nil
			}}
			o := &Order{Target: name, Direction: "both", Words: "loss 1%"}
			if err := s.Begin(o, target); err != nil {
				t.Fatal(err)
			}
		}
		wait := func(d time.Duration, why string, want [3]bool) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if open != want {
				t.Errorf("%s: %v, want %v", why, open, want)
			}
		}
		for i := range gone {
			begin(i, []string{"vrnic0/16", "vrnic0/17"}[i], gone[i].Load)
		}
		begin(2, "vrnic1", nil)
		wait(time.Hour, "all are there", [3]bool{true, true, true})
		gone[0].Store(true)
		wait(lookEvery, "one is gone", [3]bool{false, true, true})
		gone[1].Store(true)
		wait(lookEvery, "both are gone", [3]bool{false, false, true})

		gone[0].Store(false)
		begin(0, "vrnic0/16", gone[0].Load)
		wait(time.Minute, "it is there again", [3]bool{true, false, true})
		gone[0].Store(true)
		wait(lookEvery, "it is gone again", [3]bool{false, false, true})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wait(time.Minute, "all is over", [3]bool{})
	})
}
