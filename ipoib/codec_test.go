package ipoib

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Groups of RFC 4391, section 4: those of its text, and the broadcast-GID. IPOIB-007, IPOIB-008.
func TestGroups(t *testing.T) {
	for _, tt := range []struct {
		ip    string
		pkey  uint16
		scope uint8
		want  string
	}{
		{"224.0.0.2", 0x8000, 2, "ff12:401b:8000::2"},
		{"ff02::2", 0x8000, 2, "ff12:601b:8000::2"},
		{"255.255.255.255", 0xffff, 2, "ff12:401b:ffff::ffff:ffff"},
		{"239.255.255.250", 0xffff, 2, "ff12:401b:ffff::fff:fffa"},
		{"232.1.2.3", 0x8001, 5, "ff15:401b:8001::801:203"},
		{"ff0e:1:2:3:4:5:6:7", 0xffff, 0xe, "ff1e:601b:ffff:3:4:5:6:7"},
		{"ff02::1:ff00:1", 0xffff, 2, "ff12:601b:ffff::1:ff00:1"},
	} {
		if got := GroupOf(netip.MustParseAddr(tt.ip), tt.pkey, tt.scope).Addr().String(); got != tt.want {
			t.Errorf("%s with P_Key %#x, scope %d: %s, want %s", tt.ip, tt.pkey, tt.scope, got, tt.want)
		}
	}
}

// The interface identifier of a plain EUI-64, and of a modified one. IPOIB-017.
func TestInterfaceID(t *testing.T) {
	for _, tt := range []struct {
		guid     uint64
		modified bool
		want     string
	}{
		{0x0002c90300001e79, false, "fe80::202:c903:0:1e79"},
		{0x0202c90300001e79, true, "fe80::202:c903:0:1e79"},
	} {
		if got := LinkLocal(InterfaceID(tt.guid, tt.modified)).String(); got != tt.want {
			t.Errorf("%#x: %s, want %s", tt.guid, got, tt.want)
		}
	}
}

const (
	linkA = "80 000100 fe80000000000000 0200000000000001"
	linkB = "80 000200 fe80000000000000 0200000000000002"
	none  = "00 000000 0000000000000000 0000000000000000"
)

// The link-layer address, and its flags: what is reserved is 0 and not looked at. IPOIB-012,
// IPOIB-026.
func TestLinkAddr(t *testing.T) {
	a := LinkAddr{Flags: FlagRC, QPN: 0x100, GID: gid(1)}
	if got := a.Append(nil); !bytes.Equal(got, unhex(t, linkA)) {
		t.Errorf("% x, want %s", got, linkA)
	}
	for flags, want := range map[byte]uint8{0xbf: FlagRC, 0x80: FlagRC, 0x7f: FlagUC, 0x3f: 0,
		0xff: FlagRC | FlagUC} {
		b := unhex(t, linkA)
		b[0] = flags
		if got, ok := ParseLinkAddr(b); !ok || got.Flags != want || got.Bare() != a.Bare() {
			t.Errorf("flags %#x: %+v, %v, want flags %#x", flags, got, ok, want)
		}
	}
	for _, bad := range []string{linkA[:len(linkA)-2], none,
		strings.Replace(linkA, "000100", "000001", 1),
		strings.Replace(linkA, "000100", "ffffff", 1), strings.Replace(linkA, "fe80", "ff12", 1)} {
		if a, ok := ParseLinkAddr(unhex(t, bad)); ok {
			t.Errorf("%s is %+v", bad, a)
		}
	}
}

// The order of addresses: from the first octet on, without flags. IPOIB-034.
func TestCompare(t *testing.T) {
	a := LinkAddr{QPN: 0x100, GID: gid(1)}
	for _, tt := range []struct {
		name string
		b    LinkAddr
		want int
	}{
		{"flags only", LinkAddr{Flags: 0xff, QPN: 0x100, GID: gid(1)}, 0},
		{"last octet", LinkAddr{QPN: 0x100, GID: gid(2)}, -1},
		{"QPN before GID", LinkAddr{QPN: 0xff, GID: gid(2)}, 1},
		{"QPN's first octet", LinkAddr{QPN: 0x10000, GID: gid(0)}, -1},
		{"GID's first octet", LinkAddr{QPN: 0x100, GID: GID{0: 0x20}}, 1},
	} {
		if got := a.Compare(tt.b); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
		if got := tt.b.Compare(a); got != -tt.want {
			t.Errorf("%s, the other way: %d, want %d", tt.name, got, -tt.want)
		}
	}
}

// Service ID and private data. IPOIB-029, IPOIB-032.
func TestService(t *testing.T) {
	if got := ServiceID(0xabcdef); got != 0x0100000000abcdef {
		t.Errorf("service %#016x", got)
	}
	want := unhex(t, "00 abcdef 0000fff4")
	if got := (Private{QPN: 0xabcdef, MTU: 65524}).Append(nil); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	want[0] = 0xff // reserved
	p, ok := ParsePrivate(append(want, make([]byte, 84)...))
	if !ok || p != (Private{0xabcdef, 65524}) {
		t.Errorf("%+v, %v", p, ok)
	}
	if _, ok := ParsePrivate(want[:7]); ok {
		t.Error("seven octets are private data")
	}
}

