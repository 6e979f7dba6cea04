package detour

import (
	"time"

	"golang.org/x/sys/unix"
)

// shortWait is how long the thread itself waits, in naps of longNap at most: where nothing else
// happens Go's timers are exact to a millisecond only.
const (
	shortWait = 2 * time.Millisecond
	longNap   = 100 * time.Microsecond
)

// nap waits, on a thread.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // interrupted: who has called it looks again
}
