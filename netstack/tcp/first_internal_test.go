package tcp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// segment is one of TCP over IPv4 with so many octets, as it comes to f.local.
func segment(f flow, flags header.TCPFlags, ack uint32, octets int) *frame.Packet {
	p := &frame.Packet{EtherType: frame.EtherIPv4, Protocol: frame.ProtoTCP, L3: frame.EtherHeaderLen,
		L4: frame.EtherHeaderLen + frame.IPv4MinLen}
	p.N = p.L4 + frame.TCPMinLen
	p.End = p.N + octets
	src, dst := f.remote.Addr().As4(), f.local.Addr().As4()
	copy(p.Headers[p.L3+12:], src[:])
	copy(p.Headers[p.L3+16:], dst[:])
	t := p.Headers[p.L4:]
	binary.BigEndian.PutUint16(t, f.remote.Port())
	binary.BigEndian.PutUint16(t[2:], f.local.Port())
	binary.BigEndian.PutUint32(t[8:], ack)
	t[12], t[13] = frame.TCPMinLen/4<<4, byte(flags)
	return p
}

func flowTo(local string, remote uint16) flow {
	return flow{netip.MustParseAddrPort(local), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"),
		remote)}
}

// The first octets that acknowledge a listener's SYN are told of, once, and nothing else is.
func TestFirstOctets(t *testing.T) {
	var s firstOctets
	var told []string
	teller := func(who string) func(netip.AddrPort) {
		return func(from netip.AddrPort) { told = append(told, who+" "+from.String()) }
	}
	any4 := &Listener{addr: netip.MustParseAddrPort("0.0.0.0:7")}
	any6 := &Listener{addr: netip.MustParseAddrPort("[::]:7")}
	one := &Listener{addr: netip.MustParseAddrPort("10.0.0.1:7")}
	s.listen(any4, teller("any"))
	s.listen(any6, teller("any6"))
	s.listen(one, teller("one"))
	a, b, c, elsewhere := flowTo("10.0.0.1:7", 1), flowTo("10.0.0.2:7", 2), flowTo("10.0.0.1:7", 3),
		flowTo("10.0.0.1:8", 4)
	for _, f := range []flow{a, b, c, elsewhere} {
		s.answered(f, 100)
	}
	s.answered(a, 100) // again, as the peer's SYN has come again
	if n := s.n.Load(); n != 3 {
		t.Fatalf("%d in mind, want 3", n)
	}
	for _, p := range []*frame.Packet{
		segment(c, header.TCPFlagAck, 100, 0), // no octets
		segment(c, header.TCPFlagAck, 101, 1), // to another SYN
		segment(c, header.TCPFlagAck|header.TCPFlagSyn, 100, 1),
		segment(c, header.TCPFlagPsh, 100, 1),
		segment(flowTo("10.0.0.1:7", 5), header.TCPFlagAck, 100, 1), // of nobody
		segment(elsewhere, header.TCPFlagAck, 100, 1),
	} {
		s.received(p)
	}
	if len(told) != 0 {
		t.Fatalf("told %v", told)
	}
	s.received(segment(b, header.TCPFlagAck|header.TCPFlagPsh, 100, 1))
	s.received(segment(a, header.TCPFlagAck, 100, 1))
	s.received(segment(a, header.TCPFlagAck, 100, 1))
	if want := []string{"any 10.0.0.9:2", "one 10.0.0.9:1"}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if n := s.n.Load(); n != 1 {
		t.Errorf("%d in mind, want 1", n)
	}
	s.close(one)
	s.close(one)
	s.close(any4)
	s.received(segment(c, header.TCPFlagAck, 100, 1))
	if len(told) != 2 {
		t.Errorf("a listener that is closed is told: %v", told)
	}
	if !s.listening.Load() {
		t.Error("the one that is left is not told of any more")
	}
	s.answered(flow{netip.MustParseAddrPort("[fd00::1]:7"), netip.MustParseAddrPort("[fd00::9]:1")},
		200)
	if n := s.n.Load(); n != 1 {
		t.Errorf("%d in mind, want 1", n)
	}
	s.close(any6)
	if s.listening.Load() || s.n.Load() != 0 {
		t.Errorf("listening %v, %d in mind", s.listening.Load(), s.n.Load())
	}
}

