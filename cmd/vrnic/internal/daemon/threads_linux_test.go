package daemon

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Who calls PromptThreads is on a prompt thread.
func TestPromptCaller(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends here
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil ||
		slack == int(timerSlack) {
		unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(2*timerSlack), 0, 0, 0) // looked at below
	}
	PromptThreads(1)
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil ||
		slack != int(timerSlack) {
		t.Errorf("timer slack %d, %v; want %d", slack, err, timerSlack)
	}
}

// Threads that were made prompt have a short slice and naps that are as short as they are asked to
// be, and those that they start do, too. As many threads are there afterwards as were asked for.
func TestPromptThreads(t *testing.T) {
	const n = 20
	PromptThreads(n)
	if tasks, err := os.ReadDir("/proc/self/task"); err != nil || len(tasks) < n {
		t.Errorf("%d threads: %v", len(tasks), err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		promptThread()
		if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil ||
			slack != int(timerSlack) {
			t.Errorf("timer slack %d, %v; want %d", slack, err, timerSlack)
		}
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL {
			return // this system lets nobody look, or the test is run with another policy
		}
		if attr.Runtime != 0 && attr.Runtime != uint64(threadSlice) { // 0: before Linux 6.12
			t.Errorf("slice %d, want %d", attr.Runtime, threadSlice)
		}
	}()
	<-done
}
