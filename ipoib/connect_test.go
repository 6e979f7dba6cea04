package ipoib

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// connects has a send to b until there is a connection.
func connects(t *testing.T, a, b *node) {
	t.Helper()
	p := packet(a.ip4(), b.ip4(), 60)
	a.sends(p)
	a.w.run()
	a.sends(p)
	a.w.run()
	b.host = nil
	if c := a.conn(b); c == nil || !c.Open() {
		t.Fatalf("there is no connection: %+v", c)
	}
}

// conn is what there is of a connection of n with m.
func (n *node) conn(m *node) *Conn {
	if x := n.peers[m.own.Bare()]; x != nil {
		return x.conn
	}
	return nil
}

// Two connected interfaces: packets longer than datagrams wait for the connection, and all that is
// unicast goes over it, groups and resolution never. IPOIB-023, IPOIB-024, IPOIB-025, IPOIB-037,
// IPOIB-041.
func TestConnected(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	p, q := packet(a.ip4(), b.ip4(), 65520), packet(b.ip6(), a.ip6(), 65520)
	a.sends(p)
	b.wantHost("over a new connection", p)
	if o := a.last(); o.Conn == nil || !bytes.Equal(o.Frame[:4], []byte{8, 0, 0, 0}) {
		t.Errorf("%+v: % x", o.Way, o.Frame[:4])
	}
	b.sends(q)
	a.wantHost("back, over the same one", q)
	if o := b.last(); o.Conn == nil || !bytes.Equal(o.Frame[:4], []byte{0x86, 0xdd, 0, 0}) {
		t.Errorf("%+v: % x", o.Way, o.Frame[:4])
	}
	if len(a.tries) != 1 || len(b.tries) != 1 || a.conn(b).MTU() != 65520 || b.conn(a).MTU() != 65520 {
		t.Errorf("%d and %d attempts", len(a.tries), len(b.tries))
	}
	for _, dst := range []string{"224.0.0.251", "10.0.0.255", "255.255.255.255", "224.0.0.1",
		"ff02::1"} {
		src, d := a.ip4(), netip.MustParseAddr(dst)
		if d.Is6() {
			src = a.ip6()
		}
		a.sends(packet(src, d, 100))
		if o := a.last(); o.Conn != nil || o.To.QPN != MaxQPN || o.To.GID != a.toAllOf(d) {
			t.Errorf("%s goes %+v", dst, o.Way)
		}
	}
	w.run()
	// ARP again, while the connection is there: question and answer are datagrams.
	w.pass(reachableTime)
	a.sends(packet(a.ip4(), b.ip4(), 60))
	w.run()
	for _, n := range []*node{a, b} {
		for _, o := range n.sent {
			if typ, _, _ := ParseHeader(o.Frame); typ == ARP && o.Conn != nil {
				t.Errorf("ARP over a connection: %+v", o)
			}
		}
	}
	if o := b.last(); o.Conn != nil || o.To.Bare() != a.own.Bare() ||
		!bytes.HasPrefix(o.Frame, []byte{8, 6}) {
		t.Errorf("the answer goes %+v: % x", o.Way, o.Frame)
	}
	// The same flow as a datagram is taken, too.
	a.host, b.host = nil, nil
	p = packet(a.ip4(), b.ip4(), 100)
	b.take()
	if got := b.ReceiveDatagram(w.now, a.cfg.GID, a.cfg.QPN, frame(IPv4, p)); !bytes.Equal(got, p) {
		t.Errorf("a datagram beside the connection: % x", got)
	}
}

func (n *node) toAllOf(ip netip.Addr) GID {
	to, _ := n.toAll(ip)
	return to.GID
}

