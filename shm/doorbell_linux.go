package shm

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An eventFD is a Doorbell between processes. Its file description, with its counter and its
// O_NONBLOCK flag, is shared with the client, who may do with it what it likes.
type eventFD struct {
	fd      int
	seen    atomic.Bool // the waiter has seen Stop
	ending  atomic.Bool // Stop has been called
	stopped chan struct{}
}

var errStopped = &wrapped{"shm: doorbell stopped", os.ErrClosed}

func newEventFD() (*eventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &eventFD{fd: fd, stopped: make(chan struct{})}, nil
}

var eventOne = func() (b [8]byte) {
	ne.PutUint64(b[:], 1)
	return b
}()

// Ring adds one. It can block while the counter is at its limit.
func (e *eventFD) Ring() error {
	b := eventOne
	for {
		if _, err := unix.Write(e.fd, b[:]); err != unix.EINTR {
			return err
		}
	}
}

// Wait blocks in a raw read, which costs less than the netpoller's two system calls: call it from
// a locked thread. EAGAIN means that the client has set O_NONBLOCK, and is a violation. After Stop
// it returns errStopped, and must not be called again.
func (e *eventFD) Wait() error {
	var b [8]byte
	for !e.ending.Load() {
		_, err := unix.Read(e.fd, b[:])
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return violation("doorbell made non-blocking")
		case nil:
		default:
			return os.NewSyscallError("read(doorbell)", err)
		}
		break
	}
	if e.ending.Load() {
		return errStopped
	}
	return nil
}

// finish is the waiter's last call: it lets Stop, whose write a full counter can block, end.
func (e *eventFD) finish() {
	e.seen.Store(true)
	var b [8]byte
	for {
		select {
		case <-e.stopped:
			return
		case <-time.After(100 * time.Microsecond):
			// Not a plain read: the client may have emptied the counter, or empty it now.
			unix.Preadv2(e.fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT) //nolint:errcheck // EAGAIN is fine
		}
	}
}

// stop ends a Wait, now or later. The waiter must call finish; only stop's own write wakes it, and
// the client may read that away, so it is repeated until the waiter has seen it. If there never was
// a waiter call neither.
func (e *eventFD) stop() {
	e.ending.Store(true)
	for pause := 100 * time.Microsecond; !e.seen.Load(); pause = min(2*pause, 10*time.Millisecond) {
		e.Ring() //nolint:errcheck // EAGAIN (non-blocking and full): then the waiter does not block either
		if e.seen.Load() {
			break
		}
		time.Sleep(pause)
	}
	close(e.stopped)
}

func (e *eventFD) close() { unix.Close(e.fd) } //nolint:errcheck // nothing to lose

// yield gives the processor to another process; runtime.Gosched knows only this one's goroutines.
func yield() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } //nolint:errcheck // cannot fail

// yieldQuietly is yield that Go's scheduler is not told of: it would take the goroutine's P away while others have the processor.
func yieldQuietly() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } //nolint:errcheck // cannot fail

// shortSlice asks for a scheduling slice of 100 us for the calling thread, so that it runs soon
// when an application spins on the same core. Policy and nice value stay as they are. Kernels
// before 6.12 ignore it.
func shortSlice() {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return
	}
	attr.Runtime = 100_000
	unix.SchedSetAttr(0, attr, 0) //nolint:errcheck // best effort
}

// An eventPipe is the write end of an event pipe: one octet per event. The client has the read end.
type eventPipe struct {
	fd     int // -1: closed; guarded by the user's lock
	closed func()
}

// newEventPipe returns the write end and the read end for the client, within the quota.
func (s *Server) newEventPipe() (_ *eventPipe, _ int, err error) {
	if s.pipes.Add(1) > int64(s.limits.Pipes) {
		s.pipes.Add(-1)
		return nil, -1, syscall.ENOMEM
	}
	defer func() {
		if err != nil {
			s.pipes.Add(-1)
		}
	}()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	// Each end has its own file description, so this flag is not the client's.
	if err := unix.SetNonblock(p[1], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, -1, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	return &eventPipe{fd: p[1], closed: func() { s.pipes.Add(-1) }}, p[0], nil
}

var pipeToken = []byte{1}

// token writes one token. EAGAIN and EPIPE are the client's loss.
func (p *eventPipe) token() {
	for p.fd >= 0 {
		if _, err := unix.Write(p.fd, pipeToken); err != syscall.EINTR {
			return
		}
	}
}

func (p *eventPipe) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
		p.closed()
	}
}
