package gvisor

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/netstack/frame"
)

// gVisor believes any path MTU that an ICMP message tells and sends segments of one octet from then
// on, so such messages are kept from it. Without this anybody who can send a stack a packet could
// bring its connections to a halt.
//
// Upstream: transport/tcp/endpoint.go, HandleError, and snd.go, updateMaxPayloadSize, which has a
// lower bound of one octet. TestPathMTU says when there is a better one.

// The smallest path MTUs that are believed. Every IPv6 link has 1280 (RFC 8200, section 5); for
// IPv4 Linux draws the line at 552.
const (
	minPathMTUv4 = 552
	minPathMTUv6 = 1280
)

// AbsurdPathMTU reports whether p is a "packet too big" for an MTU that no sensible path has, or
// may be one: gVisor follows extension headers of IPv6 as far as they go, also where p has no L4,
// or too few octets behind it. No honest packet is like that.
func AbsurdPathMTU(p *frame.Packet) bool {
	if p.L4 == 0 {
		return p.EtherType == frame.EtherIPv6
	}
	if p.NotFirst {
		return false
	}
	v6 := p.EtherType == frame.EtherIPv6 && p.Protocol == frame.ProtoICMPv6
	if min(p.N, p.End) < p.L4+8 {
		return v6
	}
	icmp := p.Headers[p.L4 : p.L4+8] // type(1) code(1) checksum(2) and, RFC 1191 and 4443, the MTU
	switch {
	case p.EtherType == frame.EtherIPv4 && p.Protocol == frame.ProtoICMP && icmp[0] == 3 &&
		icmp[1] == 4:
		return binary.BigEndian.Uint16(icmp[6:]) < minPathMTUv4
	case v6 && icmp[0] == 2:
		return binary.BigEndian.Uint32(icmp[4:]) < minPathMTUv6
	}
	return false
}
