// Package doze is where who reads a file waits for something to come, and is not told of what comes
// while it looks for that itself.
package doze

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A File is one with a descriptor, as a syscall.RawConn is.
type File interface {
	// Control has f called with the descriptor, which is not closed meanwhile.
	Control(f func(fd uintptr)) error
}

// An Epoll lies between a File and Go's poller. Were the file itself in Go's poller, each message
// that comes would wake a thread that waits there, also while somebody looks for it anyway, and so
// would each that has gone out. It belongs to one reader, but for SetReadDeadline and Close.
type Epoll struct {
	of     File
	f      *os.File
	raw    syscall.RawConn
	listen bool // what comes is told of

	// What change does, by closures that are made once.
	op      int
	event   unix.EpollEvent
	file    uintptr
	err     error
	onFile  func(fd uintptr)
	onEpoll func(fd uintptr)
}

// New makes an Epoll of a file, which remains the caller's. It tells of nothing yet. While it is
// open the file's Control calls with an open descriptor, or fails: an Epoll of a bare number is
// closed before the number is another file's.
func New(of File) (*Epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil { // or os does without Go's poller
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	e := &Epoll{of: of, f: os.NewFile(uintptr(fd), "epoll")}
	e.onFile, e.onEpoll = e.control, e.controlEpoll
	if e.raw, err = e.f.SyscallConn(); err == nil {
		err = e.change(unix.EPOLL_CTL_ADD, 0)
	}
	if err != nil {
		e.f.Close()
		return nil, err
	}
	return e, nil
}

// change has the kernel tell of events. Errors and the end of a file it tells of always.
func (e *Epoll) change(op int, events uint32) error {
	e.op, e.event, e.err = op, unix.EpollEvent{Events: events}, nil
	err := e.of.Control(e.onFile)
	return errors.Join(err, e.err)
}

func (e *Epoll) control(fd uintptr) {
	e.file = fd
	if err := e.raw.Control(e.onEpoll); err != nil {
		e.err = err
	}
}

func (e *Epoll) controlEpoll(fd uintptr) {
	e.err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(fd), e.op, int(e.file), &e.event))
}

// Ignore has nobody told of what comes from now on: the caller looks for it again and again, and
// waits at last. An error, of an Epoll that is closed, Wait has, too.
func (e *Epoll) Ignore() { _ = e.set(false) }

func (e *Epoll) set(listen bool) error {
	if e.listen == listen {
		return nil
	}
	e.listen = listen
	events := uint32(0)
	if listen {
		events = unix.EPOLLIN // of what is there already, too
	}
	return e.change(unix.EPOLL_CTL_MOD, events)
}

// Wait calls look, and again each time that something has come, until it says that it has found
// that. An error: the Epoll is closed, or os.ErrDeadlineExceeded.
func (e *Epoll) Wait(look func(fd uintptr) bool) error {
	if err := e.set(true); err != nil {
		return err
	}
	return e.raw.Read(look)
}

// Control makes an Epoll a File itself, which has something to read while it tells of something.
func (e *Epoll) Control(f func(fd uintptr)) error { return e.raw.Control(f) }

// SetReadDeadline has Wait end then, with no deadline if t is zero. It may be called by anybody.
func (e *Epoll) SetReadDeadline(t time.Time) error { return e.f.SetReadDeadline(t) }

// Close ends Wait. It may be called by anybody.
func (e *Epoll) Close() error { return e.f.Close() }