// The private data of streams: those of RFC 4755 first, unchanged. IPOIB-029, IPOIB-031, IPOIB-032.
func TestStreamPrivate(t *testing.T) {
	want := unhex(t, "00 abcdef 0000fff4  01 00 0000 00 123456  fe800000000000000200000000000009"+
		"001c 0000")
	p := StreamPrivate{Private: Private{QPN: 0xabcdef, MTU: 65524}, Service: ServiceID(0x123456),
		GID: gid(9), Reason: ReasonConsumer}
	if got := p.Append(nil); !bytes.Equal(got, want) || len(got) != StreamPrivateLen {
		t.Errorf("% x, want % x", got, want)
	}
	want[0], want[34], want[35] = 0xff, 0xff, 0xff // reserved
	if got, ok := ParseStreamPrivate(append(want, 1, 2, 3)); !ok || got != p {
		t.Errorf("%+v, %v", got, ok)
	}
	if _, ok := ParseStreamPrivate(want[:35]); ok {
		t.Error("35 octets are private data")
	}
}

// An ARP request and its reply, octet by octet, in their frames. IPOIB-002, IPOIB-015, IPOIB-025.
func TestARPGolden(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	a.sends(packet(a.ip4(), b.ip4(), 100))
	w.run()
	want := unhex(t, "0806 0000 0020 0800 14 04 0001"+linkA+"0a000001"+none+"0a000002")
	if o := a.sent[0]; !bytes.Equal(o.Frame, want) || o.To != a.broadcast || len(want) != 4+56 {
		t.Errorf("to %v:\n% x, want\n% x", o.To, o.Frame, want)
	}
	want = unhex(t, "0806 0000 0020 0800 14 04 0002"+linkB+"0a000002"+linkA+"0a000001")
	if o := b.sent[0]; !bytes.Equal(o.Frame, want) || o.To.Bare() != a.own.Bare() || o.Conn != nil {
		t.Errorf("to %v:\n% x, want\n% x", o.To, o.Frame, want)
	}
}

// The messages of ND with their options: two zero octets, then the address. IPOIB-016.
func TestNDGolden(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, nil), w.add(2, nil)
	a.sends(packet(a.ip6(), b.ip6(), 100))
	w.run()
	ns := a.sent[0]
	want := unhex(t, "fd000000000000000000000000000002 01 03 0000"+linkA)
	if got := ns.Frame[4+40+8:]; !bytes.Equal(got, want) || ns.Frame[44] != neighborSolicitation {
		t.Errorf("NS\n% x, want\n% x", got, want)
	}
	if g := ns.To.GID.Addr().String(); g != "ff12:601b:ffff::1:ff00:2" || ns.To.QPN != MaxQPN {
		t.Errorf("NS goes to %s", g)
	}
	na := b.sent[0]
	want = unhex(t, "fd000000000000000000000000000002 02 03 0000"+linkB)
	if got := na.Frame[4+40+8:]; !bytes.Equal(got, want) || na.Frame[44] != neighborAdvertisement ||
		na.Frame[48] != solicited|override || na.To.Bare() != a.own.Bare() {
		t.Errorf("NA\n% x, want\n% x", got, want)
	}
	for _, m := range []struct {
		name string
		head []byte
	}{
		{"RS", []byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0}},
		{"RA", append([]byte{routerAdvertisement, 0, 0, 0, 64, 0, 0, 30}, make([]byte, 8)...)},
	} {
		// A router says how it is reached, and who listens needs not ask.
		other := w.add(byte(3+len(m.head)), nil)
		other.sends(packet(other.ip4(), a.ip4(), 100))
		router := netip.MustParseAddr("fe80::9")
		a.neighbours[router] = &neighbour{ip: router}
		msg := icmpv6(router, allNodes, 255,
			appendOption(slices.Clone(m.head), sourceAddr, LinkAddr{Flags: FlagRC, QPN: 0x900, GID: gid(9)}))
		if p := a.ReceiveDatagram(w.now, gid(9), 0x900, frame(IPv6, msg)); !bytes.Equal(p, msg) {
			t.Errorf("%s: the host gets % x", m.name, p)
		}
		if n := a.neighbours[router]; !n.known() || n.addr.QPN != 0x900 {
			t.Errorf("%s: the router is %+v", m.name, n.addr)
		}
		if !bytes.Contains(msg, unhex(t, "01 03 0000 80 000900 fe80000000000000 0200000000000009")) {
			t.Errorf("%s: % x", m.name, msg)
		}
		a.forget(a.neighbours[router])
		w.run()
	}
}
