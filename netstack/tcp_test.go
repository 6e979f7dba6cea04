package netstack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// pair makes two stacks on a switch.
func pair(tb testing.TB, mtu int) (a, b *netstack.Stack) {
	sw := ethswitch.New(ethswitch.Config{})
	return netstacktest.NewStack(tb, sw, 1, mtu), netstacktest.NewStack(tb, sw, 2, mtu)
}

// TestTransfer moves checked octets both ways at once.
func TestTransfer(t *testing.T) {
	for _, mtu := range []int{1500, 9000, 65535} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("mtu=%d/v6=%v", mtu, v6), func(t *testing.T) {
				a, b := pair(t, mtu)
				from, to := netstacktest.Connect(t, a, b, v6)
				n := int64(8 << 20)
				if raceEnabled {
					n = 2 << 20
				}
				exchange(t, from, to, n)
				from.Close()
				to.Close()
			})
		}
	}
}

// exchange sends n octets each way at once and checks them; then both ends see the end.
func exchange(t *testing.T, a, b *netstack.TCPConn, n int64) {
	t.Helper()
	errc := make(chan error, 4)
	run := func(c *netstack.TCPConn) {
		// One goroutine owns a connection: it writes and reads in turn.
		errc <- both(c, netstacktest.NewBell(c), n)
	}
	go run(a)
	go run(b)
	for range 2 {
		if err := <-errc; err != nil {
			t.Error(err)
		}
	}
}

// both writes and reads n octets on c, half-closes and reads the end.
func both(c *netstack.TCPConn, bell netstacktest.Bell, n int64) error {
	w, r := netstacktest.NewSource(n), netstacktest.NewSink(n)
	ended := false
	for w.Len() > 0 || !ended {
		progress := false
		if w.Len() > 0 {
			m, err := c.WriteFrom(w)
			if err != nil {
				return fmt.Errorf("write: %w", err)
			}
			progress = m > 0
			if w.Len() == 0 {
				if err := c.CloseWrite(); err != nil {
					return fmt.Errorf("close write: %w", err)
				}
			}
		}
		m, err := c.ReadInto(r)
		if r.Err != nil {
			return r.Err
		}
		if err == io.EOF {
			if r.Len() != n {
				return fmt.Errorf("end after %d of %d octets", r.Len(), n)
			}
			ended = true
		} else if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !progress && m == 0 && !ended {
			<-bell
		} else if ended && !progress && w.Len() > 0 {
			<-bell
		}
	}
	return nil
}

func TestDialErrors(t *testing.T) {
	a, b := pair(t, 1500)
	ctx := context.Background()
	addr := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	for _, tt := range []struct {
		name   string
		local  netip.Addr
		remote netip.AddrPort
		want   error
	}{
		{"nobody listens", netip.Addr{}, netip.AddrPortFrom(b.Addrs()[0].Addr(), 9), syscall.ECONNREFUSED},
		{"nobody listens, IPv6", netip.Addr{}, netip.AddrPortFrom(b.Addrs()[1].Addr(), 9), syscall.ECONNREFUSED},
		{"no route", netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:1"), syscall.ENETUNREACH},
		{"not our address", addr("192.0.2.1"), netip.AddrPortFrom(b.Addrs()[0].Addr(), 9), syscall.EADDRNOTAVAIL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := a.DialTCP(ctx, tt.local, tt.remote)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := a.DialTCP(ctx, netip.Addr{}, netip.MustParseAddrPort("10.77.0.99:1"))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestListen(t *testing.T) {
	a, b := pair(t, 1500)
	l, err := b.ListenTCP(netip.MustParseAddrPort("0.0.0.0:7"), 4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ListenTCP(netip.MustParseAddrPort("0.0.0.0:7"), 4); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
	if _, err := b.ListenTCP(netip.MustParseAddrPort("192.0.2.9:7"), 4); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("foreign address: %v", err)
	}
	local := a.Addrs()[0].Addr()
	c, err := a.DialTCP(context.Background(), local, netip.AddrPortFrom(b.Addrs()[0].Addr(), 7))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if c.LocalAddr() != d.RemoteAddr() || c.RemoteAddr() != d.LocalAddr() || c.LocalAddr().Addr() != local {
		t.Errorf("addresses: %v %v, %v %v", c.LocalAddr(), c.RemoteAddr(), d.LocalAddr(), d.RemoteAddr())
	}
	errc := make(chan error)
	go func() { _, err := l.Accept(); errc <- err }()
	l.Close()
	if err := <-errc; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on a closed listener: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	c.Close()
	d.Close()
}

// A port that a connection has, or had until a moment ago, can be listened at; the same connection cannot be made again.
func TestListenWhereConnected(t *testing.T) {
	a, b := pair(t, 1500)
	to := netip.AddrPortFrom(b.Addrs()[0].Addr(), 7)
	l, err := b.ListenTCP(to, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from := netip.AddrPortFrom(a.Addrs()[0].Addr(), 40000)
	c, err := a.DialTCPFrom(context.Background(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	listen := func(when string) {
		t.Helper()
		l, err := a.ListenTCP(from, 4)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := a.DialTCPFrom(context.Background(), from, to); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: from where somebody listens: %v", when, err)
		}
		l.Close()
		if _, err := a.DialTCPFrom(context.Background(), from, to); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: once more: %v", when, err)
		}
	}
	listen("connected")
	c.Close() // first: it is a's side that waits
	d.Close()
	listen("closed")
}
