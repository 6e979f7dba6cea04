package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// TestTransfer moves checked octets both ways at once.
func TestTransfer(t *testing.T) {
	for _, mtu := range []int{1500, 9000, 65535} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("mtu=%d/v6=%v", mtu, v6), func(t *testing.T) {
				a, b := netstacktest.Pair(t, mtu)
				from, to := netstacktest.Connect(t, a, b, v6)
				n := int64(8 << 20)
				if netstacktest.RaceEnabled {
					n = 2 << 20
				}
				netstacktest.Exchange(t, from, to, n)
				from.Close()
				to.Close()
			})
		}
	}
}

func TestDialErrors(t *testing.T) {
	a, b := netstacktest.Pair(t, 1500)
	ctx := context.Background()
	addr := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	for _, tt := range []struct {
		name   string
		local  netip.Addr
		remote netip.AddrPort
		want   error
	}{
		{"nobody listens", netip.Addr{}, netip.AddrPortFrom(b.Addrs()[0].Addr(), 9),
			syscall.ECONNREFUSED},
		{"nobody listens, IPv6", netip.Addr{}, netip.AddrPortFrom(b.Addrs()[1].Addr(), 9),
			syscall.ECONNREFUSED},
		{"no route", netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:1"), syscall.ENETUNREACH},
		{"not our address", addr("192.0.2.1"), netip.AddrPortFrom(b.Addrs()[0].Addr(), 9),
			syscall.EADDRNOTAVAIL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := a.TCP().Dial(ctx, tt.local, tt.remote)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := a.TCP().Dial(ctx, netip.Addr{}, netip.MustParseAddrPort("10.77.0.99:1"))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestListen(t *testing.T) {
	a, b := netstacktest.Pair(t, 1500)
	l, err := b.TCP().Listen(netip.MustParseAddrPort("0.0.0.0:7"), 4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TCP().Listen(netip.MustParseAddrPort("0.0.0.0:7"), 4); !errors.Is(err,
		syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
	if _, err := b.TCP().Listen(netip.MustParseAddrPort("192.0.2.9:7"), 4); !errors.Is(err,
		syscall.EADDRNOTAVAIL) {
		t.Errorf("foreign address: %v", err)
	}
	local := a.Addrs()[0].Addr()
	c, err := a.TCP().Dial(context.Background(), local, netip.AddrPortFrom(b.Addrs()[0].Addr(), 7))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if c.LocalAddr() != d.RemoteAddr() || c.RemoteAddr() != d.LocalAddr() ||
		c.LocalAddr().Addr() != local {
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

// A port that a connection has, or had until a moment ago, can be listened at; the same connection
// cannot be made again.
func TestListenWhereConnected(t *testing.T) {
	a, b := netstacktest.Pair(t, 1500)
	to := netip.AddrPortFrom(b.Addrs()[0].Addr(), 7)
	l, err := b.TCP().Listen(to, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from := netip.AddrPortFrom(a.Addrs()[0].Addr(), 40000)
	c, err := a.TCP().DialFrom(context.Background(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	listen := func(when string) {
		t.Helper()
		l, err := a.TCP().Listen(from, 4)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := a.TCP().DialFrom(context.Background(), from, to); !errors.Is(err,
			syscall.EADDRINUSE) {
			t.Errorf("%s: from where somebody listens: %v", when, err)
		}
		l.Close()
		if _, err := a.TCP().DialFrom(context.Background(), from, to); !errors.Is(err,
			syscall.EADDRINUSE) {
			t.Errorf("%s: once more: %v", when, err)
		}
	}
	listen("connected")
	c.Close() // first: it is a's side that waits
	d.Close()
	listen("closed")
}