// What has no place on a connection. IPOIB-023, IPOIB-037.
func TestNotConnected(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	connects(t, a, b)
	c := b.conn(a)
	arp := arpPacket{op: arpRequest, sender: a.own, senderIP: a.ip4(), targetIP: b.ip4()}
	target := b.ip6().As16()
	ns := icmpv6(a.ip6(), b.ip6(), 255, appendOption(append([]byte{neighborSolicitation, 0, 0, 0, 0,
		0, 0, 0}, target[:]...), sourceAddr, a.own))
	for name, f := range map[string][]byte{
		"ARP":       frame(ARP, arp.append(nil)),
		"ND":        frame(IPv6, ns),
		"multicast": frame(IPv4, packet(a.ip4(), allSystems, 60)),
		"broadcast": frame(IPv4, packet(a.ip4(), netip.MustParseAddr("10.0.0.255"), 60)),
	} {
		before := b.Stats().DropConnected
		if got := b.ReceiveConnected(w.now, c, f); got != nil || b.Pending() {
			t.Errorf("%s: % x, %v", name, got, b.Outputs())
		}
		if n := b.Stats().DropConnected - before; n != 1 {
			t.Errorf("%s: counted %d times", name, n)
		}
	}
	before := b.Stats()
	for _, f := range [][]byte{nil, {8, 0, 0}, frame(0x88cc, make([]byte, 60)),
		frame(IPv6, []byte{0x45})} {
		if got := b.ReceiveConnected(w.now, c, f); got != nil {
			t.Errorf("% x", got)
		}
	}
	if s := b.Stats(); s.DropMalformed != before.DropMalformed+3 ||
		s.DropUnknownType != before.DropUnknownType+1 {
		t.Errorf("%+v", s)
	}
}

// An interface without connections, and a peer that claims to take some: no request, and flags are
// 0.
// IPOIB-001, IPOIB-027.
func TestDatagramsOnly(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, func(c *Config) { c.Connected = false }), w.add(2, nil)
	p, q := packet(a.ip4(), b.ip4(), 1000), packet(b.ip4(), a.ip4(), 1000)
	a.sends(p)
	b.wantHost("to one that takes connections", p)
	b.sends(q)
	a.wantHost("from one that takes connections", q)
	if a.own.Flags != 0 || a.neighbours[b.ip4()].addr.Flags != 0 || len(a.tries)+len(b.tries) != 0 {
		t.Errorf("%+v, %+v", a.own, a.neighbours[b.ip4()])
	}
	if got := a.sent[0].Frame[4+8]; got != 0 {
		t.Errorf("flags %#x", got)
	}
	// Who asks all the same is refused.
	a.Requested(w.now, b.cfg.GID, Private{b.cfg.QPN, 65524}.Append(nil), &try{from: b})
	if a.outputs[0].Kind != OutReject {
		t.Errorf("%+v", a.outputs)
	}
}

// Ten addresses of one neighbour are one connection. IPOIB-028.
func TestOneConnection(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	b := w.add(2, func(c *Config) {
		for n := range byte(9) {
			c.Addrs = append(c.Addrs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, 100 + n}), 24))
		}
	})
	for _, p := range b.cfg.Addrs {
		if p.Addr().Is4() {
			for range 3 {
				a.sends(packet(a.ip4(), p.Addr(), 60))
				w.run()
			}
		}
	}
	if len(a.tries) != 1 || len(a.peers) != 1 || a.conns != 1 {
		t.Errorf("%d attempts, %d peers, %d connections", len(a.tries), len(a.peers), a.conns)
	}
	// A second one is refused. IPOIB-030.
	x := &try{from: a}
	b.Requested(w.now, a.cfg.GID, Private{a.cfg.QPN, 65524}.Append(nil), x)
	if o := b.Outputs(); len(o) != 1 || o[0].Kind != OutReject || b.conns != 1 {
		t.Errorf("%+v", o)
	}
}

// The MTU of a connection is the smaller Receive MTU less four, at both ends, and one too small for
// IPv6 leaves that to datagrams. IPOIB-031, IPOIB-038, IPOIB-039, IPOIB-040.
func TestConnectionMTU(t *testing.T) {
	for _, tt := range []struct{ a, b, want int }{
		{65520, 2044, 2044}, {2044, 65520, 2044}, {65520, 65520, 65520}, {9000, 4092, 4092},
		{65520, 596, 596},
	} {
		w := newWorld(t)
		a, b := w.add(1, func(c *Config) { c.MTU = tt.a }), w.add(2, func(c *Config) { c.MTU = tt.b })
		connects(t, a, b)
		if x, y := a.conn(b).MTU(), b.conn(a).MTU(); x != tt.want || y != tt.want {
			t.Errorf("%d and %d: %d and %d, want %d", tt.a, tt.b, x, y, tt.want)
		}
		if got := binary.BigEndian.Uint32(a.tries[0].request[4:]); got != uint32(tt.a+4) {
			t.Errorf("the REQ says %d", got)
		}
		six := packet(a.ip6(), b.ip6(), min(1280, tt.want))
		a.sends(six)
		w.run()
		b.host = nil
		a.sends(six)
		b.wantHost("IPv6", six)
		if o := a.last(); (o.Conn != nil) != (tt.want >= 1280) {
			t.Errorf("MTU %d: IPv6 goes %+v", tt.want, o.Way)
		}
		most := packet(a.ip4(), b.ip4(), max(tt.want, 2044))
		a.sends(most)
		b.wantHost("the longest", most)
		a.sends(packet(a.ip4(), b.ip4(), len(most)+1))
		w.run()
		if len(a.host) != 1 || binary.BigEndian.Uint16(a.host[0][26:]) != uint16(len(most)) {
			t.Errorf("MTU %d: the host is told %x", tt.want, a.host)
		}
	}
}

