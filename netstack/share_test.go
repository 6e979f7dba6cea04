package netstack_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/udp"
)

// A shared is a stack that is one station with a kernel in memory, and a port that leads to others.
type shared struct {
	*testing.T
	st           *netstack.Stack
	kernel, wire *porttest.Port
	v4, v6       netip.Addr // of the station
}

func newShared(t *testing.T) *shared {
	sw := ethswitch.New(ethswitch.Config{})
	st := netstacktest.NewStack(t, sw, 1, 1500)
	s := &shared{T: t, st: st, v4: st.Addrs()[0].Addr(), v6: st.Addrs()[1].Addr()}
	s.kernel = porttest.NewPortBeside(t, sw, "kernel", st.Name(), true)
	s.wire = porttest.NewPort(t, sw, "wire", true)
	return s
}

// packet is an IP packet with a transport header of its own, whose checksums nobody looks at.
func packet(protocol byte, src, dst netip.Addr, transport []byte) []byte {
	if src.Is4() {
		b := make([]byte, 20, 20+len(transport))
		b[0], b[8], b[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(transport)))
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(b[10:], frametest.InetChecksum(b))
		return append(b, transport...)
	}
	b := make([]byte, 40, 40+len(transport))
	b[0], b[6], b[7] = 0x60, protocol, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(transport)))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return append(b, transport...)
}

// fragment makes b, a packet of IPv4, a fragment.
func fragment(b []byte, offset uint16, more bool) []byte {
	b = slices.Clone(b)
	if offset /= 8; more {
		offset |= 0x2000
	}
	binary.BigEndian.PutUint16(b[6:], offset)
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], frametest.InetChecksum(b[:20]))
	return b
}

// fragment6 is a fragment of IPv6.
func fragment6(protocol byte, src, dst netip.Addr, offset uint16, more bool, b []byte) []byte {
	h := []byte{protocol, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 1}
	if more {
		h[3] |= 1
	}
	return packet(44, src, dst, append(h, b...))
}

// ports is a transport header that begins with them.
func ports(src, dst uint16) []byte {
	b := make([]byte, 24)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	b[12], b[13] = 5<<4, 2 // of TCP: its length, and SYN
	return b
}

// arp is a request, or an answer.
func arp(operation uint16, sender, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, byte(operation), 2, 0, 0, 0, 0, 9}
	b = append(append(b, sender.AsSlice()...), make([]byte, 6)...)
	return append(b, target.AsSlice()...)
}

// icmp is a message of a type, and what is behind its first 8 octets.
func icmp(kind byte, rest []byte) []byte {
	return append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, rest...)
}

// came sends a frame from the wire to a MAC and says who got it.
func (s *shared) came(dst frame.MAC, etherType uint16, b []byte) (stack, kernel bool) {
	s.Helper()
	octets := append(append([]byte(nil), dst[:]...), 2, 0, 0, 0, 0, 9)
	octets = append(binary.BigEndian.AppendUint16(octets, etherType), b...)
	before := s.st.PortStats()
	if err := s.wire.Send(octets, frame.Offload{Csum: frame.CsumValid}); err != nil {
		s.Fatal(err)
	}
	after := s.st.PortStats()
	kernel = len(s.kernel.Frames) > 0
	for len(s.kernel.Frames) > 0 {
		<-s.kernel.Frames
	}
	return after.TxFrames+after.TxDrops > before.TxFrames+before.TxDrops, kernel
}

// nobody takes the packets of a socket.
type nobody struct{}

func (nobody) Receive(udp.Packet) {}

