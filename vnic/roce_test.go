package vnic_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

func roce(c *vnic.Config) { c.RoCE, c.Network = true, nil }

// roceDevice is a device of RoCE without a network, opened.
func roceDevice(t *testing.T, opts ...vnictest.Option) *vnic.Context {
	t.Helper()
	d := vnictest.NewNet().Device(t, "rocep0", []string{"10.0.0.1/24", "fd00::1/64", "10.0.0.3/24"},
		append([]vnictest.Option{roce, func(c *vnic.Config) {
			c.MAC = [6]byte{2, 0, 0, 0xaa, 0xbb, 0xcc}
		}},
			opts...)...)
	return vnictest.Open(t, d, vnic.ContextConfig{})
}

// RVB-041, RVB-042, RVB-043: the link-local address of the MAC, then the addresses in their order,
// one type.
func TestGIDs(t *testing.T) {
	c := roceDevice(t)
	attr := c.Attr()
	if !attr.RoCE || attr.ActiveMTU != rdma.MTU1024 {
		t.Errorf("attributes %+v, want RoCE with an active MTU of 1024", attr)
	}
	want := []string{"fe80::ff:feaa:bbcc", "10.0.0.1", "fd00::1", "10.0.0.3"}
	for i := range attr.GIDs {
		e, err := c.GID(i)
		if err != nil {
			t.Fatal(err)
		}
		if i >= len(want) {
			if e != (rdma.GIDEntry{}) {
				t.Errorf("GID %d is %v, want an empty one", i, e.GID.Addr())
			}
			continue
		}
		if e.GID.Addr() != netip.MustParseAddr(want[i]) || e.Type != rdma.GIDRoCEv2 {
			t.Errorf("GID %d is %v of type %d, want %s", i, e.GID.Addr(), e.Type, want[i])
		}
	}
	for _, i := range []int{-1, attr.GIDs} {
		if _, err := c.GID(i); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("GID %d: %v", i, err)
		}
	}
	iwarp, _ := vnictest.Pair(t)
	if _, err := vnictest.Open(t, iwarp, vnic.ContextConfig{}).GID(0); !errors.Is(err,
		rdma.ErrInvalid) {
		t.Errorf("a GID of a device of iWARP: %v", err)
	}
}

// RVB-048: the active MTU is the largest that fits, with 80 octets of headers.
func TestActiveMTU(t *testing.T) {
	for mtu, want := range map[int]rdma.MTU{336: rdma.MTU256, 1103: rdma.MTU512, 1104: rdma.MTU1024,
		1500: rdma.MTU1024, 4175: rdma.MTU2048, 4176: rdma.MTU4096, 9000: rdma.MTU4096} {
		c := roceDevice(t, func(c *vnic.Config) { c.MTU = mtu })
		if got := c.Attr().ActiveMTU; got != want {
			t.Errorf("MTU %d: active MTU %d octets, want %d", mtu, got.Octets(), want.Octets())
		}
	}
	addr := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}
	if _, err := vnic.New(vnic.Config{Name: "x", RoCE: true, MTU: 335, Addrs: addr}); !errors.Is(err,
		rdma.ErrInvalid) {
		t.Errorf("an MTU that no packet fits: %v", err)
	}
	if _, err := vnic.New(vnic.Config{Name: "x", RoCE: true, MTU: 1500,
		Addrs: addrsFrom(addr[0], 32)}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("more addresses than the GID table has: %v", err)
	}
}

// addrsFrom is n addresses from p on.
func addrsFrom(p netip.Prefix, n int) (ps []netip.Prefix) {
	for a := p.Addr(); len(ps) < n; a = a.Next() {
		ps = append(ps, netip.PrefixFrom(a, p.Bits()))
	}
	return ps
}

