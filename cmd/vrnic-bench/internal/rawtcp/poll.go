package rawtcp

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// looksFirst is how often a polled reads without letting others run in between, as ends of vrnic's
// do.
const looksFirst = 16

// A polled reads a socket of the kernel, and never sleeps.
type polled struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // reads into b, and leaves n and err
	b   []byte
	n   int
	err error
}

// poller makes one of c.
func poller(c net.Conn) (io.Reader, error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil, errors.New("this connection is no socket of the kernel, and cannot be polled")
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &polled{raw: raw}
	p.try = func(fd uintptr) bool {
		p.n, p.err = syscall.Read(int(fd), p.b)
		return true // do not wait
	}
	return p, nil
}

// Read implements io.Reader.
func (p *polled) Read(b []byte) (int, error) {
	p.b = b
	for looks := 1; ; looks++ {
		if err := p.raw.Read(p.try); err != nil {
			return 0, err // c was closed
		}
		switch {
		case p.err == nil && p.n == 0 && len(b) > 0:
			return 0, io.EOF
		case p.err == nil:
			return p.n, nil
		case p.err != syscall.EAGAIN && p.err != syscall.EINTR:
			return 0, p.err
		}
		if looks > looksFirst {
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
		}
	}
}
