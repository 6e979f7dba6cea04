package ipoib

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// Two hosts reach each other over IPv4 and IPv6, with datagrams only: the first packets wait for
// resolution, and what follows goes at once. IPOIB-001, IPOIB-006.
func TestDatagrams(t *testing.T) {
	w := newWorld(t)
	off := func(c *Config) { c.Connected, c.MTU = false, 2044 }
	a, b := w.add(1, off), w.add(2, off)
	for _, ip := range []func(*node) netip.Addr{(*node).ip4, (*node).ip6} {
		var want [][]byte
		for n := range 5 {
			p := packet(ip(a), ip(b), 2044-n)
			a.sends(p)
			want = append(want, p)
		}
		b.wantHost("what has waited", want...)
		p := packet(ip(b), ip(a), 2044)
		if _, ok := b.Send(w.now, p); !ok {
			t.Error("who was asked has to ask, too")
		}
		b.sends(p)
		a.wantHost("back", p)
	}
	if s := a.Stats(); s.Connects != 0 || s.TxConnected != 0 {
		t.Errorf("connections of who has none: %+v", s)
	}
	a.sends(packet(a.ip4(), b.ip4(), 2045))
	w.run()
	if s := a.Stats(); s.DropTooBig != 1 {
		t.Errorf("a packet of 2045 octets: %+v", s)
	}
}

// Reserved octets, unknown types and frames that lie. IPOIB-003, IPOIB-004.
func TestFrames(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	p := packet(netip.MustParseAddr("10.0.0.7"), a.ip4(), 60)
	receive := func(b []byte) []byte { return a.ReceiveDatagram(w.now, gid(7), 0x700, b) }
	f := frame(IPv4, p)
	f[2], f[3] = 0xff, 0xff
	if got := receive(f); !bytes.Equal(got, p) {
		t.Errorf("reserved octets are looked at: % x", got)
	}
	if got := receive(append(frame(IPv4, p), 1, 2, 3)); !bytes.Equal(got, p) {
		t.Errorf("octets behind the packet: % x", got)
	}
	for _, tt := range []struct {
		name string
		b    []byte
		n    func(*Stats) *uint64
	}{
		{"type 88CC", frame(0x88cc, p), func(s *Stats) *uint64 { return &s.DropUnknownType }},
		{"RARP", frame(RARP, p), func(s *Stats) *uint64 { return &s.DropUnknownType }},
		{"empty", nil, func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"three octets", []byte{8, 0, 0}, func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"no packet", frame(IPv4, nil), func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"IPv4 called IPv6", frame(IPv6, p), func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"shorter than it says", frame(IPv4, p[:59]), func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"short ARP", frame(ARP, make([]byte, 55)), func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"ARP of Ethernet", frame(ARP, append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 48)...)),
			func(s *Stats) *uint64 { return &s.DropMalformed }},
		{"our address of somebody else", frame(ARP, (&arpPacket{op: arpReply,
			sender: LinkAddr{QPN: 7, GID: gid(7)}, senderIP: a.ip4(), targetIP: a.ip4()}).append(nil)),
			func(s *Stats) *uint64 { return &s.DropForeign }},
	} {
		before := a.Stats()
		if got := receive(tt.b); got != nil {
			t.Errorf("%s: the host gets % x", tt.name, got)
		}
		want := before
		*tt.n(&want)++
		want.RxDatagrams++
		if got := a.Stats(); got != want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
	}
	own := frame(IPv4, packet(a.ip4(), allSystems, 60))
	if got := a.ReceiveDatagram(w.now, a.cfg.GID, a.cfg.QPN, own); got != nil {
		t.Errorf("its own packet to a group: % x", got)
	}
}

