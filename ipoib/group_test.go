package ipoib

import (
	"net/netip"
	"testing"
)

// The host's reports of IGMP and MLD, of each version, have the interface join and leave.
// IPOIB-021.
func TestHostGroups(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, nil)
	g4, g6 := netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff05::1:3")
	igmp := func(msg ...byte) {
		b := packet(a.ip4(), netip.MustParseAddr("224.0.0.22"), 20)
		b = append(b, msg...)
		b[3], b[9] = byte(len(b)), protoIGMP
		a.sends(b)
		w.run()
	}
	mld := func(msg ...byte) {
		all := netip.MustParseAddr("ff02::16")
		b := icmpv6(a.ip6(), all, 1, msg)
		// The router alert that MLD has goes in between (RFC 2710, section 3).
		b = append(b[:40:40], append([]byte{protoICMPv6, 0, 5, 2, 0, 0, 1, 0}, b[40:]...)...)
		b[5], b[6] = byte(len(b)-40), 0
		a.sends(b)
		w.run()
	}
	four, six := g4.As4(), g6.As16()
	cat := func(head []byte, addr ...byte) []byte { return append(head, addr...) }
	for _, tt := range []struct {
		name      string
		ip        netip.Addr
		in, leave func()
	}{
		{"IGMPv1 and 2", g4, func() { igmp(cat([]byte{igmpReport1, 0, 0, 0}, four[:]...)...) },
			func() { igmp(cat([]byte{igmpLeave, 0, 0, 0}, four[:]...)...) }},
		{"IGMPv2", g4, func() { igmp(cat([]byte{igmpReport2, 0, 0, 0}, four[:]...)...) },
			func() { igmp(cat([]byte{igmpLeave, 0, 0, 0}, four[:]...)...) }},
		{"IGMPv3", g4,
			func() { igmp(cat([]byte{igmpReport3, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0}, four[:]...)...) },
			func() { igmp(cat([]byte{igmpReport3, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0}, four[:]...)...) }},
		{"MLDv1", g6, func() { mld(cat([]byte{mldReport1, 0, 0, 0, 0, 0, 0, 0}, six[:]...)...) },
			func() { mld(cat([]byte{mldDone, 0, 0, 0, 0, 0, 0, 0}, six[:]...)...) }},
		{"MLDv2", g6,
			func() { mld(cat([]byte{mldReport2, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0}, six[:]...)...) },
			func() { mld(cat([]byte{mldReport2, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0}, six[:]...)...) }},
	} {
		id := a.groupOf(tt.ip)
		for range 2 { // a report that comes again changes nothing
			tt.in()
			if !a.Interface.groups.host[tt.ip] || !a.groups[id] {
				t.Errorf("%s: %v is not joined", tt.name, tt.ip)
			}
		}
		tt.leave()
		if a.Interface.groups.host[tt.ip] || a.groups[id] {
			t.Errorf("%s: %v is not left", tt.name, tt.ip)
		}
	}
	// Records that are longer than the message, and groups that each node is in.
	igmp(igmpReport3, 0, 0, 0, 0, 0, 0xff, 0xff, 4, 0xff, 0xff, 0xff, 239, 1, 1, 1)
	igmp(igmpLeave, 0, 0, 0, 224, 0, 0, 1)
	igmp(igmpReport2, 0, 0, 0, 10, 0, 0, 1)
	if !a.groups[a.groupOf(allSystems)] || len(a.Interface.groups.host) != 1 {
		t.Errorf("%v", a.Interface.groups.host)
	}
	for n := range 2 * maxHostGroups {
		igmp(igmpReport2, 0, 0, 0, 239, 9, byte(n>>8), byte(n))
	}
	if n := len(a.Interface.groups.host); n != maxHostGroups {
		t.Errorf("%d groups of the host", n)
	}
}

// Who is in a group gets what is sent there, and nobody else. Two addresses of one group are left
// when both are. IPOIB-020.
func TestGroupTraffic(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.add(1, nil), w.add(2, nil), w.add(3, nil)
	x, y := netip.MustParseAddr("ff02::1:3"), netip.MustParseAddr("ff05::1:3")
	b.told(x, true)
	b.told(y, true)
	w.run()
	p := packet(a.ip6(), y, 1280)
	a.sends(p)
	b.wantHost("who is in the group", p)
	c.wantHost("who is not")
	b.told(x, false)
	w.run()
	a.sends(p)
	b.wantHost("one address is left", p)
	b.told(y, false)
	w.run()
	a.sends(p)
	b.wantHost("none is left")
	all := packet(a.ip4(), netip.MustParseAddr("10.0.0.255"), 100)
	a.sends(all)
	b.wantHost("a broadcast", all)
	c.wantHost("a broadcast", all)
	a.sends(packet(a.ip6(), y, 2045))
	if a.Stats().DropTooBig != 1 || a.Pending() {
		t.Errorf("%+v", a.Stats())
	}
}
