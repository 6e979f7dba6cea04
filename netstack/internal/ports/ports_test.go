package ports_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/netstack/internal/ports"
)

// A kernel has ports of its own, and keeps others.
type kernel struct {
	own, kept map[uint16]bool
}

func (k *kernel) KeepPort(_ bool, at netip.AddrPort) (io.Closer, error) {
	if k.own[at.Port()] || k.kept[at.Port()] {
		return nil, fmt.Errorf("port %d: %w", at.Port(), syscall.EADDRINUSE)
	}
	k.kept[at.Port()] = true
	return free(func() { delete(k.kept, at.Port()) }), nil
}

type free func()

func (f free) Close() error { f(); return nil }

func port(n uint16) ports.Port {
	return ports.Port{At: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), n)}
}

// A port is kept once however often it is used, until the last user leaves it; of several all are
// or none; what is lent is kept until it is over; who comes to share later keeps what is used then.
func TestTable(t *testing.T) {
	clock := faketime.NewManualClock()
	table := &ports.Table{Clock: clock}
	k := &kernel{own: map[uint16]bool{80: true}, kept: map[uint16]bool{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	taken := func(err error, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	keeps := func(want ...uint16) {
		t.Helper()
		ok := len(k.kept) == len(want)
		for _, n := range want {
			ok = ok && k.kept[n]
		}
		if !ok {
			t.Errorf("kept %v, want %v", k.kept, want)
		}
	}
	must(table.Use(port(1), port(2)))
	must(table.Lend(port(3), func() bool { return false }))
	keeps()
	must(table.Share(k))
	keeps(1, 2) // what was lent before is nobody's business
	must(table.Use(port(1)))
	taken(table.Use(port(5), port(80)), syscall.EADDRINUSE)
	keeps(1, 2)
	table.Leave(port(1), port(2))
	keeps(1)
	table.Leave(port(1))
	keeps()

	over := false
	must(table.Lend(port(3), func() bool { return over }))
	must(table.Lend(port(3), func() bool { return true }))
	taken(table.Lend(port(80), func() bool { return true }), syscall.EADDRINUSE)
	clock.Advance(time.Minute)
	keeps(3)
	over = true
	clock.Advance(time.Minute)
	keeps()

	for n := range 16384 {
		must(table.Use(port(uint16(1000 + n))))
	}
	taken(table.Use(port(999)), syscall.ENOBUFS)
	must(table.Share(nil))
	keeps()
	must(table.Use(port(80)))
	taken(table.Share(k), syscall.EADDRINUSE)
	keeps()
	must(table.Use(port(999))) // nobody shares
}
