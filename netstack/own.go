package netstack

import (
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
)

// A mirror shows those who look at the link what the stack sends to itself by TCP and SCTP, which
// gVisor turns round above the link. A raw socket sees all that comes in, and what has an own
// address as its source has come from nowhere else.
type mirror struct {
	l *link

	mu   sync.Mutex
	uses int // +checklocks:mu
}

// mirrored are the protocols.
var mirrored = []struct {
	net   tcpip.NetworkProtocolNumber
	trans tcpip.TransportProtocolNumber
}{
	{header.IPv4ProtocolNumber, header.TCPProtocolNumber},
	{header.IPv6ProtocolNumber, header.TCPProtocolNumber},
	{header.IPv4ProtocolNumber, frame.ProtoSCTP},
	{header.IPv6ProtocolNumber, frame.ProtoSCTP},
}

// Watch has what the stack sends to itself be seen at its port of the switch, until stop is called.
func (s *Stack) Watch() (stop func()) {
	s.mirror.use(s.st, 1)
	return sync.OnceFunc(func() { s.mirror.use(s.st, -1) })
}

func (m *mirror) use(st *stack.Stack, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.uses
	m.uses += n
	for _, p := range mirrored {
		switch {
		case was == 0:
			_ = st.RegisterRawTransportEndpoint(p.net, p.trans, m) // which never fails
		case m.uses == 0:
			st.UnregisterRawTransportEndpoint(p.net, p.trans, m)
		}
	}
}

// HandlePacket implements stack.RawTransportEndpoint.
func (m *mirror) HandlePacket(pkt *stack.PacketBuffer) {
	ip := networkHeader(pkt)
	if m.l.isOwn(gvconv.GoAddr(ip.SourceAddress())) {
		f := m.l.ownFrame(pkt, ip)
		m.l.at.Show(f)
		f.Release()
	}
}

// divertOwn reports whether pkt, which the stack sends to itself and which gVisor would turn round
// above the link, is taken off its way. It comes back by Transmit, or never.
func (l *link) divertOwn(pkt *stack.PacketBuffer) (taken bool) {
	if !l.at.Diverts() {
		return false
	}
	f := l.ownFrame(pkt, networkHeader(pkt))
	defer f.Release()
	return l.at.DivertOwn(f)
}

// takeOwn is Transmit for what was taken off its way by divertOwn. Headers that gVisor has not made
// are of a packet that was spoilt.
func (l *link) takeOwn(p *frame.Packet, f *frame.Frame) bool {
	l3, l4 := frame.IPv4MinLen, sctpHeaderLen
	if p.EtherType == frame.EtherIPv6 {
		l3 = frame.IPv6Len
	}
	if p.Protocol == frame.ProtoTCP {
		var err error
		if l4, err = p.TCPHeaderLen(); err != nil {
			return false
		}
	} else if p.Protocol != frame.ProtoSCTP {
		return false
	}
	if p.Fragment || p.L4 != p.L3+l3 || p.End-p.L4 < l4 {
		return false
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: f.Take()})
	defer pkt.DecRef()
	pkt.LinkHeader().Consume(p.L3)
	pkt.NetworkHeader().Consume(l3)
	pkt.Data().CapLength(p.End - p.L4)
	pkt.TransportHeader().Consume(l4)
	pkt.NetworkProtocolNumber = tcpip.NetworkProtocolNumber(p.EtherType)
	pkt.TransportProtocolNumber = tcpip.TransportProtocolNumber(p.Protocol)
	pkt.NICID, pkt.PktType, pkt.RXChecksumValidated = gvconv.NIC, tcpip.PacketHost, true
	ip := networkHeader(pkt)
	d := l.dispatcher.Load()
	if d == nil || !l.isOwn(gvconv.GoAddr(ip.SourceAddress())) ||
		!l.isOwn(gvconv.GoAddr(ip.DestinationAddress())) {
		return false
	}
	gvisor.DeliverOwn(*d, pkt)
	return true
}

const sctpHeaderLen = 12

func networkHeader(pkt *stack.PacketBuffer) header.Network {
	if pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber {
		return header.IPv6(pkt.NetworkHeader().Slice())
	}
	return header.IPv4(pkt.NetworkHeader().Slice())
}

