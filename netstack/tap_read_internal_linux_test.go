package netstack

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// pipeReader is a reader of a pipe, which stands for a TAP.
func pipeReader(t *testing.T) (r *tapReader, write func(string)) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		t.Fatal(err)
	}
	r = &tapReader{t: &TAP{fd: p[0]}}
	t.Cleanup(func() {
		r.turn.end()
		r.rx.release()
		unix.Close(p[0])
		unix.Close(p[1])
	})
	return r, func(s string) {
		if _, err := unix.Write(p[1], []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
}

// Who brings a frame can look for the next: one that it finds stays until it is passed on, none is lost, and it is known
// whether the kernel had nothing before it.
func TestTAPMore(t *testing.T) {
	runtime.LockOSThread() // the thread's scheduling is changed
	r, write := pipeReader(t)
	for range 3 {
		for range 2 {
			if r.more() {
				t.Fatal("there is more before anything was sent")
			}
		}
		write("one")
		write("another")
		for _, want := range []struct {
			frame string
			first bool
		}{{"one", true}, {"another", false}} {
			for range 2 {
				if !r.more() || r.err != nil {
					t.Fatalf("%s: not found: %v", want.frame, r.err)
				}
			}
			if err := r.wait(); err != nil {
				t.Fatal(err)
			}
			if got := string(r.rx.views[0].AsSlice()[:r.n]); got != want.frame || r.first != want.first {
				t.Errorf("found %q, first %v; want %q, %v", got, r.first, want.frame, want.first)
			}
			if !r.turn.shares {
				t.Error("it waits although it has a frame")
			}
			r.got, r.first = false, false
		}
	}
}

// A thread with a short slice has the usual one while it shares the processor, and its own again afterwards.
func TestTurn(t *testing.T) {
	done := make(chan struct{})
	cannot := "" // why
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		slice := func() uint64 {
			attr, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				t.Error(err)
				return 0
			}
			return attr.Runtime
		}
		usual := slice()
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
		var u turn
		for range 2 {
			for range 2 {
				u.share()
				if got := slice(); got != usual {
					t.Errorf("slice %d while it shares, want %d", got, usual)
				}
			}
			for range 2 {
				u.end()
				if got := slice(); got != short {
					t.Errorf("slice %d afterwards, want %d", got, short)
				}
			}
		}
	}()
	<-done
	if cannot != "" {
		t.Skip(cannot)
	}
}
