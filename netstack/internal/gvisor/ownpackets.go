package gvisor

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// NewTCP makes gVisor's TCP for st. What st sends to itself gVisor's IP turns round, past the
// interface and on the goroutine of who sends it: own, which is a TakeOwn, is asked for each
// segment as it is parsed. If it takes it nobody gets it; DeliverOwn brings it, or a copy, later.
// Without own such segments go straight on.
//
// TCP verifies the checksum of what came in fragments, which nobody could before: they have to have
// the Mark Fragment. For all else gVisor believes what the link's capabilities say.
//
// Upstream: network/ipv4/ipv4.go and network/ipv6/ipv6.go, (*endpoint).handleLocalPacket, which
// parses a packet without a link header; stack/nic.go, (*nic).deliverTransportPacket, which drops
// one that has no ports, and DeliverNetworkPacket, which asks the link for its capabilities;
// network/internal/fragmentation/reassembler.go, process, which makes the packet of a fragment.
func NewTCP(st *stack.Stack, own func(*stack.PacketBuffer) (taken bool)) stack.TransportProtocol {
	p := tcp.NewProtocol(st)
	if all, ok := p.(tcpProtocol); ok {
		return &ownTCP{all, own}
	}
	return p
}

// tcpProtocol is what gVisor asks of its TCP.
type tcpProtocol interface {
	stack.TransportProtocol
	stack.SendBufSizeProto
	SegmentQueue
}

// Fragment is the Mark of a PacketBuffer that is a fragment.
const Fragment = 1

const portsLen = 4 // of the two at the beginning of a segment

type ownTCP struct {
	tcpProtocol
	own func(*stack.PacketBuffer) bool
}

// Parse implements stack.TransportProtocol.
func (p *ownTCP) Parse(pkt *stack.PacketBuffer) bool {
	if p.own != nil && p.own(pkt) {
		return false
	}
	if pkt.Mark == Fragment {
		pkt.RXChecksumValidated = false
	}
	return p.tcpProtocol.Parse(pkt)
}

// ParsePorts implements stack.TransportProtocol. Of a segment that an ICMP error is about there are
// eight octets, of one that is taken there is one: see TakeOwn.
func (p *ownTCP) ParsePorts(b []byte) (src, dst uint16, err tcpip.Error) {
	if len(b) < portsLen {
		return 0, 0, &tcpip.ErrMalformedHeader{}
	}
	return p.tcpProtocol.ParsePorts(b)
}

// TakeOwn is for a transport protocol that is about to parse pkt: it asks own if pkt is one that
// its stack sends to itself. What is taken has a transport header of one octet then, without ports:
// IPv6 parses again what has none.
func TakeOwn(pkt *stack.PacketBuffer, own func(*stack.PacketBuffer) bool) (taken bool) {
	if len(pkt.LinkHeader().Slice()) != 0 || !own(pkt) {
		return false
	}
	pkt.TransportHeader().Consume(1)
	return true
}

// DeliverOwn gives pkt, whose headers are parsed and which was found right, to its transport
// protocol: gVisor's IP would not believe that it comes from an address of the stack's own.
//
// Upstream: stack/nic.go, newNIC, whose NIC is the dispatcher of its link, and of its transports.
func DeliverOwn(d stack.NetworkDispatcher, pkt *stack.PacketBuffer) {
	if t, ok := d.(stack.TransportDispatcher); ok {
		t.DeliverTransportPacket(pkt.TransportProtocolNumber, pkt)
	}
}
