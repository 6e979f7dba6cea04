package netstack

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/tcp"
	"github.com/vrnic/vrnic/netstack/udp"
)

// A dispatcher is gVisor's side of a link.
type dispatcher struct {
	stack.NetworkDispatcher
	got []byte
}

func (d *dispatcher) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	d.got = pkt.Data().AsRange().ToSlice()
}

// FuzzFrames sends any octets through a switch to a stack's link: what the switch admits arrives as
// it was; only TCP is delivered on the spot; what claims to be unverified has right checksums when
// it arrives; path MTUs are sensible.
func FuzzFrames(f *testing.F) {
	tcp4 := []byte(
		"\x08\x00\x45\x00\x00\x28\x00\x00\x00\x00\x40\x06\x26\xce\x0a\x00\x00\x01\x0a\x00\x00\x02" +
			"\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x50\x10\x00\x00\x00\x00\x00\x00")
	f.Add(tcp4, uint8(0), uint8(0), uint16(0), uint16(0), uint16(0), false)
	f.Add(append(tcp4, 1, 2, 3), uint8(1), uint8(2), uint16(2), uint16(34), uint16(16), false)
	f.Add([]byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, uint8(0), uint8(0), uint16(0), uint16(0),
		uint16(0), true)
	f.Add(append([]byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 0, 64}, make([]byte, 56)...), uint8(0),
		uint8(1), uint16(0), uint16(0), uint16(0), true)
	// behind 96 octets of destination options
	far := append([]byte("\x86\xdd\x60\x00\x00\x00\x00\x74\x3c\x40"), make([]byte, 32+96+20)...)
	far[42], far[43], far[42+96+12] = 6, 11, 0x50
	for csum := range uint8(3) {
		f.Add(far, uint8(0), csum, uint16(0), uint16(0), uint16(0), false)
	}
	f.Fuzz(func(t *testing.T, octets []byte, gso, csum uint8, gsoSize, start, offset uint16,
		group bool) {
		d := &dispatcher{}
		l := &link{mac: frame.MAC{2, 0, 0, 0, 0, 1}, tcp: new(tcp.Host),
			udp: new(udp.Host), queue: make(chan *stack.PacketBuffer, 1)}
		l.Attach(d)
		dst := l.mac
		if group {
			dst[0] |= 1
		}
		sent := append(append(append([]byte(nil), dst[:]...), 2, 0, 0, 0, 0, 9), octets...)
		fr := frame.New(sent, frame.Offload{GSO: frame.GSO(gso), Csum: frame.CsumState(csum % 3),
			GSOSize: gsoSize, CsumStart: start, CsumOffset: offset})
		defer fr.Release()
		if fr.Check() != nil || fr.GSO == frame.GSOUDP { // that one comes in pieces
			return
		}
		whole := frame.New(sent, fr.Offload)
		defer whole.Release()
		ok := l.Transmit(fr, nil)
		inline := d.got != nil
		if len(l.queue) > 0 {
			l.deliver(<-l.queue)
		}
		if got := d.got; ok && !bytes.Equal(got, sent[frame.EtherHeaderLen:]) || !ok && got != nil {
			t.Fatalf("ok=%v, but %x arrived of %x", ok, got, sent)
		}
		if !ok {
			return
		}
		var p frame.Packet
		if err := p.Parse(whole); err != nil {
			t.Fatal(err)
		}
		if inline != (p.L4 != 0 && p.Protocol == frame.ProtoTCP && !p.Fragment) {
			t.Fatalf("delivered on the spot: %v; %+v", inline, p)
		}
		if gvisor.AbsurdPathMTU(&p) || !whole.ChecksumsValid(&p) {
			t.Fatalf("let in: %x", sent)
		}
	})
}

// packet6 is a frame for the link. Behind the header of IPv6 are octets, a header of next first.
func packet6(next byte, octets ...[]byte) []byte {
	b := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64},
		make([]byte, 32)...)
	for _, o := range octets {
		b = append(b, o...)
	}
	n := len(b) - frame.EtherHeaderLen - frame.IPv6Len
	b[18], b[19] = byte(n>>8), byte(n)
	return b
}

// options are n octets of IPv6's options, behind which comes next.
func options(next byte, n int) []byte {
	return append([]byte{next, byte(n/8 - 1), 1, byte(n - 4)}, make([]byte, n-4)...)
}

