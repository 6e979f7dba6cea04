package netstack_test

import (
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// Who has an address that another station has is told of it, and of which station; who is alone is
// told nothing. Both go on with the address.
func TestFindDuplicates(t *testing.T) {
	type found struct {
		addr   netip.Addr
		holder frame.MAC
	}
	clock := faketime.NewManualClock()
	sw := ethswitch.New(ethswitch.Config{})
	station := func(name string, addrs ...netip.Prefix) *netstack.Stack {
		t.Helper()
		s, err := netstack.NewStack(sw, netstack.Config{Name: name, Addrs: addrs, Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	one, two := netstacktest.Addresses(1), netstacktest.Addresses(2)
	a := station("a", one...)
	b := station("b", append(one, two...)...)
	c := station("c", netip.MustParsePrefix("10.77.0.99/24"))
	events := make(chan found, 16)
	for _, s := range []*netstack.Stack{a, b, c} {
		s.FindDuplicates(func(addr netip.Addr, holder frame.MAC) { events <- found{addr, holder} })
	}
	want := map[found]bool{}
	for _, p := range one {
		if p.Addr().Is4() {
			want[found{p.Addr(), a.MAC()}], want[found{p.Addr(), b.MAC()}] = true, true
		}
	}
	for len(want) > 0 {
		select {
		case f := <-events:
			if !want[f] {
				t.Errorf("%v is said to be %v's", f.addr, f.holder)
			}
			delete(want, f)
		case <-time.After(time.Minute):
			t.Fatalf("nobody has found %v", want)
		}
	}
	clock.Advance(10 * time.Second) // for who answers late
	select {
	case f := <-events:
		t.Errorf("%v is said to be %v's, too", f.addr, f.holder)
	default:
	}
}
