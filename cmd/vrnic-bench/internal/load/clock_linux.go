package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock is the machine's monotonic clock: it may be compared with another process's.
func clock() time.Duration {
	var ts unix.Timespec
	// It cannot fail for this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}
