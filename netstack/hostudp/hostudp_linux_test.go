package hostudp_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/hostudp"
)

const port = 14791

// A received is a datagram that has come.
type received struct {
	hostudp.Datagram
	data []byte
}

// An inbox keeps what comes.
type inbox chan received

func (c inbox) Receive(d *hostudp.Datagram) {
	r := received{*d, bytes.Clone(d.Data)}
	c <- r
}

func (c inbox) next(t *testing.T) received {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

// open opens a socket for the test's time.
func open(t *testing.T, addr string, h hostudp.Handler) *hostudp.Socket {
	t.Helper()
	s, err := hostudp.Open(netip.MustParseAddr(addr), port, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// What goes in one call comes as it was, datagram by datagram, with its class and hop limit.
func TestSend(t *testing.T) {
	in := make(inbox, 1000)
	a := open(t, "127.77.5.2", in)
	b := open(t, "127.77.5.3", in)
	m := &hostudp.Message{Class: 0x2a, Hops: 9}
	for _, sizes := range [][]int{{1}, {1000, 1000, 1000, 300}, {1024, 1024}, {40000}} {
		var pieces [][]byte
		for i, n := range sizes {
			pieces = append(pieces, bytes.Repeat([]byte{byte(i + 1)}, n))
		}
		m.Size = sizes[0]
		if err := a.Send(m, b.Addr(), pieces); err != nil {
			t.Fatal(err)
		}
		for i, p := range pieces {
			r := in.next(t)
			if !bytes.Equal(r.data, p) || r.Class != 0x2a || r.Hops != 9 || r.Group ||
				r.Src != netip.AddrPortFrom(a.Addr(), port) || r.Dst != b.Addr() {
				t.Fatalf("%v: datagram %d is %d octets, %+v", sizes, i, len(r.data), r.Datagram)
			}
		}
	}
	if mtu, err := a.Reach(context.Background(), b.Addr()); err != nil || mtu < 1500 {
		t.Errorf("the way to %v: %d, %v", b.Addr(), mtu, err)
	}
	m.Size = 70000
	if err := a.Send(m, b.Addr(), [][]byte{make([]byte, 70000)}); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("70000 octets: %v", err)
	}
	if _, err := hostudp.Open(a.Addr(), port, in); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
	for _, g := range []string{"127.0.0.1", "ff15::1"} {
		if err := a.Join(netip.MustParseAddr(g)); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("join %v: %v", g, err)
		}
		if err := a.Leave(netip.MustParseAddr(g)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("leave %v: %v", g, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	m.Size = 1
	for what, err := range map[string]error{
		"close": a.Close(), "send": a.Send(m, b.Addr(), [][]byte{{1}}),
		"join": a.Join(netip.MustParseAddr("239.77.1.1")),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s behind Close: %v", what, err)
		}
	}
}

// A counter counts what comes.
type counter chan int

func (c counter) Receive(d *hostudp.Datagram) { c <- len(d.Data) }

// A datagram costs no allocation, sent or taken.
func TestAllocs(t *testing.T) {
	in := make(counter, 100)
	a, b := open(t, "127.77.5.4", in), open(t, "127.77.5.5", in)
	m := &hostudp.Message{Size: 1000, Hops: 64}
	pieces := [][]byte{make([]byte, 1000), make([]byte, 1000), make([]byte, 500)}
	if n := testing.AllocsPerRun(100, func() {
		if err := a.Send(m, b.Addr(), pieces); err != nil {
			t.Error(err)
		}
		for range pieces {
			<-in
		}
	}); n >= 1 {
		t.Errorf("%v allocations for three datagrams", n)
	}
}
