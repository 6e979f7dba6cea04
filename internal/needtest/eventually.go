package needtest

import (
	"testing"
	"time"
)

// patience is how long what happens by itself may take, on a machine with more to do.
const patience = time.Minute

// Becomes reports whether ok becomes true before patience ends.
func Becomes(ok func() bool) bool { return Within(patience, ok) }

// Within reports whether ok becomes true, which is asked again and again for at most limit.
func Within(limit time.Duration, ok func() bool) bool {
	for begin := time.Now(); !ok(); {
		took := time.Since(begin)
		if took > limit {
			return false
		}
		time.Sleep(min(max(took/8, time.Millisecond), 10*time.Millisecond)) // before it looks again
	}
	return true
}

// Eventually waits for what another goroutine, a process or the kernel brings about: it fails a
// test to which that does not happen.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Becomes(ok) {
		t.Fatalf("waited in vain: %s", what)
	}
}