// The MTU is of each neighbour: who takes no connections gets what datagrams carry. IPOIB-042.
func TestNeighbourMTU(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	c := w.add(3, func(c *Config) { c.Connected = false })
	connects(t, a, b)
	for _, n := range []*node{b, c} {
		a.sends(packet(a.ip4(), n.ip4(), 9000))
		a.sends(packet(a.ip6(), n.ip6(), 9000))
		w.run()
	}
	if len(b.host) != 2 || len(c.host) != 0 || len(a.host) != 2 {
		t.Fatalf("%d, %d packets, and %d errors", len(b.host), len(c.host), len(a.host))
	}
	for _, p := range a.host {
		h, _ := parseIP(p)
		mtu := uint32(binary.BigEndian.Uint16(p[26:]))
		if h.typ == IPv6 {
			mtu = binary.BigEndian.Uint32(p[44:])
		}
		if h.src != c.ip4() && h.src != c.ip6() || mtu != 2044 {
			t.Errorf("about %v: %d", h.src, mtu)
		}
	}
	infos := a.Neighbours(w.now)
	if len(infos) != 4 || infos[0].MTU != 65520 || infos[0].Conn != "open" || infos[1].MTU != 2044 {
		t.Errorf("%+v", infos)
	}
	// What may be cut is: the pieces are the packet.
	p := packet(a.ip4(), c.ip4(), 9000)
	p[6] = 0
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], sum(0, p[:20]))
	a.sends(p)
	w.run()
	var body []byte
	for i, f := range c.host {
		h, ok := parseIP(f)
		off := int(binary.BigEndian.Uint16(f[6:])&0x1fff) * 8
		if !ok || len(f) > 2044 || sum(0, f[:20]) != 0 || off != len(body) ||
			(f[6]&0x20 != 0) != (i < len(c.host)-1) {
			t.Errorf("fragment %d: %d octets at %d, % x", i, len(f), off, f[:20])
		}
		body = append(body, h.body(f)...)
	}
	if !bytes.Equal(body, p[20:]) {
		t.Error("the pieces are not the packet")
	}
}

// Requests that cross: the one of the larger address comes to a connection, whoever hears first.
// IPOIB-033, IPOIB-034.
func TestCrossing(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    func(*Config) // has the larger address
	}{
		{"last octet of the GID", func(c *Config) { c.QPN = 0x100 }},
		{"QPN", func(c *Config) { c.QPN, c.GID = 0x200, gid(0) }},
	} {
		for _, order := range []string{"ab", "ba"} {
			w := newWorld(t)
			a, b := w.add(1, nil), w.add(2, tt.b)
			a.learn(w.now, b.ip4(), b.own, true)
			b.learn(w.now, a.ip4(), a.own, true)
			from := map[byte]*node{'a': a, 'b': b}
			for _, n := range []byte(order) {
				x, y := from[n], from['a'+'b'-n]
				x.sends(packet(x.ip4(), y.ip4(), 5000))
				x.take() // the request is on its way, and has not arrived
			}
			w.run()
			if a.conn(b) == nil || !a.conn(b).Open() || !b.conn(a).Open() || a.conns != 1 || b.conns != 1 {
				t.Fatalf("%s, %s: %d and %d connections", tt.name, order, a.conns, b.conns)
			}
			if x := a.conn(b).Owner.(*try); x.from != b || b.conn(a).Owner != x {
				t.Errorf("%s, %s: it is not the one of the larger address", tt.name, order)
			}
			var rejected int
			for _, x := range a.tries {
				if x.rejected {
					rejected++
				}
			}
			if rejected != 1 {
				t.Errorf("%s, %s: %d rejected", tt.name, order, rejected)
			}
			if len(a.host) != 1 || len(b.host) != 1 {
				t.Errorf("%s, %s: what waited has not come: %d, %d", tt.name, order, len(a.host), len(b.host))
			}
			if a.Stats().Failures+b.Stats().Failures > 1 || a.peers[b.own.Bare()].failed != 0 {
				t.Errorf("%s, %s: giving way counts as a failure: %+v", tt.name, order, a.Stats())
			}
		}
	}
}

