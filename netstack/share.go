package netstack

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/ports"
)

// A PortKeeper is who has the addresses of a Stack, too, and programs of its own: the kernel.
type PortKeeper = ports.Keeper

// Share has k keep the ports that the stack uses, now and from now on, from its own programs. The
// port of the switch that leads to k is beside the stack's, so that both are one station. An error
// names what k's programs have, and is about nothing else. Nil ends it.
func (s *Stack) Share(k PortKeeper) error { return s.ports.Share(k) }

var _ ethswitch.Sharer = (*link)(nil)

// setOwn notes which addresses are the stack's, for Divide.
func (l *link) setOwn(addrs []netip.Prefix) {
	for _, p := range addrs {
		l.own = append(l.own, p.Addr())
	}
	l.own = append(l.own, gvconv.GoAddr(header.LinkLocalAddr(l.LinkAddress())))
}

// isOwn reports whether a is an address of the stack's.
func (l *link) isOwn(a netip.Addr) bool { return slices.Contains(l.own, a) }

// Divide implements ethswitch.Sharer. The stack has what is for its connections, listeners and
// sockets, ICMP errors about them included, and answers who asks for its addresses on the link. The
// other side, a kernel, has the rest, and is the one that answers where nobody is: by a RST, or an
// ICMP error, or ping's echo. What says nothing of whom it is for goes to both: groups, neighbours'
// answers, and fragments behind the first one, with which only who has that can begin anything.
func (l *link) Divide(f *frame.Frame) (mine, theirs bool) {
	var p frame.Packet
	if p.Parse(f) != nil || p.L3 != frame.EtherHeaderLen {
		return false, true // perhaps a VLAN of the kernel's
	}
	var src, dst netip.Addr
	switch p.EtherType {
	case frame.EtherARP:
		return l.divideARP(&p)
	case frame.EtherIPv4:
		ip := p.Headers[p.L3:]
		src, dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case frame.EtherIPv6:
		ip := p.Headers[p.L3:]
		src, dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return false, true
	}
	own, group := l.isOwn(dst), dst.IsMulticast()
	switch {
	case !own && !group:
		return false, true // another address of the kernel's, or a broadcast
	case p.NotFirst:
		return true, true
	case p.Protocol == frame.ProtoICMP, p.Protocol == frame.ProtoICMPv6:
		return l.divideICMP(&p, group)
	case group:
		return true, true
	case p.L4 == 0 || p.N < p.L4+4:
		return false, true
	}
	from, to := portsAt(p.Headers[p.L4:])
	mine = l.has(p.Protocol, netip.AddrPortFrom(dst, to), netip.AddrPortFrom(src, from))
	return mine, !mine
}

// portsAt are the ports that a transport header begins with.
func portsAt(b []byte) (src, dst uint16) {
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
}

// has reports whether somebody in the stack waits for packets of this kind.
func (l *link) has(protocol uint8, local, remote netip.AddrPort) bool {
	if protocol == frame.ProtoUDP {
		return l.udp.Has(local)
	}
	if protocol != frame.ProtoTCP && protocol != frame.ProtoSCTP {
		return false
	}
	id := stack.TransportEndpointID{
		LocalAddress: gvconv.Addr(local.Addr()), LocalPort: local.Port(),
		RemoteAddress: gvconv.Addr(remote.Addr()), RemotePort: remote.Port(),
	}
	return l.st.FindTransportEndpoint(gvconv.Protocol(local.Addr()),
		tcpip.TransportProtocolNumber(protocol), id, gvconv.NIC) != nil
}

// divideARP is Divide of ARP (RFC 826), of Ethernet and IPv4.
func (l *link) divideARP(p *frame.Packet) (mine, theirs bool) {
	const operation, target, end = 6, 24, 28
	arp := p.Headers[p.L3:p.N]
	if len(arp) < end || binary.BigEndian.Uint16(arp[operation:]) != 1 {
		return true, true // an answer
	}
	mine = l.isOwn(netip.AddrFrom4([4]byte(arp[target:])))
	return mine, !mine
}

// Types of ICMP messages.
const (
	icmpv4Unreachable, icmpv4Quench              = 3, 4
	icmpv4TimeExceeded, icmpv4Parameter          = 11, 12
	icmpv6LastError, icmpv6Echo, icmpv6EchoReply = 4, 128, 129
	icmpv6Solicitation, icmpv6Advertisement      = 135, 136
)

// divideICMP is Divide of ICMP and ICMPv6 for an own address, or a group.
func (l *link) divideICMP(p *frame.Packet, group bool) (mine, theirs bool) {
	const quote = 8 // the packet that an error is about begins there
	if p.L4 == 0 || p.N < p.L4+quote {
		return false, true
	}
	icmp := p.Headers[p.L4:p.N]
	kind := icmp[0]
	if p.EtherType == frame.EtherIPv4 {
		switch kind {
		case icmpv4Unreachable, icmpv4Quench, icmpv4TimeExceeded, icmpv4Parameter:
			mine = l.sent(icmp[quote:])
		}
		return mine, !mine
	}
	switch {
	case kind <= icmpv6LastError:
		mine = l.sent(icmp[quote:])
	case kind == icmpv6Solicitation && len(icmp) >= quote+16:
		mine = l.isOwn(netip.AddrFrom16([16]byte(icmp[quote:])))
	case kind == icmpv6Advertisement:
		return true, true
	case kind == icmpv6Echo || kind == icmpv6EchoReply:
	default: // of routers and of groups' listeners
		return group, true
	}
	return mine, !mine
}

// sent reports whether a packet, of which b is the beginning, is one that the stack may have sent.
func (l *link) sent(b []byte) bool {
	var protocol uint8
	var src, dst netip.Addr
	switch {
	case len(b) >= frame.IPv4MinLen && b[0]>>4 == 4:
		protocol = b[9]
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[min(max(int(b[0]&0xf)*4, frame.IPv4MinLen), len(b)):]
	case len(b) >= frame.IPv6Len && b[0]>>4 == 6:
		protocol = b[6]
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[frame.IPv6Len:]
	default:
		return false
	}
	if len(b) < 4 || !l.isOwn(src) {
		return false
	}
	from, to := portsAt(b)
	if protocol == frame.ProtoUDP { // sockets send from any port, to that of their own number
		from = to
	}
	return l.has(protocol, netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to))
}
