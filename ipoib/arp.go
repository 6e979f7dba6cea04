package ipoib

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// ARP's numbers: the hardware type of InfiniBand (RFC 4391, section 14), and its operations.
const (
	arpHardware = 32
	arpLen      = 8 + 2*(LinkAddrLen+4)
	arpRequest  = 1
	arpReply    = 2
)

// An arpPacket is an ARP packet of a link.
type arpPacket struct {
	op                 uint16
	sender, target     LinkAddr
	senderIP, targetIP netip.Addr
}

func (p *arpPacket) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, arpHardware)
	b = binary.BigEndian.AppendUint16(b, uint16(IPv4))
	b = append(b, LinkAddrLen, 4)
	b = binary.BigEndian.AppendUint16(b, p.op)
	b = append(p.sender.Append(b), p.senderIP.AsSlice()...)
	return append(p.target.Append(b), p.targetIP.AsSlice()...)
}

// parseARP reads an ARP packet whose sender can be answered.
func parseARP(b []byte) (p arpPacket, ok bool) {
	if len(b) < arpLen || binary.BigEndian.Uint16(b) != arpHardware ||
		Type(binary.BigEndian.Uint16(b[2:])) != IPv4 || b[4] != LinkAddrLen || b[5] != 4 {
		return p, false
	}
	p.op = binary.BigEndian.Uint16(b[6:])
	p.sender, ok = ParseLinkAddr(b[8:])
	p.senderIP = netip.AddrFrom4([4]byte(b[28:]))
	p.target, _ = ParseLinkAddr(b[32:]) // of a request it is nobody's
	p.targetIP = netip.AddrFrom4([4]byte(b[52:]))
	return p, ok && !p.senderIP.IsMulticast() && p.senderIP != limitedBroadcast
}

// receiveARP takes an ARP packet: the sender is a neighbour if it is one already, or has to do with
// this end (RFC 826).
func (i *Interface) receiveARP(now time.Time, b []byte) {
	p, ok := parseARP(b)
	if !ok {
		i.stats.DropMalformed++
		return
	}
	if i.owns(p.senderIP) || p.sender.Bare() == i.own.Bare() { // somebody has our address
		i.stats.DropForeign++
		return
	}
	ours := i.owns(p.targetIP)
	if !p.senderIP.IsUnspecified() {
		i.learn(now, p.senderIP, p.sender, ours)
	}
	if ours && p.op == arpRequest {
		reply := arpPacket{op: arpReply, sender: i.own, senderIP: p.targetIP, target: p.sender,
			targetIP: p.senderIP}
		i.datagram(p.sender, ARP, reply.append(nil))
	}
}

// ask asks for the link-layer address of ip: whoever has it, or with to the neighbour that had it.
func (i *Interface) ask(ip netip.Addr, to *LinkAddr) {
	i.stats.Solicits++
	if ip.Is6() {
		i.solicit(ip, to)
		return
	}
	p := arpPacket{op: arpRequest, sender: i.own, senderIP: i.source(ip), targetIP: ip}
	if to != nil {
		i.datagram(*to, ARP, p.append(nil))
		return
	}
	i.datagram(i.broadcast, ARP, p.append(nil))
}
