package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
)

// One who is held to a part has half of the ports that are chosen from, in however many contexts
// and whether they are named or not, and leaves the other half to others.
//
// +checklocksignore: nobody else has the tables.
func TestHalfOfThePorts(t *testing.T) {
	var table portTable
	at := netip.MustParseAddr("10.77.0.2")
	of := func(owner any, half bool) *ID {
		return &ID{space: PortSpaceTCP, user: &User{cfg: UserConfig{Owner: owner, HalfPorts: half}}}
	}
	fill := func(table *portTable, owner any, half bool) (last *ID, got netip.AddrPort, n int,
		err error) {
		for n <= allFree/2 {
			id := of(owner, half)
			ap, err := table.bind(id, netip.AddrPortFrom(at, 0), Sharing{})
			if err != nil {
				return last, got, n, err
			}
			last, got = id, ap
			n++
		}
		return last, got, n, nil
	}
	last, ap, n, err := fill(&table, "a", true)
	if n != allFree/2 || !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("%d of %d ports: %v", n, allFree, err)
	}
	free := ap
	for p := uint16(firstFree); ; p++ {
		free = netip.AddrPortFrom(at, p)
		if !table.takenLocked(last, p, binding{addr: at}) && p != ap.Port() {
			break
		}
	}
	if _, err := table.bind(of("a", true), free, Sharing{}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a free one by its number: %v", err)
	}
	if _, err := table.bind(of("a", true), netip.AddrPortFrom(at, 4000), Sharing{}); err != nil {
		t.Errorf("one that nobody is given: %v", err)
	}

	// What is given back can be had again, and a port that is shared counts once.
	table.unbind(last, ap)
	for range 3 {
		if _, err := table.bind(of("a", true), free, Sharing{Reuse: true}); err != nil {
			t.Errorf("behind one that was given back: %v", err)
		}
	}
	if _, err := table.bind(of("a", true), ap, Sharing{}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one more: %v", err)
	}
	if _, err := table.bind(of("b", true), netip.AddrPortFrom(at, 0), Sharing{}); err != nil {
		t.Errorf("another one: %v", err)
	}
	var other portTable
	if _, _, n, err := fill(&other, nil, false); err != nil {
		t.Errorf("one who is not held to it has %d of %d: %v", n, allFree, err)
	}
	table.unbind(of("a", true), free) // of which it has none
	if n := table.shares[portOwner{"a", PortSpaceTCP}]; n != allFree/2 {
		t.Errorf("%d ports are counted", n)
	}
}
