package hostudp

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A gate is where an end waits: an epoll of its own, which lies between the socket and Go's poller.
// Were the socket in Go's poller, each datagram that comes would wake a thread that waits there,
// also while somebody looks for it anyway, and so would each that has gone out.
type gate struct {
	f     *os.File
	raw   syscall.RawConn
	waits func(uintptr) bool // for Go's poller
	open  bool               // datagrams are told of
}

// newGate makes a gate that is shut, before the socket of s. ready reports whether something has
// come; it reads it, if so.
func newGate(s syscall.RawConn, ready func() bool) (*gate, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil { // or os does without Go's poller
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	g := &gate{f: os.NewFile(uintptr(fd), "epoll"), waits: func(uintptr) bool { return ready() }}
	if g.raw, err = g.f.SyscallConn(); err == nil {
		err = g.control(s, unix.EPOLL_CTL_ADD, 0)
	}
	if err != nil {
		g.f.Close()
		return nil, err
	}
	return g, nil
}

// control changes what is told of the socket of s.
func (g *gate) control(s syscall.RawConn, op int, events uint32) error {
	var err error
	cerr := s.Control(func(socket uintptr) {
		cerr := g.raw.Control(func(epoll uintptr) {
			err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(epoll), op, int(socket),
				&unix.EpollEvent{Events: events}))
		})
		err = errors.Join(err, cerr)
	})
	return errors.Join(err, cerr)
}

// set opens or shuts the gate before the socket of s.
func (g *gate) set(s syscall.RawConn, open bool) error {
	if g.open == open {
		return nil
	}
	g.open = open
	events := uint32(0)
	if open {
		events = unix.EPOLLIN // of what is there already, too
	}
	return g.control(s, unix.EPOLL_CTL_MOD, events)
}

// wait opens the gate, and waits until ready says that something has come; an error: it was closed.
func (g *gate) wait(s syscall.RawConn) error {
	if err := g.set(s, true); err != nil {
		return err
	}
	return g.raw.Read(g.waits)
}
