// Package netstacktest has what tests of and on netstack need: a port in memory, connected pairs of
// stacks, and a checked stream of octets to send over their connections.
package netstacktest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// Addresses of the n-th stack, from 1.
func Addresses(n int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.77.0.%d/24", n)),
		netip.MustParsePrefix(fmt.Sprintf("fd77::%x/64", n)),
	}
}

// NewStack makes a stack with Addresses(n), closed when the test ends.
func NewStack(tb testing.TB, sw *ethswitch.Switch, n, mtu int) *netstack.Stack {
	tb.Helper()
	return NewStackOf(tb, sw, n, netstack.Config{MTU: mtu})
}

// NewStackOf is NewStack with more that the stack is to have.
func NewStackOf(tb testing.TB, sw *ethswitch.Switch, n int, c netstack.Config) *netstack.Stack {
	tb.Helper()
	c.Name, c.Addrs = fmt.Sprintf("vrnic%d", n), Addresses(n)
	s, err := netstack.NewStack(sw, c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// Connect connects a to an address of b: the first, IPv4, or the second, IPv6.
func Connect(tb testing.TB, a, b *netstack.Stack, v6 bool) (from, to *tcp.Conn) {
	tb.Helper()
	addr := b.Addrs()[0].Addr()
	if v6 {
		addr = b.Addrs()[1].Addr()
	}
	l, err := b.TCP().Listen(netip.AddrPortFrom(addr, 0), 1)
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	from, err = a.TCP().Dial(context.Background(), netip.Addr{}, l.Addr())
	if err != nil {
		tb.Fatal(err)
	}
	to, err = l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	return from, to
}

// A Bell turns notifications into something to wait for.
type Bell chan struct{}

// NewBell returns a Bell that c rings.
func NewBell(c *tcp.Conn) Bell {
	b := make(Bell, 1)
	c.SetNotify(func() {
		select {
		case b <- struct{}{}:
		default:
		}
	})
	return b
}

// patternLen is prime, so that the pattern does not line up with sizes of buffers and segments.
const patternLen = 65521

var pattern = func() []byte {
	b := make([]byte, patternLen+1<<20)
	x := uint32(1)
	for i := range b {
		if i >= patternLen {
			b[i] = b[i-patternLen]
			continue
		}
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}()

// Pattern returns n octets, at most 1 MiB, of the test stream from offset off on. It is not to be
// written to.
func Pattern(off int64, n int) []byte {
	i := int(off % patternLen)
	return pattern[i : i+n]
}

// A Source gives the test stream; it is a netstack.Source.
type Source struct{ off, end int64 }

// NewSource returns a Source of n octets.
func NewSource(n int64) *Source { return &Source{end: n} }

// Len is how many octets are left.
func (s *Source) Len() int { return int(s.end - s.off) }

// Read gives as many as fit.
func (s *Source) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) && s.Len() > 0 {
		m := copy(b[n:], Pattern(s.off, min(s.Len(), 1<<20)))
		s.off += int64(m)
		n += m
	}
	return n, nil
}

// A Sink compares what it is given with the test stream; it is a Writer for ReadInto.
type Sink struct {
	Err      error // what was wrong
	off, end int64
}

// NewSink returns a Sink that takes n octets.
func NewSink(n int64) *Sink { return &Sink{end: n} }

// Len is how many octets came.
func (k *Sink) Len() int64 { return k.off }

// Write takes b, or as much of it as is expected.
func (k *Sink) Write(b []byte) (int, error) {
	b = b[:min(int64(len(b)), k.end-k.off)]
	if string(b) != string(Pattern(k.off, len(b))) {
		k.Err = fmt.Errorf("octets %d to %d are not what was sent", k.off, k.off+int64(len(b)))
		return 0, k.Err
	}
	k.off += int64(len(b))
	return len(b), nil
}

// Pair makes two stacks on a switch.
func Pair(tb testing.TB, mtu int) (a, b *netstack.Stack) {
	sw := ethswitch.New(ethswitch.Config{})
	return NewStack(tb, sw, 1, mtu), NewStack(tb, sw, 2, mtu)
}