// TestHiddenTooBig: gVisor finds an ICMPv6 message behind any number of extension headers, so what
// may be "packet too big" and is too far inside to be looked at is not let in. What honest hosts
// send is.
func TestHiddenTooBig(t *testing.T) {
	const (
		hopByHop, routing, fragment, experiment = 0, 43, 44, 253
		icmp, udpProto, tcpProto                = 58, 17, 6
	)
	tooBig := append([]byte{2, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 60)...)
	echo := append([]byte{128, 0, 0, 0, 0, 1, 0, 1}, make([]byte, 60)...)
	segment := append(make([]byte, 12), append([]byte{0x50, 0x10}, make([]byte, 46)...)...)
	fragmentOf := func(next, offset, more byte) []byte {
		return []byte{next, 0, 0, offset | more, 0, 0, 0, 7} // offset in octets
	}
	for _, x := range []struct {
		name string
		ok   bool
		b    []byte
	}{
		{"too big", false, packet6(icmp, tooBig)},
		{"behind short options", false, packet6(60, options(icmp, 8), tooBig)},
		{"the MTU is out of reach", false, packet6(60, options(icmp, 80), tooBig)},
		{"all is out of reach", false, packet6(60, options(icmp, 96), tooBig)},
		{"so are headers", false, packet6(60, options(60, 96), options(icmp, 8), tooBig)},
		{"behind routing", false, packet6(routing, options(icmp, 96), tooBig)},
		{"behind hop-by-hop", false, packet6(hopByHop, options(icmp, 96), tooBig)},
		{"an atomic fragment", false, packet6(fragment, fragmentOf(icmp, 0, 0), tooBig)},
		{"options in it", false, packet6(fragment, fragmentOf(60, 0, 0), options(icmp, 8), tooBig)},
		{"a fragment in it", false,
			packet6(fragment, fragmentOf(fragment, 0, 0), fragmentOf(icmp, 0, 0), tooBig)},
		{"options in a first fragment", false,
			packet6(fragment, fragmentOf(60, 0, 1), options(icmp, 8), tooBig[:64])},
		{"options in its last", false, packet6(fragment, fragmentOf(60, 64, 0), tooBig[64:])},
		{"a first fragment", false, packet6(fragment, fragmentOf(icmp, 0, 1), tooBig[:64])},
		{"a fragment out of reach", false,
			packet6(60, options(fragment, 80), fragmentOf(icmp, 0, 0), tooBig)},
		{"an experiment", false,
			packet6(experiment, []byte{icmp, 0, 0, 0, 0, 0, 0, 0}, tooBig)},
		{"an experiment in a fragment", false,
			packet6(fragment, fragmentOf(experiment, 0, 0), []byte{icmp, 0, 0, 0, 0, 0, 0, 0}, tooBig)},
		{"no whole header", false, packet6(icmp, tooBig[:6])},

		{"echo", true, packet6(icmp, echo)},
		{"echo behind options", true, packet6(60, options(icmp, 72), echo)},
		{"echo's first fragment", true, packet6(fragment, fragmentOf(icmp, 0, 1), echo[:64])},
		{"echo's last", true, packet6(fragment, fragmentOf(icmp, 64, 0), echo[64:])},
		{"the first fragment of UDP", true, packet6(fragment, fragmentOf(udpProto, 0, 1), echo[:64])},
		{"the last of UDP", true, packet6(fragment, fragmentOf(udpProto, 64, 0), echo[64:])},
		{"the first fragment of TCP", true, packet6(fragment, fragmentOf(tcpProto, 0, 1), segment[:56])},
		{"TCP out of reach", true, packet6(60, options(tcpProto, 96), segment)},
	} {
		d := &dispatcher{}
		l := &link{mac: frame.MAC{2, 0, 0, 0, 0, 1}, tcp: new(tcp.Host), udp: new(udp.Host),
			queue: make(chan *stack.PacketBuffer, 1)}
		l.Attach(d)
		f := frame.New(x.b, frame.Offload{Csum: frame.CsumValid})
		ok := l.Transmit(f, nil)
		if len(l.queue) > 0 {
			l.deliver(<-l.queue)
		}
		if f.Release(); ok != x.ok || (d.got != nil) != x.ok {
			t.Errorf("%s: let in: %v, %d octets delivered", x.name, ok, len(d.got))
		}
	}
}
