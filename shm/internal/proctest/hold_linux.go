package proctest

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// HoldPipe has a thread that moves an octet of a pipe, of which r is the read end and which has
// one, to a socket that is full. It has the kernel's lock of the pipe then, for which writing and
// closing wait, deaf to all signals, until release. The octet has been read then.
func HoldPipe(t testing.TB, r int) (release func()) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 1<<16); err == nil; {
		err = unix.Sendto(p[0], b, unix.MSG_DONTWAIT, nil)
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	tid, done := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid <- unix.Gettid()
		_, err := unix.Splice(r, nil, p[0], nil, 1, 0)
		for err == unix.EINTR {
			_, err = unix.Splice(r, nil, p[0], nil, 1, 0)
		}
		done <- err
	}()
	path := fmt.Sprintf("/proc/self/task/%d/", <-tid)
	Want(t, "a thread waits in splice", func() bool {
		nr, _ := os.ReadFile(path + "syscall")
		st, _ := os.ReadFile(path + "stat")
		return strings.HasPrefix(string(nr), fmt.Sprint(unix.SYS_SPLICE, " ")) &&
			strings.Contains(string(st), ") S ")
	})
	return sync.OnceFunc(func() {
		b := make([]byte, 1<<20)
		for {
			_ = unix.SetNonblock(p[1], true) // all may have been read
			_, _ = unix.Read(p[1], b)        // or not
			select {
			case err := <-done:
				if err != nil {
					t.Error("splice:", err)
				}
				unix.Close(p[0])
				unix.Close(p[1])
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// SlowSocket is a descriptor whose last close waits until release: a TCP connection that is to send
// something first (SO_LINGER), to a peer that reads nothing.
func SlowSocket(t testing.TB) (fd int, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 1<<16); err == nil; {
		_, err = unix.Write(fd, b)
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER,
		&unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	return fd, func() { peer.Close() } // with data unread: a reset
}
