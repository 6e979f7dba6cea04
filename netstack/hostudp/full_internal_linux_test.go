package hostudp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// A counting is a RawConn that counts its calls, and those that are under way.
type counting struct {
	syscall.RawConn
	made, inside, most atomic.Int32
	from               int32 // the call from which on most is counted
}

func (c *counting) Control(f func(uintptr)) error {
	n := c.inside.Add(1)
	defer c.inside.Add(-1)
	if c.made.Add(1) > c.from {
		c.most.Store(max(c.most.Load(), n))
	}
	return c.RawConn.Control(f)
}

// Where the kernel has no room one call waits for all that send, and each is sent when there is.
// A stream's socket, which passes over addresses, has no room while nobody reads.
func TestFull(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reader, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	err = errors.Join(c.(*net.TCPConn).SetWriteBuffer(1), reader.(*net.TCPConn).SetReadBuffer(1))
	if err != nil { // room that does not grow
		t.Fatal(err)
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const senders = 6
	full := &counting{from: 2 * senders}
	if full.RawConn, err = f.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	filled := 0
	if err := full.RawConn.Control(func(fd uintptr) {
		soon := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
		err = errors.Join(unix.SetNonblock(int(fd), false),
			unix.SetsockoptTimeval(int(fd), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &soon))
		for b := make([]byte, 1<<16); err == nil; {
			var n int
			if n, err = unix.SendmsgN(int(fd), b, nil, nil, 0); n > 0 { // until nothing goes for a while
				filled += n
			}
		}
	}); err != nil || filled == 0 {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}

	s := &Socket{own: &end{raw: full}}
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			m := Message{Size: 1}
			if err := s.Send(&m, netip.MustParseAddr("127.0.0.1"), [][]byte{{1}}); err != nil {
				t.Error(err)
			}
		})
	}
	needtest.Eventually(t, "three calls of each", func() bool { return full.made.Load() >= 3*senders })
	if n := full.most.Load(); n >= senders {
		t.Errorf("%d calls of %d senders wait at once", n, senders)
	}
	go func() {
		wg.Wait()
		c.Close()
		f.Close()
	}()
	got, err := io.Copy(io.Discard, reader)
	if err != nil || got != int64(filled+senders) {
		t.Errorf("%d octets came, %v; want %d and %d", got, err, filled, senders)
	}
}
