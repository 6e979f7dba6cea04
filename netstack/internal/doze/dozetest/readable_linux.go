// Package dozetest tells tests what there is to read.
package dozetest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Readable reports whether what is behind c, a syscall.RawConn or what is like one, has something
// to read, for which it waits at most for d.
func Readable(t *testing.T, c interface{ Control(func(uintptr)) error }, d time.Duration) bool {
	t.Helper()
	n := 0
	err := c.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		err := error(unix.EINTR)
		for err == unix.EINTR { // by signals of Go's scheduler
			n, err = unix.Poll(p, int(d.Milliseconds()))
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Error(err)
	}
	return n > 0
}
