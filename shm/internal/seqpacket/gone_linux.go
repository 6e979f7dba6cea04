package seqpacket

import (
	"time"

	"golang.org/x/sys/unix"
)

// PeerGone says whether the other end of the socket fd has been closed. It takes nothing from it.
func PeerGone(fd int) bool {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case err != nil:
			return true
		default:
			return n == 0
		}
	}
}

// Watch calls gone if the other end of the connection is closed before stop is called, whatever it
// has sent before. Nobody may Read meanwhile. stop waits for a call of gone.
func (c *Conn) Watch(gone func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.rc.Read(hungUp) == nil {
			gone()
		}
	}()
	return func() {
		_ = c.c.SetReadDeadline(time.Unix(1, 0)) // an error: it is closed, and gone has been called
		<-done
		_ = c.c.SetReadDeadline(time.Time{})
	}
}

// HungUp reports whether the other end of the connection is closed, whatever it has sent before.
func (c *Conn) HungUp() bool {
	gone := true
	_ = c.rc.Control(func(fd uintptr) { gone = hungUp(fd) }) // an error: this end is
	return gone
}

// hungUp reports whether the other end of the socket fd has been closed, or either end shut down.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(p, 0)
		if err != unix.EINTR {
			return err != nil || n > 0
		}
	}
}
