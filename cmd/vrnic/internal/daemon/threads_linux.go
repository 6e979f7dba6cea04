package daemon

import (
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// threadSlice is the scheduler's slice of the daemon's threads. What they do for a message takes a
	// few microseconds; with a short slice they get a processor soon although programs spin on all of
	// them.
	threadSlice = 100 * time.Microsecond
	// timerSlack is what sleeps of the daemon's threads may take longer. Go's scheduler naps for 3 us
	// before it takes a goroutine from another thread's queue; with the usual 50 us that nap is most
	// of a round trip.
	timerSlack = time.Microsecond
)

// PromptThreads makes n of Go's threads, and the caller's, run soon when there is something to do.
// Those that Go starts later take after one of them, also those that it starts on behalf of a
// goroutine that is locked to its thread: they take after a thread that the first of such calls
// starts, which is to be the one here.
func PromptThreads(n int) {
	promptThread()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, done sync.WaitGroup
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // each its own
			defer runtime.UnlockOSThread()
			promptThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}

// promptThread is for the calling thread. Policy and nice value stay as they are. Kernels before
// 6.12 ignore the slice.
func promptThread() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) // best effort
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return
	}
	attr.Runtime = uint64(threadSlice)
	_ = unix.SchedSetAttr(0, attr, 0) // best effort
}

// procsPerCPU times the processors is what GOMAXPROCS is raised to.
const procsPerCPU = 4

// RaiseProcs sets GOMAXPROCS well above the number of processors, unless the environment sets it.
// A goroutine in a raw blocking read, as doorbells and TAPs have, keeps its P until sysmon takes
// it: measured with two busy doorbells and a third goroutine echoing, p90 is 6 ms with one P per
// processor on two, 0.12 ms with four.
func RaiseProcs() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	if n := procsPerCPU * runtime.NumCPU(); runtime.GOMAXPROCS(0) < n {
		runtime.GOMAXPROCS(n)
	}
}