// A refusal of a larger address's comes before its own request: what waits goes on waiting, for a
// second; if no request comes it goes as it can. IPOIB-033.
func TestRefusedFirst(t *testing.T) {
	for _, comes := range []bool{false, true} {
		w := newWorld(t)
		a := w.add(1, nil)
		large := LinkAddr{Flags: FlagRC, QPN: 0x900, GID: gid(9)}
		ip := netip.MustParseAddr("10.0.0.9")
		a.learn(w.now, ip, large, true)
		a.Send(w.now, packet(a.ip4(), ip, 5000))
		c := a.Outputs()[0].Conn
		a.Refused(w.now, c)
		a.Refused(w.now, c) // it is over already
		if a.Pending() || a.conns != 0 {
			t.Fatalf("%+v", a.Outputs())
		}
		if _, ok := a.Send(w.now, packet(a.ip4(), ip, 4000)); ok || a.Pending() {
			t.Errorf("a packet does not wait: %+v", a.Outputs())
		}
		if comes {
			theirs := a.Requested(w.now, large.GID, Private{large.QPN, 65524}.Append(nil), nil)
			a.Outputs()
			a.Established(w.now, theirs)
			w.now = w.now.Add(time.Hour)
			if o := a.Outputs(); len(o) != 2 || o[0].Conn != theirs || a.Stats().Failures != 0 {
				t.Errorf("%+v, %+v", o, a.Stats())
			}
			continue
		}
		at, ok := a.Deadline()
		if !ok || at.Sub(w.now) != time.Second {
			t.Fatalf("%v, %v", at.Sub(w.now), ok)
		}
		a.Expire(at)
		o := a.Outputs()
		if len(o) != 2 || o[0].Kind != OutDeliver || o[1].Kind != OutDeliver || a.Stats().Failures != 1 ||
			a.peers[large.Bare()].failed != 1 {
			t.Errorf("%+v, %+v", o, a.Stats())
		}
		if _, ok := a.Send(at, packet(a.ip4(), ip, 60)); !ok || a.Pending() {
			t.Error("it asks again at once")
		}
		if a.Send(at.Add(2*time.Second), packet(a.ip4(), ip, 60)); len(a.Outputs()) != 1 {
			t.Error("it never asks again")
		}
	}
}

// A peer that has the smaller address, and takes a request of ours all the same when its own was
// taken: its answer is refused, and there is one connection.
func TestCrossingLies(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	liar := LinkAddr{Flags: FlagRC, QPN: 0x900, GID: gid(9)}
	ip := netip.MustParseAddr("10.0.0.9")
	a.learn(w.now, ip, liar, true)
	a.Send(w.now, packet(a.ip4(), ip, 60))
	ours := a.Outputs()[0].Conn
	theirs := a.Requested(w.now, liar.GID, Private{liar.QPN, 65524}.Append(nil), nil)
	if o := a.Outputs(); len(o) != 1 || o[0].Kind != OutAccept {
		t.Fatalf("%+v", o)
	}
	a.Replied(w.now, ours, Private{liar.QPN, 65524}.Append(nil))
	if o := a.Outputs(); len(o) != 1 || o[0].Kind != OutReject || o[0].Conn != ours {
		t.Fatalf("%+v", o)
	}
	a.Established(w.now, theirs)
	a.Established(w.now, ours)
	if a.conns != 1 || !theirs.Open() || ours.Open() {
		t.Errorf("%d connections", a.conns)
	}
}

