package mcast_test

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	. "github.com/vrnic/vrnic/vnic/internal/mcast"
)

// Groups are joined and left with their first and last member, and no limit is exceeded.
func TestGroups(t *testing.T) {
	joined := map[netip.Addr]int{}
	var refuse error
	g := New(Config[string]{
		Join: func(a netip.Addr) error {
			if refuse == nil {
				joined[a]++
			}
			return refuse
		},
		Leave:  func(a netip.Addr) error { joined[a]--; return nil },
		Groups: 2, Members: 2,
		Owner: func(s string) any { return len(s) }, PerOwner: 3,
	})
	one, six, more := netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("ff02::77"),
		netip.MustParseAddr("239.1.1.2")
	alive := func() error { return nil }
	want := func(what string, err, is error) {
		t.Helper()
		if !errors.Is(err, is) {
			t.Errorf("%s: %v, want %v", what, err, is)
		}
	}
	want("no group", g.Attach(netip.MustParseAddr("10.1.1.1"), "a", alive), rdma.ErrInvalid)
	want("the zero address", g.Attach(netip.Addr{}, "a", alive), rdma.ErrInvalid)
	want("who is gone", g.Attach(one, "a", func() error { return rdma.ErrClosed }), rdma.ErrClosed)
	refuse = rdma.ErrDeviceGone
	want("the network refuses", g.Attach(one, "a", alive), refuse)
	refuse = nil
	if g.Len() != 0 {
		t.Errorf("%d groups", g.Len())
	}
	want("the first", g.Attach(one, "a", alive), nil)
	want("again", g.Attach(one, "a", alive), nil)
	before := g.Members(one)
	want("another", g.Attach(one, "b", alive), nil)
	want("a third", g.Attach(one, "c", alive), rdma.ErrLimit)
	want("another group", g.Attach(six, "a", alive), nil)
	want("a third group", g.Attach(more, "a", alive), rdma.ErrLimit)
	if !slices.Equal(before, []string{"a"}) || !slices.Equal(g.Members(one), []string{"a", "b"}) {
		t.Errorf("members were %v, are %v", before, g.Members(one))
	}
	want("busy", g.Unless("a", func() { t.Error("called") }), rdma.ErrBusy)
	want("not a member", g.Detach(six, "b"), rdma.ErrInvalid)
	want("no such group", g.Detach(more, "b"), rdma.ErrInvalid)
	want("one goes", g.Detach(one, "a"), nil)
	want("twice", g.Detach(one, "a"), rdma.ErrInvalid)
	if joined[one] != 1 || joined[six] != 1 {
		t.Errorf("joined %v", joined)
	}
	g.Remove("a")
	g.Remove("nobody")
	if joined[one] != 1 || joined[six] != 0 || g.Len() != 1 || g.Members(six) != nil {
		t.Errorf("joined %v, %d groups", joined, g.Len())
	}
	called := false
	want("free", g.Unless("a", func() { called = true }), nil)
	g.Remove("b")
	want("g1 to one", g.Attach(one, "g1", alive), nil)
	want("g1 to another", g.Attach(six, "g1", alive), nil)
	want("g2 to one", g.Attach(one, "g2", alive), nil)
	want("a fourth time for one owner", g.Attach(six, "g2", alive), rdma.ErrLimit)
	want("once for another", g.Attach(six, "c", alive), nil)
	for _, m := range []string{"g1", "g2", "c"} {
		g.Remove(m)
	}
	want("an owner", g.Join(one, 7), nil)
	want("an owner's member", g.Attach(one, "1234567", alive), nil)
	want("no group", g.Join(netip.MustParseAddr("10.1.1.1"), 7), rdma.ErrInvalid)
	want("an owner again", g.Join(one, 7), nil)
	want("an owner, too often", g.Join(six, 7), rdma.ErrLimit)
	want("another owner", g.Join(six, 8), nil)
	want("a third group", g.Join(more, 8), rdma.ErrLimit)
	g.Remove("1234567")
	want("leaves", g.Leave(one, 7), nil)
	if joined[one] != 1 || g.Members(one) != nil {
		t.Errorf("joined %v, members %v", joined, g.Members(one))
	}
	want("leaves", g.Leave(one, 7), nil)
	want("leaves", g.Leave(six, 8), nil)
	if !called || joined[one] != 0 || joined[six] != 0 || g.Len() != 0 {
		t.Errorf("at the end: %t, %v, %d", called, joined, g.Len())
	}
}

// What it takes to attach does not grow with the groups that there are: a client that attaches to
// many does not hold the others up.
func TestManyGroups(t *testing.T) {
	const n = 8192
	none := func(netip.Addr) error { return nil }
	g := New(Config[int]{Join: none, Leave: none, Groups: n, Members: n, PerOwner: n,
		Owner: func(int) any { return 0 }})
	group := netip.MustParseAddr("239.1.0.0")
	var last netip.Addr
	attach := func() {
		last = group
		if err := g.Attach(group, 1, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		group = group.Next()
	}
	for range n - 2 {
		attach()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 100
	for range rounds {
		if err := g.Detach(last, 1); err != nil {
			t.Fatal(err)
		}
		group = last
		attach()
	}
	runtime.ReadMemStats(&after)
	// A copy of the table would have some hundred KiB.
	if octets := (after.TotalAlloc - before.TotalAlloc) / rounds; octets > 4096 {
		t.Errorf("to attach and detach allocates %d octets among %d groups", octets, g.Len())
	}
	g.Remove(1)
	if g.Len() != 0 {
		t.Errorf("%d groups are left", g.Len())
	}
}