// A station that a stack and a kernel share: the stack has what is for its own connections,
// listeners and sockets, with the ICMP errors about them, and the questions for its addresses on
// the link, once; the kernel has all else.
func TestDivide(t *testing.T) {
	s := newShared(t)
	const tcp, udpProto, sctp, icmp4, icmp6, gre = 6, 17, 132, 1, 58, 47
	const listening, roce = 7174, 4791
	for _, a := range []netip.Addr{s.v4, s.v6} {
		l, err := s.st.TCP().Listen(netip.AddrPortFrom(a, listening), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	sock, err := s.st.UDP().Open(roce, []netip.Addr{s.v4, s.v6}, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	// A connection that nobody answers: its port is known by the SYN.
	ctx, cancel := context.WithCancel(t.Context())
	dialled := make(chan struct{})
	go func() {
		defer close(dialled)
		_, _ = s.st.TCP().DialFrom(ctx, netip.AddrPortFrom(s.v4, 40000),
			netip.MustParseAddrPort("10.77.0.9:5000"))
	}()
	defer func() { cancel(); <-dialled }()
	for f := range s.wire.Frames {
		if f.Octets[12] == 8 && f.Octets[13] == 6 {
			break // it has begun: the stack asks for the peer
		}
	}
	peer4, peer6 := netip.MustParseAddr("10.77.0.9"), netip.MustParseAddr("fd77::9")
	other4, other6 := netip.MustParseAddr("10.77.0.50"), netip.MustParseAddr("fd77::50")
	all4, all6 := netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("ff02::1")
	local6 := netip.MustParseAddr("fe80::1") // not what the MAC makes
	mac := s.st.MAC()
	about := func(b []byte) []byte { return icmp(3, b) }
	about6 := func(b []byte) []byte { return icmp(1, b) }
	asks := func(a netip.Addr) []byte { return icmp(135, a.AsSlice()) }
	solicited := netip.MustParseAddr("ff02::1:ff00:1")
	toKernel, toStack, toBoth := [2]bool{false, true}, [2]bool{true, false}, [2]bool{true, true}
	for _, tt := range []struct {
		name string
		dst  frame.MAC
		b    []byte
		want [2]bool
	}{
		{"TCP, listener", mac, packet(tcp, peer4, s.v4, ports(5000, listening)), toStack},
		{"TCP, IPv6 listener", mac, packet(tcp, peer6, s.v6, ports(5000, listening)), toStack},
		{"TCP, the kernel's port", mac, packet(tcp, peer4, s.v4, ports(5000, 22)), toKernel},
		{"TCP, connection", mac, packet(tcp, peer4, s.v4, ports(5000, 40000)), toStack},
		{"TCP, another peer", mac, packet(tcp, peer4, s.v4, ports(5001, 40000)), toKernel},
		{"TCP, another address", mac, packet(tcp, peer4, other4, ports(5000, listening)), toKernel},
		{"TCP without ports", mac, packet(tcp, peer4, s.v4, []byte{1}), toKernel},
		{"RoCE", mac, packet(udpProto, peer4, s.v4, ports(50000, roce)), toStack},
		{"RoCE over IPv6", mac, packet(udpProto, peer6, s.v6, ports(50000, roce)), toStack},
		{"UDP", mac, packet(udpProto, peer4, s.v4, ports(roce, 53)), toKernel},
		{"SCTP", mac, packet(sctp, peer4, s.v4, ports(5000, 5000)), toKernel},
		{"another protocol", mac, packet(gre, peer4, s.v4, make([]byte, 24)), toKernel},
		{"ping", mac, packet(icmp4, peer4, s.v4, icmp(8, nil)), toKernel},
		{"ping over IPv6", mac, packet(icmp6, peer6, s.v6, icmp(128, nil)), toKernel},
		{"ping to all", mac, packet(icmp6, peer6, all6, icmp(128, nil)), toKernel},
		{"error about the stack's", mac, packet(icmp4, peer4, s.v4,
			about(packet(tcp, s.v4, peer4, ports(40000, 5000)))), toStack},
		{"error about RoCE", mac, packet(icmp4, peer4, s.v4,
			about(packet(udpProto, s.v4, peer4, ports(0xc001, roce)))), toStack},
		{"error about RoCE over IPv6", mac, packet(icmp6, peer6, s.v6,
			about6(packet(udpProto, s.v6, peer6, ports(0xc001, roce)))), toStack},
		{"error about the kernel's", mac, packet(icmp4, peer4, s.v4,
			about(packet(tcp, s.v4, peer4, ports(40001, 5000)))), toKernel},
		{"error about another address's", mac, packet(icmp4, peer4, s.v4,
			about(packet(tcp, other4, peer4, ports(40000, 5000)))), toKernel},
		{"error about nothing", mac, packet(icmp4, peer4, s.v4, about([]byte{0x45, 0})), toKernel},
		{"error about half a header", mac, packet(icmp6, peer6, s.v6,
			about6(make([]byte, 39))), toKernel},
		{"first fragment, RoCE", mac, fragment(packet(udpProto, peer4, s.v4,
			ports(50000, roce)), 0, true), toStack},
		{"first fragment, the kernel's", mac, fragment(packet(udpProto, peer4, s.v4,
			ports(50000, 53)), 0, true), toKernel},
		{"later fragment", mac, fragment(packet(udpProto, peer4, s.v4, ports(1, 2)), 24, false),
			toBoth},
		{"first fragment of IPv6", mac, fragment6(udpProto, peer6, s.v6, 0, true,
			ports(50000, roce)), toStack},
		{"later fragment of IPv6", mac, fragment6(udpProto, peer6, s.v6, 24, false, ports(1, 2)),
			toBoth},
		{"ARP for the station", frametest.Broadcast, arp(1, peer4, s.v4), toStack},
		{"ARP for another", frametest.Broadcast, arp(1, peer4, other4), toKernel},
		{"ARP's answer", mac, arp(2, peer4, s.v4), toBoth},
		{"ARP that is cut", frametest.Broadcast, arp(1, peer4, s.v4)[:20], toBoth},
		{"solicitation", mac, packet(icmp6, peer6, solicited, asks(s.v6)), toStack},
		{"solicitation for another", mac, packet(icmp6, peer6, solicited, asks(other6)), toKernel},
		{"solicitation for a link-local one", mac, packet(icmp6, peer6, solicited, asks(local6)),
			toKernel},
		{"advertisement", mac, packet(icmp6, peer6, s.v6, icmp(136, peer6.AsSlice())), toBoth},
		{"router's advertisement", mac, packet(icmp6, peer6, all6, icmp(134, nil)), toBoth},
		{"redirect", mac, packet(icmp6, peer6, s.v6, icmp(137, make([]byte, 32))), toKernel},
		{"group", frame.MAC{1, 0, 0x5e, 0, 0, 1}, packet(udpProto, peer4, all4, ports(1, 5353)),
			toBoth},
		{"broadcast", frametest.Broadcast, packet(udpProto, peer4,
			netip.MustParseAddr("255.255.255.255"), ports(67, 68)), toKernel},
		{"neither IP nor ARP", mac, make([]byte, 46), toKernel},
		{"VLAN", mac, append([]byte{0, 5, 8, 0}, packet(tcp, peer4, s.v4, ports(1, listening))...),
			toKernel},
	} {
		etherType := uint16(0x0800)
		switch {
		case tt.name == "VLAN":
			etherType = 0x8100
		case tt.b[0]>>4 == 6:
			etherType = 0x86dd
		case tt.b[0] == 0 && tt.b[1] == 1:
			etherType = 0x0806
		case tt.b[0] == 0:
			etherType = 0x88b5
		}
		stack, kernel := s.came(tt.dst, etherType, tt.b)
		if got := [2]bool{stack, kernel}; got != tt.want {
			t.Errorf("%s: the stack and the kernel have it: %v, want %v", tt.name, got, tt.want)
		}
	}

	// The two halves do not hear each other, and what either sends goes out under the same address.
	before := s.st.PortStats()
	for len(s.wire.Frames) > 0 {
		<-s.wire.Frames
	}
	whom := arp(1, s.v4, peer4)
	octets := append(append(frametest.Broadcast[:], mac[:]...), 8, 6)
	if err := s.kernel.Send(append(octets, whom...), frame.Offload{}); err != nil {
		t.Errorf("the kernel's frame: %v", err)
	}
	if n := len(s.wire.Frames); n == 0 {
		t.Error("the kernel's frame does not get out")
	}
	if after := s.st.PortStats(); after.TxFrames != before.TxFrames {
		t.Error("the stack hears the kernel")
	}

	// When the port of the kernel is gone the stack has all that there is.
	s.kernel.Detach()
	if stack, _ := s.came(mac, 0x0800, packet(tcp, peer4, s.v4, ports(5000, 22))); !stack {
		t.Error("without a kernel the stack does not have the station's packets")
	}
}

// FuzzDivide: no frame, however it is cut, is for nobody, nor ends the daemon.
func FuzzDivide(f *testing.F) {
	a4, a6 := netstacktest.Addresses(1)[0].Addr(), netstacktest.Addresses(1)[1].Addr()
	f.Add(uint16(0x0800), packet(1, a4, a4, icmp(3, packet(6, a4, a4, ports(1, 2)))))
	f.Add(uint16(0x86dd), packet(58, a6, a6, icmp(1, packet(17, a6, a6, ports(1, 4791)))))
	f.Add(uint16(0x86dd), fragment6(17, a6, a6, 8, true, ports(1, 2)))
	f.Add(uint16(0x0806), arp(1, a4, a4))
	sw := ethswitch.New(ethswitch.Config{})
	st := netstacktest.NewStack(f, sw, 1, 1500)
	kernel := porttest.NewPortBeside(f, sw, "kernel", st.Name(), true)
	wire := porttest.NewPort(f, sw, "wire", true)
	f.Fuzz(func(t *testing.T, etherType uint16, b []byte) {
		mac := st.MAC()
		octets := append(append([]byte(nil), mac[:]...), 2, 0, 0, 0, 0, 9)
		octets = append(binary.BigEndian.AppendUint16(octets, etherType), b...)
		before := st.PortStats()
		if wire.Send(octets, frame.Offload{}) != nil {
			return // no frame at all
		}
		after := st.PortStats()
		if len(kernel.Frames) == 0 && after.TxFrames+after.TxDrops == before.TxFrames+before.TxDrops {
			t.Errorf("%x is lost", octets)
		}
		for len(kernel.Frames) > 0 {
			<-kernel.Frames
		}
	})
}