// A connection that either end has ended is forgotten, and with it the octets that may come still.
func TestFirstsEnded(t *testing.T) {
	var s firstOctets
	s.listen(&Listener{addr: netip.MustParseAddrPort("10.0.0.1:7")},
		func(from netip.AddrPort) { t.Errorf("told of %v", from) })
	out := func(f flow, flags header.TCPFlags) *stack.PacketBuffer {
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: header.TCPMinimumSize})
		pkt.TransportProtocolNumber = tcp.ProtocolNumber
		pkt.EgressRoute.LocalAddress, pkt.EgressRoute.RemoteAddress = gvconv.Addr(f.local.Addr()),
			gvconv.Addr(f.remote.Addr())
		header.TCP(pkt.TransportHeader().Push(header.TCPMinimumSize)).Encode(&header.TCPFields{
			SrcPort: f.local.Port(), DstPort: f.remote.Port(), SeqNum: 99, DataOffset: header.TCPMinimumSize,
			Flags: flags,
		})
		t.Cleanup(pkt.DecRef)
		return pkt
	}
	const ack, fin, rst, syn = header.TCPFlagAck, header.TCPFlagFin, header.TCPFlagRst,
		header.TCPFlagSyn
	f, other := flowTo("10.0.0.1:7", 1), flowTo("10.0.0.1:7", 2)
	for _, end := range []struct {
		what string
		do   func()
	}{
		{"a RST has come", func() { s.received(segment(f, rst, 0, 0)) }},
		{"a RST with an ACK and octets has come", func() { s.received(segment(f, rst|ack, 100, 1)) }},
		{"a RST is sent", func() { s.sent(out(f, rst|ack)) }},
		{"a FIN is sent", func() { s.sent(out(f, fin|ack)) }},
	} {
		s.sent(out(f, syn|ack))
		s.sent(out(other, syn|ack))
		s.sent(out(f, ack))
		s.received(segment(f, fin|ack, 100, 0)) // octets may have been lost before it
		if n := s.n.Load(); n != 2 {
			t.Fatalf("%s: %d in mind before, want 2", end.what, n)
		}
		end.do()
		if n := s.n.Load(); n != 1 {
			t.Errorf("%s: %d in mind, want 1", end.what, n)
		}
		s.received(segment(f, ack, 100, 1))
	}
}

// Who begins and says nothing takes no more than there is; the oldest is forgotten.
func TestFirstsBounded(t *testing.T) {
	var s firstOctets
	told := 0
	s.listen(&Listener{addr: netip.MustParseAddrPort("10.0.0.1:7")}, func(netip.AddrPort) { told++ })
	const more = 10
	for round := range 2 {
		told = 0
		for i := range maxExpected + more {
			s.answered(flowTo("10.0.0.1:7", uint16(i+1)), 1)
			if i == 0 {
				s.answered(flowTo("10.0.0.1:7", 1), 1)
			}
		}
		if n := s.n.Load(); n != maxExpected {
			t.Fatalf("round %d: %d in mind, want %d", round, n, maxExpected)
		}
		for i := range maxExpected + more {
			s.received(segment(flowTo("10.0.0.1:7", uint16(i+1)), header.TCPFlagAck, 1, 1))
			if i == more-1 && told != 0 {
				t.Errorf("round %d: %d of those that were forgotten", round, told)
			}
		}
		if told != maxExpected || s.n.Load() != 0 {
			t.Errorf("round %d: told of %d, %d in mind; want %d and none", round, told, s.n.Load(),
				maxExpected)
		}
	}
}