// ownFrame is pkt, which the stack sends to itself and whose IP header is ip, as the link would
// have it.
func (l *link) ownFrame(pkt *stack.PacketBuffer, ip header.Network) *frame.Frame {
	whole := pkt.ToBuffer()
	whole.TrimFront(int64(len(pkt.LinkHeader().Slice())))
	octets := make([]byte, frame.EtherHeaderLen, frame.EtherHeaderLen+whole.Size())
	header.Ethernet(octets).Encode(&header.EthernetFields{SrcAddr: l.LinkAddress(),
		DstAddr: l.LinkAddress(), Type: pkt.NetworkProtocolNumber})
	octets = append(octets, whole.Flatten()...)
	whole.Release()
	off := frame.Offload{Csum: frame.CsumValid}
	if l4 := frame.EtherHeaderLen + len(pkt.NetworkHeader().Slice()); pkt.TransportProtocolNumber ==
		header.TCPProtocolNumber && len(octets) >= l4+header.TCPMinimumSize {
		off = l.unsummed(octets, l4, ip)
	}
	return frame.New(octets, off)
}

// ShowTCP has who looks at the stack's port of the switch see a segment of TCP between two of its
// addresses that nobody sends.
func (s *Stack) ShowTCP(from, to netip.AddrPort, seq, ack uint32, payload []byte) {
	ipLen := header.IPv4MinimumSize
	if from.Addr().Is6() {
		ipLen = header.IPv6MinimumSize
	}
	l, l4 := s.link, frame.EtherHeaderLen+ipLen
	octets := make([]byte, l4+header.TCPMinimumSize, l4+header.TCPMinimumSize+len(payload))
	octets = append(octets, payload...)
	header.Ethernet(octets).Encode(&header.EthernetFields{SrcAddr: l.LinkAddress(),
		DstAddr: l.LinkAddress(), Type: gvconv.Protocol(from.Addr())})
	src, dst := gvconv.Addr(from.Addr()), gvconv.Addr(to.Addr())
	var ip header.Network
	if ip4 := header.IPv4(octets[frame.EtherHeaderLen:]); from.Addr().Is4() {
		ip4.Encode(&header.IPv4Fields{TotalLength: uint16(len(ip4)), TTL: shownTTL,
			Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: dst})
		ip4.SetChecksum(^ip4.CalculateChecksum())
		ip = ip4
	} else {
		ip6 := header.IPv6(ip4)
		ip6.Encode(&header.IPv6Fields{PayloadLength: uint16(len(ip6) - ipLen), HopLimit: shownTTL,
			TransportProtocol: header.TCPProtocolNumber, SrcAddr: src, DstAddr: dst})
		ip = ip6
	}
	header.TCP(octets[l4:]).Encode(&header.TCPFields{SrcPort: from.Port(), DstPort: to.Port(),
		SeqNum: seq, AckNum: ack, DataOffset: header.TCPMinimumSize,
		Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: 1<<16 - 1})
	f := frame.New(octets, l.unsummed(octets, l4, ip))
	l.at.Show(f)
	f.Release()
}

// shownTTL is gVisor's.
const shownTTL = 64

// unsummed makes a segment of TCP that has not left the stack, and has no checksum, one whose
// checksum is to be made, and which is to be cut if it is longer than the link takes.
func (l *link) unsummed(octets []byte, l4 int, ip header.Network) frame.Offload {
	tcp := header.TCP(octets[l4:])
	tcp.SetChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(),
		ip.DestinationAddress(), uint16(len(tcp))))
	off := frame.Offload{Csum: frame.CsumPartial, CsumStart: uint16(l4),
		CsumOffset: header.TCPChecksumOffset}
	hdr := l4 + int(tcp.DataOffset())
	if mss := frame.EtherHeaderLen + int(l.MTU()) - hdr; len(octets)-hdr > mss && mss > 0 {
		off.GSO, off.GSOSize, off.HdrLen = frame.GSOTCPv4, uint16(mss), uint16(hdr)
		if _, is6 := ip.(header.IPv6); is6 {
			off.GSO = frame.GSOTCPv6
		}
	}
	return off
}
