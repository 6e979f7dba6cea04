package stacknet

import (
	"context"
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/vrnic/vrnic/netstack/udp"
	"github.com/vrnic/vrnic/roce/packet"
)

// A UDPPort is a UDP port of an address of the stack's, for datagrams of a program.
type UDPPort struct {
	s      *udp.Socket
	at     netip.AddrPort
	routes map[netip.Addr]*udp.Route
}

// maxRoutes is how many ways a UDPPort remembers.
const maxRoutes = 256

// OpenUDP opens a port; what comes there is given to receive, which must not wait, and by several
// goroutines. EADDRINUSE: somebody has it.
func (n *Network) OpenUDP(at netip.AddrPort, receive func(from netip.AddrPort, data []byte)) (
	*UDPPort, error) {
	s, err := n.stack.UDP().Open(at.Port(), []netip.Addr{at.Addr()}, udpHandler(receive))
	if err != nil {
		return nil, err
	}
	return &UDPPort{s, at, make(map[netip.Addr]*udp.Route)}, nil
}

// A udpHandler is given datagrams.
type udpHandler func(from netip.AddrPort, data []byte)

// Receive implements udp.Handler.
func (h udpHandler) Receive(p udp.Packet) {
	from := binary.BigEndian.Uint16(p.Header[len(p.Header)-header.UDPMinimumSize:])
	h(netip.AddrPortFrom(p.Src, from), p.Data)
}

// Send sends a datagram of one packet; what is longer, or has no way, is lost. One goroutine calls
// it at a time. Nothing is sent to RoCE's own port, which whoever has the same address speaks to,
// nor to groups.
func (p *UDPPort) Send(ctx context.Context, to netip.AddrPort, data []byte) {
	if to.Port() == packet.Port || to.Addr().IsMulticast() {
		return
	}
	r := p.routes[to.Addr()]
	if r == nil {
		var err error
		if r, err = p.s.Route(ctx, p.at.Addr(), to.Addr()); err != nil {
			return
		}
		if len(p.routes) >= maxRoutes {
			clear(p.routes)
		}
		p.routes[to.Addr()] = r
	}
	_ = r.Send(&udpSource{from: p.at, to: to, data: data}) // it is lost
}

// Close hands nothing up any more, and waits for who receives.
func (p *UDPPort) Close() error { return p.s.Close() }

// A udpSource makes one packet.
type udpSource struct {
	from, to netip.AddrPort
	data     []byte
	made     bool
}

// NextPacket implements udp.Source.
func (s *udpSource) NextPacket(b []byte) ([]byte, bool) {
	if s.made {
		return nil, false
	}
	s.made = true
	src := tcpip.AddrFromSlice(s.from.Addr().AsSlice())
	dst := tcpip.AddrFromSlice(s.to.Addr().AsSlice())
	n := header.UDPMinimumSize + len(s.data)
	const hops = 64
	if s.to.Addr().Is4() {
		ip := header.IPv4(append(b, make([]byte, header.IPv4MinimumSize)...))
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(ip) + n), TTL: hops,
			Flags: header.IPv4FlagDontFragment, Protocol: uint8(header.UDPProtocolNumber),
			SrcAddr: src, DstAddr: dst})
		ip.SetChecksum(^ip.CalculateChecksum())
		b = ip
	} else {
		ip := header.IPv6(append(b, make([]byte, header.IPv6MinimumSize)...))
		ip.Encode(&header.IPv6Fields{PayloadLength: uint16(n),
			TransportProtocol: header.UDPProtocolNumber, HopLimit: hops, SrcAddr: src, DstAddr: dst})
		b = ip
	}
	u := header.UDP(make([]byte, header.UDPMinimumSize))
	u.Encode(&header.UDPFields{SrcPort: s.from.Port(), DstPort: s.to.Port(), Length: uint16(n)})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, src, dst, uint16(n))
	u.SetChecksum(^u.CalculateChecksum(checksum.Checksum(s.data, sum)))
	return append(append(b, u...), s.data...), true
}
