package integration

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/netlab"
)

// A sniffer records the frames of one interface, as the kernel's side of it sees them.
type sniffer struct {
	t    *testing.T
	c    *capture
	f    *os.File
	done sync.WaitGroup
}

// sniff begins to record link in ns. Frames that pass after it has returned are in the recording.
func sniff(t *testing.T, ns *netlab.NS, link string) *sniffer {
	t.Helper()
	s := &sniffer{t: t, c: newCapture(t)}
	err := ns.Do(func() error {
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			int(all))
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		s.f = os.NewFile(uintptr(fd), "sniffer")
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		// A burst of pings must fit while this process does not run.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all,
			Ifindex: i.Index}))
	})
	if err != nil {
		t.Fatalf("sniff %s: %v", link, err)
	}
	t.Cleanup(func() { s.f.Close() })
	s.done.Go(func() {
		b := make([]byte, longestFrame)
		for {
			n, err := s.f.Read(b)
			switch {
			case err == nil:
				s.c.frame(b[:n])
			case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
				return
			case errors.Is(err, unix.ENETDOWN):
				// The interface went down or away; stop takes what was queued.
				return
			default:
				t.Errorf("sniff %s: %v", link, err)
				return
			}
		}
	})
	return s
}

// longestFrame is more than an interface shows at once.
const longestFrame = 1 << 17

// stop returns the recording. Frames that passed before it was called are in it.
func (s *sniffer) stop() string {
	s.t.Helper()
	if err := s.f.SetReadDeadline(time.Unix(1, 0)); err != nil {
		s.t.Fatal(err)
	}
	s.done.Wait()
	// What is queued by now, and what the kernel still has on its way.
	raw, err := s.f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			b := make([]byte, longestFrame)
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			for {
				switch n, err := unix.Read(int(fd), b); {
				case err == nil:
					s.c.frame(b[:n])
				case errors.Is(err, unix.EAGAIN):
					const quiet = 50 // ms
					if n, err := unix.Poll(fds, quiet); n == 0 && err == nil {
						return
					}
				case !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.EINTR):
					s.t.Errorf("sniff: %v", err)
					return
				}
			}
		})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return s.c.finish(s.t)
}
