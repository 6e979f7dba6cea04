package netstack

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/netstack/frame"
)

// The smallest path MTUs that are believed. Every IPv6 link has 1280 (RFC 8200, section 5); for IPv4
// Linux draws the line at 552.
const (
	minPathMTUv4 = 552
	minPathMTUv6 = MinMTU
)

// absurdTooBig reports whether p is a "packet too big" for an MTU that no sensible path has. gVisor
// would take anything and send segments of one octet from then on.
func absurdTooBig(p *frame.Packet) bool {
	if p.L4 == 0 || p.NotFirst || p.N < p.L4+8 {
		return false
	}
	icmp := p.Headers[p.L4 : p.L4+8] // type(1) code(1) checksum(2) and, RFC 1191 and 4443, the MTU
	switch {
	case p.EtherType == frame.EtherIPv4 && p.Protocol == frame.ProtoICMP && icmp[0] == 3 && icmp[1] == 4:
		return binary.BigEndian.Uint16(icmp[6:]) < minPathMTUv4
	case p.EtherType == frame.EtherIPv6 && p.Protocol == frame.ProtoICMPv6 && icmp[0] == 2:
		return binary.BigEndian.Uint32(icmp[4:]) < minPathMTUv6
	}
	return false
}
