package slice_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/internal/slice"
)

// A thread with a short slice has the usual one while it shares the processor, and its own again
// afterwards.
func TestTurn(t *testing.T) {
	done := make(chan struct{})
	cannot := "" // why
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		now := func() uint64 {
			attr, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				t.Error(err)
				return 0
			}
			return attr.Runtime
		}
		usual := now()
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL || usual == 0 {
			cannot = "the kernel tells no slice (before Linux 6.12), or this thread is not SCHED_NORMAL"
			return
		}
		const short = 200_000
		attr.Runtime = short
		if err := unix.SchedSetAttr(0, attr, 0); err != nil {
			cannot = "set a slice: " + err.Error()
			return
		}
		var u slice.Usual
		for range 2 {
			for range 2 {
				u.Share()
				if got := now(); got != usual {
					t.Errorf("slice %d while it shares, want %d", got, usual)
				}
			}
			for range 2 {
				u.End()
				if got := now(); got != short {
					t.Errorf("slice %d afterwards, want %d", got, short)
				}
			}
		}
	}()
	<-done
	if cannot != "" {
		needtest.Skip(t, cannot)
	}
}
