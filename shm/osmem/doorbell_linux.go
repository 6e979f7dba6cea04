package osmem

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
)

// An EventFD is a Doorbell between processes. Its file description, with its counter and its
// O_NONBLOCK flag, is shared with the client, who may do with it what it likes.
type EventFD struct {
	FD       int
	stopSeen atomic.Bool // the waiter has seen Stop
	stopping atomic.Bool // Stop has been called
	stopped  chan struct{}
}

var ErrStopped = fmt.Errorf("shm: doorbell stopped: %w", os.ErrClosed)

func NewEventFD() (*EventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &EventFD{FD: fd, stopped: make(chan struct{})}, nil
}

var eventOne = func() (b [8]byte) {
	abi.Order.PutUint64(b[:], 1)
	return b
}()

// Ring adds one. It can block while the counter is at its limit.
func (e *EventFD) Ring() error {
	b := eventOne
	for {
		if _, err := unix.Write(e.FD, b[:]); err != unix.EINTR {
			return err
		}
	}
}

// Wait blocks in a raw read, which costs less than the netpoller's two system calls: call it from
// a locked thread. EAGAIN means that the client has set O_NONBLOCK, and is a violation. After Stop
// it returns ErrStopped, and must not be called again.
func (e *EventFD) Wait() error {
	var b [8]byte
	for !e.stopping.Load() {
		_, err := unix.Read(e.FD, b[:])
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return abi.Violation("doorbell made non-blocking")
		case nil:
		default:
			return os.NewSyscallError("read(doorbell)", err)
		}
		break
	}
	if e.stopping.Load() {
		return ErrStopped
	}
	return nil
}

// Finish is the waiter's last call: it lets Stop, whose write a full counter can block, end.
func (e *EventFD) Finish() {
	e.stopSeen.Store(true)
	var b [8]byte
	for {
		select {
		case <-e.stopped:
			return
		case <-time.After(100 * time.Microsecond):
			// Not a plain read: the client may have emptied the counter, or empty it now.
			_, _ = unix.Preadv2(e.FD, [][]byte{b[:]}, -1, unix.RWF_NOWAIT) // EAGAIN is fine
		}
	}
}

// Stop ends a Wait, now or later. The waiter must call finish; only stop's own write wakes it, and
// the client may read that away, so it is repeated until the waiter has seen it. If there never was
// a waiter call neither.
func (e *EventFD) Stop() {
	e.stopping.Store(true)
	for pause := 100 * time.Microsecond; !e.stopSeen.Load(); pause = min(2*pause,
		10*time.Millisecond) {
		_ = e.Ring() // EAGAIN (non-blocking and full): then the waiter does not block either
		if e.stopSeen.Load() {
			break
		}
		time.Sleep(pause)
	}
	close(e.stopped)
}

func (e *EventFD) Close() { unix.Close(e.FD) } // nothing to lose

// Yield gives the processor to another process; runtime.Gosched knows only this one's goroutines.
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } // cannot fail

// YieldQuietly is yield that Go's scheduler is not told of: it would take the goroutine's P away
// while others have the processor.
func YieldQuietly() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } // cannot fail

// ShortSlice asks for a scheduling slice of 100 us for the calling thread, so that it runs soon
// when an application spins on the same core. Policy and nice value stay as they are. Kernels
// before 6.12 ignore it.
func ShortSlice() {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return
	}
	attr.Runtime = 100_000
	_ = unix.SchedSetAttr(0, attr, 0) // best effort
}
