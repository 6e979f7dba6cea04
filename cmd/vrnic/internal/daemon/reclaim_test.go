package daemon

import (
	"testing"
	"testing/synctest"
	"time"
)

// Memory is given back once for sessions that end together, and not for small ones.
func TestReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := reclaimer{free: func() { n++ }}
		defer r.Close()
		want := func(times int, why string) {
			t.Helper()
			time.Sleep(10 * reclaimDelay) // of the test's own clock
			synctest.Wait()
			if n != times {
				t.Errorf("given back %d times, want %d: %s", n, times, why)
			}
		}
		r.sessionEnded(reclaimObjects - 1)
		want(0, "a small session has ended")
		for range 8 {
			r.sessionEnded(reclaimObjects)
			time.Sleep(reclaimDelay / 2)
		}
		want(1, "eight have ended together")
		r.sessionEnded(1)
		want(1, "one without much")
		for range reclaimObjects {
			r.sessionEnded(1)
		}
		want(2, "many small ones")
		r.sessionEnded(reclaimObjects)
		for range 4 * reclaimMost / reclaimDelay { // somebody who looks twice a second
			r.sessionEnded(0)
			time.Sleep(reclaimDelay / 2)
		}
		synctest.Wait()
		if n != 3 {
			t.Errorf("given back %d times while sessions end all the time, want 3", n)
		}
		r.sessionEnded(reclaimObjects)
		r.Close()
		want(3, "the daemon ends")
	})
}
