package netstack

import (
	"encoding/binary"
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// Numbers of Ethernet, IP and TCP that are looked at here.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8

	protoICMP     = 1
	protoTCP      = 6
	protoSCTP     = 132
	protoUDP      = 17
	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoICMPv6   = 58
	protoDestOpts = 60

	ipv4MinLen = 20
	ipv6Len    = 40
	tcpMinLen  = 20
	udpLen     = 8

	tcpTimestampLen = 12 // RFC 7323's option, and what aligns it

	tcpCsumOffset = 16
	udpCsumOffset = 6
)

// maxHeaders is the longest run of headers that is looked at: Ethernet, one tag, IPv4 and TCP with
// all their options.
const maxHeaders = etherHeaderLen + vlanTagLen + 60 + 60

// packet says where the parts of a frame lie. Offsets count from the start of the frame.
type packet struct {
	hdr      [maxHeaders]byte // a copy of the frame's first octets
	n        int              // how many
	ether    uint16           // EtherType behind a tag
	l3       int              // where the IP header begins
	l4       int              // where the transport header begins; 0 if it is not known
	end      int              // where the IP packet ends; behind it is padding
	proto    uint8            // of the transport header
	fragment bool             // the IP packet is a fragment
	later    bool             // and not the first: there is no transport header at l4
}

var (
	errShortFrame = errors.New("netstack: frame ends inside a header")
	errBadHeader  = errors.New("netstack: header lengths do not agree with the frame")
	errBadOffload = errors.New("netstack: offload fields do not agree with the frame")
)

// parse finds the parts of f. A frame that is not IP and one with more extension headers than were
// copied have l4 0 and no error.
func (p *packet) parse(f *Frame) error {
	size := f.Len()
	p.n, _ = f.buf.ReadAt(p.hdr[:min(size, maxHeaders)], 0)
	p.l4, p.end, p.proto, p.fragment, p.later = 0, size, 0, false, false
	if p.n < etherHeaderLen {
		return errShortFrame
	}
	p.l3 = etherHeaderLen
	p.ether = binary.BigEndian.Uint16(p.hdr[12:])
	if p.ether == etherVLAN || p.ether == etherQinQ {
		p.l3 += vlanTagLen
		if p.n < p.l3 {
			return errShortFrame
		}
		p.ether = binary.BigEndian.Uint16(p.hdr[16:])
	}
	switch p.ether {
	case etherIPv4:
		return p.parseIPv4(size)
	case etherIPv6:
		return p.parseIPv6(size)
	}
	return nil
}

