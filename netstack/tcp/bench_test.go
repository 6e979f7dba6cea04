package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// BenchmarkStream moves 1 MiB at a time from one stack to another.
func BenchmarkStream(b *testing.B) {
	for _, mtu := range []int{1500, 9000, 65535} {
		b.Run(fmt.Sprintf("mtu=%d", mtu), func(b *testing.B) {
			s1, s2 := netstacktest.Pair(b, mtu)
			from, to := netstacktest.Connect(b, s1, s2, false)
			defer from.Close()
			defer to.Close()
			b.SetBytes(netstacktest.Chunk)
			b.ReportAllocs()
			n := int64(b.N) * netstacktest.Chunk
			errc := make(chan error)
			go func() { errc <- netstacktest.Write(from, netstacktest.NewBell(from), n) }()
			if err := errors.Join(netstacktest.Read(to, netstacktest.NewBell(to), n), <-errc); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkEcho sends 64 octets to and fro.
func BenchmarkEcho(b *testing.B) {
	s1, s2 := netstacktest.Pair(b, 1500)
	from, to := netstacktest.Connect(b, s1, s2, false)
	defer from.Close()
	defer to.Close()
	b.ReportAllocs()
	errc := make(chan error)
	go func() {
		bell := netstacktest.NewBell(to)
		for range b.N {
			if err := errors.Join(netstacktest.Read(to, bell, 64), netstacktest.Write(to, bell,
				64)); err != nil {
				errc <- err
				return
			}
		}
		errc <- nil
	}()
	bell := netstacktest.NewBell(from)
	for range b.N {
		if err := errors.Join(netstacktest.Write(from, bell, 64), netstacktest.Read(from, bell,
			64)); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-errc; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkNetConn is the raw stack behind a net.Conn, 1 MiB at a time between two stacks.
func BenchmarkNetConn(b *testing.B) {
	s1, s2 := netstacktest.Pair(b, 1500)
	l, err := s2.TCP().ListenNet(netip.MustParseAddrPort("10.77.0.2:0"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	from, err := s1.TCP().DialNet(context.Background(), netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		b.Fatal(err)
	}
	to, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	b.SetBytes(netstacktest.Chunk)
	b.ReportAllocs()
	go func() {
		buf := make([]byte, netstacktest.Chunk)
		for range b.N {
			if _, err := from.Write(buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 256<<10)
	for n := int64(b.N) * netstacktest.Chunk; n > 0; {
		m, err := to.Read(buf[:min(n, int64(len(buf)))])
		if err != nil {
			b.Fatal(err)
		}
		n -= int64(m)
	}
}
