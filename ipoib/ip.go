package ipoib

import (
	"encoding/binary"
	"net/netip"
)

// Protocols, and lengths of headers.
const (
	protoICMP   = 1
	protoIGMP   = 2
	protoICMPv6 = 58

	ipv4Len = 20
	ipv6Len = 40

	minMTU6 = 1280 // of a link that carries IPv6 (RFC 8200, section 5)
	minMTU4 = 68   // and IPv4 (RFC 791)
)

// An ipHeader is what of an IP packet decides where it goes.
type ipHeader struct {
	typ      Type
	src, dst netip.Addr
	proto    uint8 // behind the options of IPv4, and hop-by-hop options of IPv6
	length   int   // of the packet
	header   int   // octets in front of proto's
	dontCut  bool  // IPv4 with DF, and IPv6
	later    bool  // a fragment that is not the first
	hops     uint8
}

// parseIP reads the header of an IP packet; octets behind its length are nobody's.
func parseIP(b []byte) (h ipHeader, ok bool) {
	switch h.typ = TypeOf(b); {
	case h.typ == IPv4 && len(b) >= ipv4Len:
		h.header = int(b[0]&0xf) * 4
		h.length = int(binary.BigEndian.Uint16(b[2:]))
		flags := binary.BigEndian.Uint16(b[6:])
		h.dontCut, h.later = flags&0x4000 != 0, flags&0x1fff != 0
		h.hops, h.proto = b[8], b[9]
		h.src, h.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		return h, h.header >= ipv4Len && h.length >= h.header && h.length <= len(b)
	case h.typ == IPv6 && len(b) >= ipv6Len:
		h.header, h.dontCut = ipv6Len, true
		h.length = ipv6Len + int(binary.BigEndian.Uint16(b[4:]))
		h.proto, h.hops = b[6], b[7]
		h.src, h.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		if h.length > len(b) {
			return h, false
		}
		if h.proto == 0 && h.length >= ipv6Len+8 { // hop-by-hop options: MLD's router alert
			if n := 8 + 8*int(b[ipv6Len+1]); ipv6Len+n <= h.length {
				h.proto, h.header = b[ipv6Len], ipv6Len+n
			}
		}
		return h, true
	}
	return h, false
}

// body is what is behind the header of b, which parseIP has read.
func (h *ipHeader) body(b []byte) []byte { return b[h.header:h.length] }

// sum is the Internet checksum of b, begun with start.
func sum(start uint32, b []byte) uint16 {
	s := uint64(start)
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// pseudo is the sum of the pseudo header of an ICMPv6 message of n octets.
func pseudo(src, dst netip.Addr, n int) uint32 {
	var s uint32
	for _, a := range []netip.Addr{src, dst} {
		b := a.As16()
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	return s + uint32(n) + protoICMPv6
}

// icmpv6 is a packet with an ICMPv6 message, whose checksum it fills in.
func icmpv6(src, dst netip.Addr, hops uint8, msg []byte) []byte {
	b := make([]byte, ipv6Len, ipv6Len+len(msg))
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], uint16(len(msg)))
	b[6], b[7] = protoICMPv6, hops
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	msg[2], msg[3] = 0, 0
	binary.BigEndian.PutUint16(msg[2:], sum(pseudo(src, dst, len(msg)), msg))
	return append(b, msg...)
}

// Errors that the host is told of a packet that cannot go.
type icmpError struct{ type4, code4, type6, code6 uint8 }

var (
	tooBig      = icmpError{3, 4, 2, 0}
	unreachable = icmpError{3, 1, 1, 3}
)

// complain is the ICMP error for the sender of p; nil: there must be none. It comes from where p
// was to go: a host drops what claims to come from itself.
func complain(p []byte, h *ipHeader, e icmpError, mtu int) []byte {
	if h.dst.IsMulticast() || h.src.IsMulticast() || h.src.IsUnspecified() || h.later {
		return nil
	}
	const most4, most6 = ipv4Len + 8 + 64, minMTU6 - ipv6Len - 8
	if h.typ == IPv6 {
		if h.proto == protoICMPv6 && (h.header >= h.length || p[h.header] < 128) {
			return nil // of an error there is none
		}
		msg := make([]byte, 8, 8+most6)
		msg[0], msg[1] = e.type6, e.code6
		binary.BigEndian.PutUint32(msg[4:], uint32(mtu))
		return icmpv6(h.dst, h.src, 64, append(msg, p[:min(h.length, most6)]...))
	}
	if h.proto == protoICMP && (h.header >= h.length || p[h.header] != 0 && p[h.header] != 8) {
		return nil
	}
	quoted := p[:min(h.length, h.header+most4)]
	b := make([]byte, ipv4Len+8, ipv4Len+8+len(quoted))
	b[0], b[8], b[9] = 0x45, 64, protoICMP
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	src, dst := h.dst.As4(), h.src.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[10:], sum(0, b[:ipv4Len]))
	msg := b[ipv4Len:]
	msg[0], msg[1] = e.type4, e.code4
	binary.BigEndian.PutUint16(msg[6:], uint16(mtu))
	b = append(b, quoted...)
	binary.BigEndian.PutUint16(b[ipv4Len+2:], sum(0, b[ipv4Len:]))
	return b
}

// cut is p, an IPv4 packet, in fragments of at most mtu octets (RFC 791, section 2.3). Options are
// in the first only.
func cut(p []byte, h *ipHeader, mtu int) (fragments [][]byte) {
	field := binary.BigEndian.Uint16(p[6:])
	for at, header := h.header, h.header; at < h.length; header = ipv4Len {
		n := min(h.length-at, (mtu-header)&^7)
		last := at+n == h.length
		b := append(make([]byte, 0, header+n), p[:header]...)
		b[0] = 4<<4 | byte(header/4)
		b = append(b, p[at:at+n]...)
		f := field + uint16(at-h.header)/8
		if !last {
			f |= 0x2000
		}
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		binary.BigEndian.PutUint16(b[6:], f)
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], sum(0, b[:header]))
		fragments = append(fragments, b)
		at += n
	}
	return fragments
}