func (p *packet) parseIPv4(size int) error {
	if p.n < p.l3+ipv4MinLen {
		return errShortFrame
	}
	ip := p.hdr[p.l3:p.n]
	ihl := int(ip[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || ihl < ipv4MinLen || total < ihl || total > size-p.l3 {
		return errBadHeader
	}
	p.end = p.l3 + total
	p.proto = ip[9]
	frag := binary.BigEndian.Uint16(ip[6:])
	p.fragment, p.later = frag&0x3fff != 0, frag&0x1fff != 0 // MF(1) offset(13)
	p.l4 = p.l3 + ihl
	return nil
}

func (p *packet) parseIPv6(size int) error {
	if p.n < p.l3+ipv6Len {
		return errShortFrame
	}
	ip := p.hdr[p.l3:p.n]
	length := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || length > size-p.l3-ipv6Len {
		return errBadHeader
	}
	p.end = p.l3 + ipv6Len + length
	p.proto = ip[6]
	for at := p.l3 + ipv6Len; ; {
		switch p.proto {
		case protoHopByHop, protoRouting, protoDestOpts: // RFC 8200, section 4
			if at+2 > min(p.n, p.end) {
				return nil // too many to look at
			}
			p.proto = p.hdr[at]
			at += (int(p.hdr[at+1]) + 1) * 8
		case protoFragment: // next(1) reserved(1) offset(13) reserved(2) M(1) identification(4)
			p.fragment = true
			if at+8 > min(p.n, p.end) {
				return nil
			}
			p.later = binary.BigEndian.Uint16(p.hdr[at+2:])&^7 != 0
			p.proto = p.hdr[at]
			p.l4 = at + 8
			return nil
		default:
			if at <= p.end {
				p.l4 = at
			}
			return nil
		}
	}
}

// tcpHeaderLen is the length of the TCP header, or an error if p is not a whole TCP segment.
func (p *packet) tcpHeaderLen() (int, error) {
	if p.l4 == 0 || p.proto != protoTCP || p.fragment {
		return 0, errBadOffload
	}
	if p.end-p.l4 < tcpMinLen || p.n-p.l4 < tcpMinLen {
		return 0, errShortFrame
	}
	n := int(p.hdr[p.l4+12]>>4) * 4
	if n < tcpMinLen || n > p.end-p.l4 || n > p.n-p.l4 {
		return 0, errBadHeader
	}
	return n, nil
}

// ipv4HeaderValid reports whether the checksum of the IPv4 header is right.
func (p *packet) ipv4HeaderValid() bool {
	return checksum.Checksum(p.hdr[p.l3:p.l4], 0) == 0xffff
}

// pseudoSum is the sum over the pseudo-header of a transport packet of n octets (RFC 793, section
// 3.1; RFC 8200, section 8.1).
func (p *packet) pseudoSum(n int) uint16 {
	var sum uint16
	if p.ether == etherIPv4 {
		sum = checksum.Checksum(p.hdr[p.l3+12:p.l3+20], 0)
	} else {
		sum = checksum.Checksum(p.hdr[p.l3+8:p.l3+40], 0)
	}
	sum = checksum.Combine(sum, uint16(p.proto))
	return checksum.Combine(sum, uint16(n)) // n <= 65535: it is inside one IP packet
}

// sum is the sum over octets from to to of f.
func (f *Frame) sum(from, to int) uint16 {
	var cs checksum.Checksumer
	at := 0
	for v := range f.views() {
		lo, hi := max(from-at, 0), min(to-at, len(v))
		if lo < hi {
			cs.Add(v[lo:hi])
		}
		if at += len(v); at >= to {
			break
		}
	}
	return cs.Checksum()
}

// checksumsValid reports whether the checksums in f's headers are right, as far as they can be
// checked in one frame: of a fragment, the IP header alone. p has parsed f. The transport checksum
// is taken on trust if f says that it is valid or still partial.
func (f *Frame) checksumsValid(p *packet) bool {
	if p.ether == etherIPv4 && !p.ipv4HeaderValid() {
		return false
	}
	if f.Csum != CsumUnverified || p.l4 == 0 || p.fragment {
		return true
	}
	n := p.end - p.l4
	switch p.proto {
	case protoTCP:
	case protoUDP:
		if n < udpLen || p.n < p.l4+udpLen {
			return false
		}
		if binary.BigEndian.Uint16(p.hdr[p.l4+udpCsumOffset:]) == 0 && p.ether == etherIPv4 {
			return true // the sender made none: RFC 768
		}
		if length := int(binary.BigEndian.Uint16(p.hdr[p.l4+4:])); length >= udpLen && length < n {
			n = length
		}
	default:
		return true // ICMP is checked by the stack
	}
	return checksum.Combine(p.pseudoSum(n), f.sum(p.l4, p.l4+n)) == 0xffff
}

// check says whether f's offload fields can be relied on: cutting f and completing its checksum stay
// inside it. It looks into frames that claim an offload only.
func (f *Frame) check() error {
	n := f.Len()
	switch {
	case n < etherHeaderLen:
		return errShortFrame
	case n > MaxFrameLen:
		return errBadHeader
	case f.GSO == GSONone && f.Csum != CsumPartial:
		return nil
	}
	if f.Csum == CsumPartial && int(f.CsumStart)+int(f.CsumOffset) > n-2 {
		return errBadOffload
	}
	if f.GSO == GSONone {
		if f.GSOSize != 0 || int(f.CsumStart) < etherHeaderLen {
			return errBadOffload
		}
		return nil
	}
	var p packet
	if err := p.parse(f); err != nil {
		return err
	}
	want := uint16(etherIPv4)
	if f.GSO == GSOTCPv6 {
		want = etherIPv6
	}
	tcp, err := p.tcpHeaderLen()
	switch {
	case err != nil:
		return err
	case f.GSO > GSOTCPv6 || p.ether != want,
		f.Csum != CsumPartial || int(f.CsumStart) != p.l4 || f.CsumOffset != tcpCsumOffset,
		f.GSOSize == 0 || p.end != n || p.l4+tcp == n:
		return errBadOffload
	}
	f.HdrLen = uint16(p.l4 + tcp) // the sender's is a hint only (VIRTIO 1.2, section 5.1.6.2)
	return nil
}

// The smallest path MTUs that are believed. Every IPv6 link has 1280 (RFC 8200, section 5); for IPv4
// Linux draws the line at 552.
const (
	minPathMTUv4 = 552
	minPathMTUv6 = MinMTU
)

// absurdTooBig reports whether f is a "packet too big" for an MTU that no sensible path has. gVisor
// would take anything and send segments of one octet from then on.
func (p *packet) absurdTooBig() bool {
	if p.l4 == 0 || p.later || p.n < p.l4+8 {
		return false
	}
	icmp := p.hdr[p.l4 : p.l4+8] // type(1) code(1) checksum(2) and, RFC 1191 and 4443, the MTU
	switch {
	case p.ether == etherIPv4 && p.proto == protoICMP && icmp[0] == 3 && icmp[1] == 4:
		return binary.BigEndian.Uint16(icmp[6:]) < minPathMTUv4
	case p.ether == etherIPv6 && p.proto == protoICMPv6 && icmp[0] == 2:
		return binary.BigEndian.Uint32(icmp[4:]) < minPathMTUv6
	}
	return false
}