// Nothing is sent, and no group joined but that of broadcasts, before that is. IPOIB-011,
// IPOIB-019.
func TestJoinFirst(t *testing.T) {
	i := New(Config{QPN: 2, GID: gid(1), PKey: 0x8001, Scope: 5, LinkMTU: 2044,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")}})
	joins := func() (got []string) {
		for _, o := range i.Outputs() {
			if o.Kind != OutJoin {
				t.Errorf("%+v", o)
			}
			got = append(got, o.To.GID.Addr().String())
		}
		return got
	}
	now := time.Unix(1e9, 0)
	p := packet(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 60)
	if _, ok := i.Send(now, p); ok {
		t.Error("it sends")
	}
	if got := joins(); !slices.Equal(got, []string{"ff15:401b:8001::ffff:ffff"}) {
		t.Errorf("it joins %v", got)
	}
	i.Joined()
	i.Joined()
	// All have the P_Key and the scope of the broadcast group.
	want := []string{"ff15:401b:8001::1", "ff15:601b:8001::1", "ff15:601b:8001::1:ff00:1"}
	if got := joins(); !slices.Equal(got, want) {
		t.Errorf("it joins %v, want %v", got, want)
	}
	if s := i.Stats(); s.DropNotJoined != 1 {
		t.Errorf("%+v", s)
	}
}

// A neighbour that has begun anew has another queue pair: it is asked, and found again, and so is
// one that has told of itself. IPOIB-018.
func TestRevalidation(t *testing.T) {
	w := newWorld(t)
	off := func(c *Config) { c.Connected = false }
	a, b := w.add(1, off), w.add(2, off)
	p := packet(a.ip4(), b.ip4(), 100)
	a.sends(p)
	b.wantHost("at first", p)
	w.nodes = w.nodes[:1]
	anew := w.add(2, func(c *Config) { off(c); c.QPN = 0x777 })
	a.sends(p)
	anew.wantHost("the old queue pair is gone")
	w.pass(reachableTime)
	start := w.now
	for len(anew.host) == 0 && w.now.Sub(start) < time.Minute {
		a.sends(p)
		w.pass(time.Second)
	}
	if took := w.now.Sub(start); took > (maxSolicits+1)*retransTime {
		t.Errorf("it takes %v", took)
	}
	again := w.add(3, func(c *Config) { off(c); c.Addrs = anew.cfg.Addrs })
	w.nodes = []*node{a, again}
	again.sends(packet(again.ip4(), a.ip4(), 100)) // it asks for a
	w.run()
	a.sends(p)
	again.wantHost("who has asked has told where it is", p)
}

// Nobody answers: three questions, a second each, and the host is told. Peers that are not there
// cost nothing for long.
func TestUnresolved(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	for n := range maxWaiting + 5 {
		a.sends(packet(a.ip4(), netip.MustParseAddr("10.0.0.9"), 100+n))
	}
	a.sends(packet(a.ip6(), netip.MustParseAddr("fd00::9"), 1000))
	w.pass(10 * time.Second)
	if s := a.Stats(); s.Solicits != 6 || s.DropWaiting != 5 || s.DropUnresolved != maxWaiting+1 {
		t.Errorf("%+v", s)
	}
	if len(a.host) != maxWaiting+1 || len(a.neighbours) != 0 {
		t.Fatalf("%d ICMP errors, %d neighbours", len(a.host), len(a.neighbours))
	}
	for _, p := range a.host {
		h, ok := parseIP(p)
		body := h.body(p)
		switch {
		case !ok || h.src == h.dst:
			t.Errorf("% x", p)
		case h.typ == IPv4 && (sum(0, p[:20]) != 0 || sum(0, body) != 0 || body[0] != 3 || body[1] != 1):
			t.Errorf("% x", p)
		case h.typ == IPv6 && (sum(pseudo(h.src, h.dst, len(body)), body) != 0 || body[0] != 1 ||
			body[1] != 3):
			t.Errorf("% x", p)
		}
	}
}

// ND that is not of this link, that lies or that is cut is not heard.
func TestNDChecks(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	from := netip.MustParseAddr("fd00::7")
	target := a.ip6().As16()
	ns := func() []byte {
		return appendOption(append([]byte{neighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, target[:]...),
			sourceAddr, LinkAddr{QPN: 0x700, GID: gid(7)})
	}
	for name, p := range map[string][]byte{
		"from beyond the link": icmpv6(from, a.ip6(), 254, ns()),
		"cut":                  icmpv6(from, a.ip6(), 255, ns()[:20]),
		"without a target":     icmpv6(from, a.ip6(), 255, ns()[:8]),
	} {
		if got := a.ReceiveDatagram(w.now, gid(7), 0x700, frame(IPv6, p)); got != nil || a.Pending() {
			t.Errorf("%s: % x, %v", name, got, a.Outputs())
		}
	}
	spoilt := icmpv6(from, a.ip6(), 255, ns())
	spoilt[50]++
	a.ReceiveDatagram(w.now, gid(7), 0x700, frame(IPv6, spoilt))
	if s := a.Stats(); s.DropMalformed != 4 || a.Pending() {
		t.Errorf("%+v", s)
	}
	// Who looks whether an address is free is told that it is not, with all nodes.
	dad := icmpv6(netip.IPv6Unspecified(), solicitedNode(a.ip6()), 255, ns()[:24])
	a.ReceiveDatagram(w.now, gid(7), 0x700, frame(IPv6, dad))
	o := a.Outputs()
	if len(o) != 1 || o[0].To.GID != a.groupOf(allNodes) || o[0].Frame[48] != override {
		t.Errorf("%+v", o)
	}
}

// A neighbour's table is bounded: who was used longest ago goes.
func TestNeighbourBound(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	used := netip.MustParseAddr("10.0.0.2")
	a.learn(w.now, used, LinkAddr{QPN: 0x200, GID: gid(2)}, true)
	a.used(w.now, a.neighbours[used])
	for n := range maxNeighbours + 256 {
		ip := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		p := arpPacket{op: arpRequest, sender: LinkAddr{QPN: uint32(n + 2), GID: gid(7)}, senderIP: ip,
			targetIP: a.ip4()}
		a.ReceiveDatagram(w.now, gid(7), 0x700, frame(ARP, p.append(nil)))
		a.Outputs()
	}
	if n := len(a.neighbours); n != maxNeighbours || a.neighbours[used] == nil {
		t.Errorf("%d neighbours; who was used is %v", n, a.neighbours[used])
	}
	if len(a.peers) > maxNeighbours {
		t.Errorf("%d peers", len(a.peers))
	}
	w.pass(idleTime + 2*reachableTime)
	if len(a.neighbours) != 0 || len(a.peers) != 0 {
		t.Errorf("%d neighbours, %d peers are left", len(a.neighbours), len(a.peers))
	}
	if _, ok := a.Deadline(); ok {
		t.Error("there is something to wait for")
	}
}

// What waits is bounded in all, and so is what nobody takes.
func TestWaitingBound(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	p := packet(a.ip4(), netip.MustParseAddr("10.0.0.9"), 65520)
	for n := range 4096 {
		copy(p[16:], []byte{10, 0, byte(1 + n>>8), byte(n)})
		a.Send(w.now, p)
	}
	if a.kept > maxKept || a.kept < maxKept/2 || a.Stats().DropWaiting == 0 {
		t.Errorf("%d octets wait", a.kept)
	}
	if n := len(a.Outputs()); n > maxOutputs {
		t.Errorf("%d outputs", n)
	}
	for range 10 {
		w.now = w.now.Add(retransTime)
		a.Expire(w.now)
		a.Outputs()
	}
	if a.kept != 0 || len(a.neighbours) != 0 {
		t.Errorf("%d octets, %d neighbours are left", a.kept, len(a.neighbours))
	}
	b := w.add(9, func(c *Config) { c.Connected = false })
	a.sends(packet(a.ip4(), b.ip4(), 100))
	w.run()
	p = packet(a.ip4(), b.ip4(), 2045)
	p[6] |= 0x40 // not to be cut: each draws an error
	for range 2 * maxOutputs {
		a.Send(w.now, p)
	}
	if n := len(a.Outputs()); n == 0 || n > maxOutputs {
		t.Errorf("%d errors for the host wait", n)
	}
}

// A packet on its way costs no allocation.
func TestSendAllocates(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, func(c *Config) { c.Connected = false })
	p := packet(a.ip4(), b.ip4(), 1000)
	a.sends(p)
	w.run()
	f := frame(IPv4, packet(b.ip4(), a.ip4(), 1000))
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := a.Send(w.now, p); !ok {
			t.Error("it waits")
		}
		if a.ReceiveDatagram(w.now, b.cfg.GID, b.cfg.QPN, f) == nil {
			t.Error("it is dropped")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
