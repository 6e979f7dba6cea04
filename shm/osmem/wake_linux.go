package osmem

import (
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewWakePair makes a pair of sockets by which one program wakes another: who sleeps has one end,
// and who has something for it sends an octet by the other. Neither can have the other one wait, or
// take what a third one has sent: docs/decisions.md#X12. Nor can who sleeps send anything to who
// wakes: a descriptor could have who closes that end wait.
func NewWakePair() (sleeper, waker int, err error) {
	waker, sleeper, err = oneWay()
	return sleeper, waker, err
}

// oneWay makes a pair of sockets by which octets go from near to far only, whoever has either.
func oneWay() (near, far int, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	if err := unix.Shutdown(p[0], unix.SHUT_RD); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return -1, -1, os.NewSyscallError("shutdown", err)
	}
	return p[0], p[1], nil
}

var wakeOctet = []byte{1}

// WakeBy wakes who has the other end of fd, and reports whether it is there. It does not block:
// there may be no room for one octet more, which then are enough.
func WakeBy(fd int) bool {
	err := sendOctet(fd)
	return err == nil || err == unix.EAGAIN
}

// sendOctet does not wait; EAGAIN: there is no room.
func sendOctet(fd int) error {
	for {
		err := unix.Sendto(fd, wakeOctet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		if err != unix.EINTR {
			return err
		}
	}
}

// A wakeSet has an EventReader wait for ends of NewWakePair, too.
type wakeSet struct {
	f     *os.File // an epoll instance, for Go's own to wait for
	conn  syscall.RawConn
	ready func(ep uintptr) bool // look, made once

	mu     sync.Mutex // held while descriptors are looked at
	pipe   int        // -1: closed
	n      int        // octets of the pipe at the last look
	err    error
	buf    [256]byte
	events [4]unix.EpollEvent
}

func newWakeSet(pipe int) (*wakeSet, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil { // else Go's poller does not take it
		unix.Close(ep)
		return nil, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	s := &wakeSet{f: os.NewFile(uintptr(ep), "vrnic-wake"), pipe: pipe}
	s.ready = s.look
	if s.conn, err = s.f.SyscallConn(); err == nil {
		err = s.add(pipe)
	}
	if err != nil {
		s.f.Close()
		return nil, err
	}
	return s, nil
}

func (s *wakeSet) add(fd int) error {
	var err error
	cerr := s.conn.Control(func(ep uintptr) {
		err = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	})
	if cerr != nil {
		return cerr
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// look takes what has come, and reports whether anything has.
func (s *wakeSet) look(ep uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pipe < 0 {
		s.err = os.ErrClosed
		return true
	}
	some, err := unix.EpollWait(int(ep), s.events[:], 0)
	if err != nil {
		if err != unix.EINTR {
			s.err = os.NewSyscallError("epoll_wait", err)
		}
		return true // EINTR: to look again
	}
	for i := range some {
		fd := int(s.events[i].Fd)
		n, err := unix.Read(fd, s.buf[:])
		gone := n <= 0 && err != unix.EAGAIN && err != unix.EINTR
		switch {
		case fd != s.pipe && gone: // who wakes
			_ = unix.EpollCtl(int(ep), unix.EPOLL_CTL_DEL, fd, nil)
		case fd == s.pipe && gone && err == nil:
			s.err = io.EOF
		case fd == s.pipe && gone:
			s.err = os.NewSyscallError("read", err)
		case fd == s.pipe:
			s.n = max(n, 0)
		}
	}
	return some > 0
}

func (s *wakeSet) take() (n int, err error) {
	if err := s.conn.Read(s.ready); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err, s.n, s.err = s.n, s.err, 0, nil
	return n, err
}

// Also has p wait for an octet by fd, the sleeper's end of NewWakePair, too, until Without. Calls
// of the two must not overlap.
func (p *EventReader) Also(fd int) error {
	s := p.set.Load()
	if s == nil {
		var err error
		conn, cerr := p.f.SyscallConn()
		if cerr != nil {
			return cerr
		}
		if cerr := conn.Control(func(pipe uintptr) { s, err = newWakeSet(int(pipe)) }); cerr != nil {
			return cerr
		}
		if err != nil {
			return err
		}
		p.set.Store(s)
		p.Kick() // who waits for the pipe alone
	}
	if err := unix.SetNonblock(fd, true); err != nil { // who wakes has the other end, not this flag
		return os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	return s.add(fd)
}

// Without takes Also back, and closes fd.
func (p *EventReader) Without(fd int) {
	if s := p.set.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	unix.Close(fd) // and epoll forgets it
}