// Types of queue pairs: what a device of iWARP has not it says.
func TestQPTypes(t *testing.T) {
	c := roceDevice(t)
	iwarp, _ := vnictest.Pair(t)
	ic := vnictest.Open(t, iwarp, vnic.ContextConfig{})
	for _, typ := range []rdma.QPType{0, rdma.RC, rdma.UC, rdma.UD} {
		p := vnictest.NewPeer(t, c, vnictest.PeerConfig{QP: rdma.QPConfig{Type: typ}})
		if got := p.QP.Config().Type; got != max(typ, rdma.RC) || p.QP.State() != rdma.QPReset {
			t.Errorf("a QP of type %v is one of %v in state %v", typ, got, p.QP.State())
		}
		if n := p.QP.Num(); n < 2 || n >= 0xffffff {
			t.Errorf("QP number %#x is not for programs", n)
		}
		q := vnictest.NewPeer(t, ic, vnictest.PeerConfig{})
		_, err := q.PD.CreateQP(rdma.QPConfig{SendCQ: q.SendCQ, RecvCQ: q.RecvCQ, Type: typ})
		if want := typ == rdma.UC || typ == rdma.UD; errors.Is(err, rdma.ErrUnsupported) != want {
			t.Errorf("type %v on a device of iWARP: %v", typ, err)
		}
	}
	p := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
	if _, err := p.PD.CreateQP(rdma.QPConfig{SendCQ: p.SendCQ, RecvCQ: p.RecvCQ, Type: 9}); !errors.Is(
		err, rdma.ErrInvalid) {
		t.Errorf("type 9: %v", err)
	}
}

// ROCE-197: numbers of queue pairs neither count up nor come back at once.
func TestQPNumbers(t *testing.T) {
	c := roceDevice(t)
	p := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
	seen := map[uint32]bool{}
	near := 0
	last := p.QP.Num()
	for range 200 {
		qp, err := p.PD.CreateQP(rdma.QPConfig{SendCQ: p.SendCQ, RecvCQ: p.RecvCQ})
		if err != nil {
			t.Fatal(err)
		}
		n := qp.Num()
		if seen[n] {
			t.Fatalf("QP number %#x came back", n)
		}
		seen[n] = true
		if d := int(n) - int(last); -256 < d && d < 256 {
			near++
		}
		last = n
		if err := qp.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if near > 3 {
		t.Errorf("%d of 200 numbers are next to the one before", near)
	}
}

// ROCE-198: a device of RoCE gives keys of 32 bits that are all secret: neither the octet that
// programs choose on other devices nor the rest follows from another key, and none comes back soon.
func TestRoCEKeys(t *testing.T) {
	p := vnictest.NewPeer(t, roceDevice(t), vnictest.PeerConfig{})
	buf := make([]byte, 64)
	seen := map[uint32]bool{}
	var low, high [256]int
	steps := map[uint32]int{}
	last := uint32(0)
	const n = 2000
	for i := range n {
		mr, err := p.PD.RegisterMemory(buf, vnictest.Full)
		if err != nil {
			t.Fatal(err)
		}
		k := mr.RKey()
		if seen[k] {
			t.Fatalf("key %#x came back after %d", k, i)
		}
		seen[k] = true
		low[k&0xff]++
		high[k>>24]++
		steps[k-last]++
		last = k
		if i%2 == 0 { // of those that are gone, and of those that stay
			if err := mr.(*vnic.MR).Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, octet := range [][256]int{low, high} {
		for v, times := range octet {
			if times > 8*n/256 {
				t.Errorf("%d of %d keys have %#x in an octet", times, n, v)
			}
		}
	}
	for step, times := range steps {
		if times > 2 {
			t.Errorf("%d keys are the one before and %#x", times, step)
		}
	}
}

// toInit has p's QP in Init.
func toInit(t *testing.T, p *vnictest.Peer) {
	t.Helper()
	a := rdma.QPAttr{State: rdma.QPInit, Port: 1, Access: vnictest.Full, QKey: 0x1111}
	mask := rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess
	if p.QP.Type() == rdma.UD {
		mask ^= rdma.AttrAccess | rdma.AttrQKey
	}
	if err := p.QP.Modify(&a, mask); err != nil {
		t.Fatal(err)
	}
}

// RVB-001, RVB-012, RVB-017: a modify that is refused changes nothing, Reset forgets all.
func TestModifyRefused(t *testing.T) {
	c := roceDevice(t)
	p := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
	query := func() rdma.QPAttr {
		t.Helper()
		a, err := p.QP.Query()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := query(); a != (rdma.QPAttr{State: rdma.QPReset, CurState: rdma.QPReset}) {
		t.Errorf("a new QP has the attributes %+v", a)
	}
	toInit(t, p)
	want := rdma.QPAttr{State: rdma.QPInit, CurState: rdma.QPInit, Port: 1, Access: vnictest.Full}
	if a := query(); a != want {
		t.Errorf("in Init the attributes are %+v, want %+v", a, want)
	}
	for _, tt := range []struct {
		why  string
		a    rdma.QPAttr
		mask rdma.QPAttrMask
	}{
		{"a good attribute and a bad one", rdma.QPAttr{Access: rdma.RemoteRead, Port: 2},
			rdma.AttrAccess | rdma.AttrPort},
		{"no such transition", rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrState},
		{"attributes are missing", rdma.QPAttr{State: rdma.QPRTR, Access: rdma.RemoteRead},
			rdma.AttrState | rdma.AttrAccess},
		{"a state of iWARP", rdma.QPAttr{State: rdma.QPClosing}, rdma.AttrState},
		{"no state", rdma.QPAttr{State: 77}, rdma.AttrState},
		{"capacities", rdma.QPAttr{}, rdma.AttrCap},
		{"bits that mean nothing", rdma.QPAttr{}, 1 << 25},
	} {
		if err := p.QP.Modify(&tt.a, tt.mask); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", tt.why, err)
		}
		if a := query(); a != want {
			t.Errorf("%s: the attributes are %+v, want %+v", tt.why, a, want)
		}
	}
	if err := p.QP.Modify(&rdma.QPAttr{State: rdma.QPReset}, rdma.AttrState); err != nil {
		t.Fatal(err)
	}
	if a := query(); a != (rdma.QPAttr{State: rdma.QPReset, CurState: rdma.QPReset}) {
		t.Errorf("a QP that was reset has the attributes %+v", a)
	}
}

// RVB-016: Q_Keys with the top bit set are for the privileged.
func TestControlledQKey(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		d := vnictest.NewNet().Device(t, "rocep0", []string{"10.0.0.1/24"}, roce)
		c := vnictest.Open(t, d, vnic.ContextConfig{Privileged: privileged})
		p := vnictest.NewPeer(t, c, vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.UD}})
		toInit(t, p)
		err := p.QP.Modify(&rdma.QPAttr{QKey: 0x80000001}, rdma.AttrQKey)
		if privileged != (err == nil) || err != nil && !errors.Is(err, syscall.EPERM) {
			t.Errorf("privileged %t: %v", privileged, err)
		}
	}
}

