package baseline

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// A port that is kept is free for the server that is told of it, and for nobody else.
func TestKeepPort(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		at, release, err := keepPort(netip.MustParseAddr(addr))
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			needtest.Lacking(t, "ipv6", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, err := net.Dial("tcp", at.String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v: somebody listens there: %v, %v", at, c, err)
		}
		plain := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
			}), err)
		}}
		if l, err := plain.Listen(t.Context(), "tcp", at.String()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v can be had without SO_REUSEADDR: %v, %v", at, l, err)
		}
		l, err := net.Listen("tcp", at.String()) // has SO_REUSEADDR
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.Close()
		release()
	}
}