// Who has many addresses of one network, such as that of link-local ones, and gets no connection
// ready, shuts nobody out, not even of that network: what has been half open for longest gives way,
// and that of other networks only where there is no room in all. IPOIB-044.
func TestHalfOpen(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	var over []*Conn
	asks := func(g GID) *Conn {
		t.Helper()
		over = nil
		c := a.Requested(w.now, g, Private{0x900, 65524}.Append(nil), nil)
		for _, o := range a.Outputs() {
			switch {
			case o.Kind == OutClose:
				over = append(over, o.Conn)
			case o.Kind != OutAccept || o.Conn != c:
				t.Fatalf("%v: %+v", g.Addr(), o)
			}
		}
		return c
	}
	local := func(n int) GID {
		return GID{0: 0xfe, 1: 0x80, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	}
	other := asks(netip.MustParseAddr("10.9.9.9").As16())
	var all []*Conn
	for n := range maxHalfOpen {
		all = append(all, asks(local(0x100+n)))
	}
	a.Established(w.now, all[0])
	all = append(all, asks(local(1)))
	if over != nil {
		t.Error("one that is ready has a place, too")
	}
	honest := asks(local(2))
	if len(over) != 1 || over[0] != all[1] {
		t.Errorf("%d give way, and not the oldest that is half open", len(over))
	}
	for n := range maxHalfOpen - 1 {
		asks(local(0x10000 + n))
	}
	a.Established(w.now, honest)
	if !honest.Open() || !all[0].Open() || other.state != connAccepting {
		t.Error("an honest peer, one that was ready, or one of another network has no connection")
	}
	// So many are half open in all, of whatever networks.
	network := func(n int) GID { return GID{0: 0xfd, 6: byte(n >> 8), 7: byte(n), 15: 1} }
	for n := range maxHalfOpenInAll {
		asks(network(n))
	}
	if other.state != connOver || !honest.Open() || !all[0].Open() ||
		a.conns != maxHalfOpenInAll+2 || len(a.peers) != a.conns {
		t.Errorf("%d connections, %d peers", a.conns, len(a.peers))
	}
	// Where there is no room for connections, what is half open makes some, for what this end asks
	// for as well.
	for n := 0; a.conns < maxConns; n++ {
		a.Established(w.now, asks(network(0x1000+n)))
	}
	asks(network(0x800))
	if len(over) != 1 || a.conns != maxConns {
		t.Errorf("%d give way; %d connections", len(over), a.conns)
	}
	ip := netip.MustParseAddr("10.0.0.9")
	a.learn(w.now, ip, LinkAddr{Flags: FlagRC, QPN: 0x900, GID: gid(9)}, true)
	a.Send(w.now, packet(a.ip4(), ip, 60))
	if o := a.Outputs(); len(o) != 2 || o[0].Kind != OutClose || o[1].Kind != OutConnect {
		t.Errorf("%+v", o)
	}
}

// Answers that are not the peer's, or say nothing. A rejection without private data is one.
// IPOIB-031, IPOIB-044.
func TestFalseAnswers(t *testing.T) {
	for name, private := range map[string][]byte{
		"none":           nil,
		"short":          make([]byte, 7),
		"another QPN":    Private{0x901, 65524}.Append(nil),
		"no Receive MTU": Private{0x900, 0}.Append(nil),
	} {
		w := newWorld(t)
		a := w.add(1, nil)
		ip := netip.MustParseAddr("10.0.0.9")
		a.learn(w.now, ip, LinkAddr{Flags: FlagRC, QPN: 0x900, GID: gid(9)}, true)
		a.Send(w.now, packet(a.ip4(), ip, 60))
		c := a.Outputs()[0].Conn
		a.Replied(w.now, c, private)
		if o := a.Outputs(); len(o) != 1 || o[0].Kind != OutReject || a.conns != 0 {
			t.Errorf("%s: %+v, %d connections", name, o, a.conns)
		}
		a.Ended(w.now, c) // it is over already
		if way, ok := a.Send(w.now, packet(a.ip4(), ip, 60)); !ok || way.Conn != nil || a.Pending() {
			t.Errorf("%s: it goes on as %+v", name, way)
		}
	}
	w := newWorld(t)
	a := w.add(1, nil)
	for name, private := range map[string][]byte{
		"none": nil, "small MTU": Private{0x900, 71}.Append(nil), "no QPN": Private{0, 65524}.Append(nil),
		"ours": Private{a.cfg.QPN, 65524}.Append(nil),
	} {
		from := gid(9)
		if name == "ours" {
			from = a.cfg.GID
		}
		a.Requested(w.now, from, private, nil)
		if o := a.Outputs(); len(o) != 1 || o[0].Kind != OutReject || len(a.peers) != 0 {
			t.Errorf("a request with %s: %+v", name, o)
		}
	}
}

// False flags cost some requests, further and further apart, and then datagrams go. IPOIB-044.
func TestFalseFlags(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	b := w.add(2, func(c *Config) { c.Connected = false })
	b.own.Flags = FlagRC // it is not true
	p := packet(a.ip4(), b.ip4(), 1000)
	var at []time.Duration
	begin := w.now
	for range 3600 {
		before := len(a.tries)
		a.sends(p)
		w.run()
		if len(a.tries) > before {
			at = append(at, w.now.Sub(begin))
		}
		w.pass(time.Second)
	}
	if len(at) != maxAttempts {
		t.Fatalf("%d requests: %v", len(at), at)
	}
	for i := 2; i < len(at); i++ {
		if at[i]-at[i-1] < 2*(at[i-1]-at[i-2]) {
			t.Errorf("no longer pauses: %v", at)
		}
	}
	if len(b.host) != 3600 {
		t.Errorf("%d of 3600 packets have come", len(b.host))
	}
	// A long packet waits only while there may be a connection.
	a.sends(packet(a.ip4(), b.ip4(), 3000))
	if len(a.peers[b.own.Bare()].waiting) != 0 || a.Stats().DropTooBig != 1 {
		t.Errorf("%+v", a.Stats())
	}
}

// A connection that is lost is made again, and what goes meanwhile goes as datagrams. IPOIB-036,
// IPOIB-041.
func TestReconnect(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	connects(t, a, b)
	x := a.conn(b).Owner.(*try)
	a.Ended(w.now, x.a)
	b.Ended(w.now, x.p)
	p := packet(a.ip4(), b.ip4(), 1000)
	a.sends(p)
	b.wantHost("as a datagram", p)
	if o := a.last(); o.Conn != nil {
		t.Errorf("%+v", o.Way)
	}
	w.pass(2 * time.Second)
	a.sends(p)
	w.run()
	if len(a.tries) != 2 || !a.conn(b).Open() {
		t.Errorf("%d attempts", len(a.tries))
	}
	// The neighbour is gone: so is the connection.
	w.cut = true
	for range 2 {
		w.pass(reachableTime)
		a.sends(p)
	}
	w.pass(10 * time.Second)
	if a.conns != 0 || len(a.peers) != 0 || a.conn(b) != nil {
		t.Errorf("%d connections, %d peers", a.conns, len(a.peers))
	}
	w.cut = false
	w.run()
	b.Close()
	w.run()
	if b.conns != 0 || len(b.peers) != 0 || len(b.groups) != 0 {
		t.Errorf("closed, with %d connections, %d peers, groups %v", b.conns, len(b.peers), b.groups)
	}
}

// An interface that ends ends its connections. IPOIB-036.
func TestClose(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	connects(t, a, b)
	a.Close()
	w.run()
	if a.conns+b.conns != 0 || len(a.groups) != 0 || b.conn(a) != nil {
		t.Errorf("%d and %d connections; groups %v", a.conns, b.conns, a.groups)
	}
	if _, ok := a.Send(w.now, packet(a.ip4(), b.ip4(), 60)); ok {
		t.Error("it sends")
	}
}

// Data come before the word that the peer is ready, and say so.
func TestEarlyData(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	c := a.Requested(w.now, gid(9), Private{0x900, 65524}.Append(nil), nil)
	p := packet(netip.MustParseAddr("10.0.0.9"), a.ip4(), 3000)
	if got := a.ReceiveConnected(w.now, c, frame(IPv4, p)); !bytes.Equal(got, p) || !c.Open() {
		t.Errorf("% x, %v", got, c.Open())
	}
}

// Connections are bounded, in all and of one port.
func TestConnectionBound(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	for port := range 100 {
		for n := range 2 * maxConnsOfGID {
			g := GID{0: 0xfe, 1: 0x80, 14: byte(port), 15: 9}
			c := a.Requested(w.now, g, Private{uint32(0x900 + n), 65524}.Append(nil), nil)
			a.Outputs()
			a.Established(w.now, c)
		}
		if want := min((port+1)*maxConnsOfGID, maxConns); a.conns != want {
			t.Fatalf("%d ports: %d connections, want %d", port+1, a.conns, want)
		}
	}
}