// RVB-012, RVB-013, RVB-022, RVB-024, RVB-025: what may be posted in which state, and what becomes
// of it.
func TestPostInStates(t *testing.T) {
	c := roceDevice(t)
	p := vnictest.NewPeer(t, c, vnictest.PeerConfig{QP: rdma.QPConfig{MaxSendWR: 4, MaxRecvWR: 4}})
	send := func() error { return p.QP.PostSend(&rdma.SendWR{ID: 1, Op: rdma.OpSend}) }
	recv := func(id uint64) error { return p.QP.PostRecv(&rdma.RecvWR{ID: id}) }
	if err := recv(1); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a receive in Reset: %v", err)
	}
	if err := send(); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a Send in Reset: %v", err)
	}
	for range 3 { // each time there is room for all
		toInit(t, p)
		if err := send(); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("a Send in Init: %v", err)
		}
		for i := range uint64(4) {
			if err := recv(i); err != nil {
				t.Fatal(err)
			}
		}
		if err := recv(4); !errors.Is(err, rdma.ErrQueueFull) {
			t.Errorf("one receive too many: %v", err)
		}
		if err := p.QP.ModifyState(rdma.QPReset); err != nil {
			t.Fatal(err)
		}
		p.WantNone("Reset empties the queues without completions")
	}
	if err := p.QP.ModifyState(rdma.QPError); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("from Reset to Error: %v", err)
	}
	toInit(t, p)
	if err := recv(7); err != nil {
		t.Fatal(err)
	}
	if err := p.QP.ModifyState(rdma.QPError); err != nil {
		t.Fatal(err)
	}
	if err := p.QP.ModifyState(rdma.QPError); err != nil {
		t.Errorf("from Error to Error: %v", err)
	}
	if err := recv(8); err != nil {
		t.Error(err)
	}
	if err := send(); err != nil {
		t.Error(err)
	}
	p.WantRecv("flushed", is(7, flush), is(8, flush))
	p.WantSend("flushed", is(1, flush))
}
