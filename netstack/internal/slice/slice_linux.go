// Package slice has threads that look for something share a processor with those they wait for.
package slice

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Usual has the thread of a goroutine that looks for something again and again, and lets
// others run between, share the processor with them. With a short slice, which has a thread run
// soon when it wakes up, sched_yield gives up no more than that slice: one with 0.1 ms goes on
// 14 times before one with 1.4 ms has a turn.
type Usual struct {
	shares, changed bool
	was             unix.SchedAttr
}

// Share begins, unless it has begun.
func (t *Usual) Share() {
	if t.shares {
		return
	}
	t.shares = true
	runtime.LockOSThread()
	// x/sys's SchedGetAttr would allocate.
	_, _, errno := unix.RawSyscall6(unix.SYS_SCHED_GETATTR, 0, uintptr(unsafe.Pointer(&t.was)),
		unix.SizeofSchedAttr, 0, 0, 0)
	if errno != 0 || t.was.Policy != unix.SCHED_NORMAL || t.was.Runtime == 0 {
		return
	}
	usual := t.was
	usual.Runtime = 0
	t.changed = unix.SchedSetAttr(0, &usual, 0) == nil
}

// End puts back what was before.
func (t *Usual) End() {
	if !t.shares {
		return
	}
	if t.changed {
		_ = unix.SchedSetAttr(0, &t.was, 0) // best effort
	}
	t.shares, t.changed = false, false
	runtime.UnlockOSThread()
}

// Shares reports whether it does.
func (t *Usual) Shares() bool { return t.shares }
