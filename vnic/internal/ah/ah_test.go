package ah_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/udp"
	. "github.com/vrnic/vrnic/vnic/internal/ah"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

func newPD(t *testing.T) *mem.PD {
	t.Helper()
	keys, err := mem.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	s := new(mem.Space)
	s.Init(mem.Config{Keys: keys, Limits: mem.Limits{PD: 1}})
	pd, err := s.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	return pd
}

// A handle finds its address handle as long as that is there, and is not given to another when it
// is gone; as many are there as may be, and their protection domain cannot go.
func TestTable(t *testing.T) {
	var table Table
	pd := newPD(t)
	const limit = 1000
	add := func() (*AH, error) {
		return table.Add(Config{PD: pd, Settle: func() {}, Attr: rdma.AHAttr{Port: 1}, Flow: udp.Flow{
			Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), HopLimit: 3,
		}}, limit)
	}
	var all []*AH
	seen := map[uint32]bool{}
	for range limit {
		a, err := add()
		if err != nil || seen[a.Handle()] || a.Handle() == 0 || table.Find(a.Handle()) != a {
			t.Fatalf("%v: %v", a, err)
		}
		seen[a.Handle()] = true
		all = append(all, a)
	}
	if _, err := add(); !errors.Is(err, rdma.ErrLimit) || table.Len() != limit {
		t.Errorf("one too many: %v, %d", err, table.Len())
	}
	if err := pd.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("close the protection domain: %v", err)
	}
	for _, h := range []uint32{0, 1, all[0].Handle() + 1<<16, ^uint32(0)} {
		if table.Find(h) != nil {
			t.Errorf("handle %#x is there", h)
		}
	}
	old := all[7]
	for range 3000 {
		for range 2 {
			if old.Close() != nil || table.Find(old.Handle()) != nil {
				t.Fatal("a handle that is gone is there")
			}
		}
		a, err := add()
		if err != nil || seen[a.Handle()] || table.Find(a.Handle()) != a {
			t.Fatalf("in its place: %v, %v", a, err)
		}
		seen[a.Handle()] = true
		old, all[7] = a, a
	}
	f := old.Flow(17)
	if f.SrcPort != udp.SourcePort(17) || f.HopLimit != 3 || old.Attr().Port != 1 {
		t.Errorf("flow %+v, %+v", f, old.Attr())
	}
	for _, a := range all {
		a.Close()
	}
	if err := pd.Close(); err != nil || table.Len() != 0 {
		t.Errorf("at the end: %v, %d are there", err, table.Len())
	}
	if _, err := add(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("of a protection domain that is gone: %v", err)
	}
}
