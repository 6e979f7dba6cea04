package frame

import (
	"encoding/binary"
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// Numbers of Ethernet, IP and TCP that are looked at here.
const (
	EtherIPv4 = 0x0800
	EtherARP  = 0x0806
	EtherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8

	ProtoICMP       = 1
	ProtoTCP        = 6
	ProtoUDP        = 17
	ProtoSCTP       = 132
	protoHopByHop   = 0
	protoRouting    = 43
	protoFragment   = 44
	ProtoICMPv6     = 58
	protoDestOpts   = 60
	protoExperiment = 253 // RFC 3692; gVisor has an extension header there

	IPv4MinLen = 20
	IPv6Len    = 40
	TCPMinLen  = 20
	udpLen     = 8

	TCPTimestampLen = 12 // RFC 7323's option, and what aligns it

	tcpCsumOffset = 16
	udpCsumOffset = 6
)

// maxHeaders is the longest run of headers that is looked at: Ethernet, one tag, IPv4 and TCP with
// all their options.
const maxHeaders = EtherHeaderLen + vlanTagLen + 60 + 60

// A Packet says where the parts of a frame lie. Offsets count from the start of the frame.
type Packet struct {
	Headers   [maxHeaders]byte // a copy of the frame's first octets
	N         int              // how many of them there are
	EtherType uint16           // EtherType behind a tag
	L3        int              // where the IP header begins
	L4        int              // where the transport header begins; 0 if it is not known
	End       int              // where the IP packet ends; behind it is padding
	Protocol  uint8            // of the transport header
	Fragment  bool             // the IP packet is a fragment
	NotFirst  bool             // and not the first: there is no transport header at L4
}

var (
	errShort      = errors.New("netstack: frame ends inside a header")
	errBadHeader  = errors.New("netstack: header lengths do not agree with the frame")
	errBadOffload = errors.New("netstack: offload fields do not agree with the frame")
)

// Parse finds the parts of f. A frame that is not IP, one with more extension headers than were
// copied and one with extension headers behind that of a fragment have L4 0 and no error.
func (p *Packet) Parse(f *Frame) error {
	size := f.Len()
	p.N, _ = f.Buffer.ReadAt(p.Headers[:min(size, maxHeaders)], 0)
	p.L4, p.End, p.Protocol, p.Fragment, p.NotFirst = 0, size, 0, false, false
	if p.N < EtherHeaderLen {
		return errShort
	}
	p.L3 = EtherHeaderLen
	p.EtherType = binary.BigEndian.Uint16(p.Headers[12:])
	if p.EtherType == etherVLAN || p.EtherType == etherQinQ {
		p.L3 += vlanTagLen
		if p.N < p.L3 {
			return errShort
		}
		p.EtherType = binary.BigEndian.Uint16(p.Headers[16:])
	}
	switch p.EtherType {
	case EtherIPv4:
		return p.parseIPv4(size)
	case EtherIPv6:
		return p.parseIPv6(size)
	}
	return nil
}

func (p *Packet) parseIPv4(size int) error {
	if p.N < p.L3+IPv4MinLen {
		return errShort
	}
	ip := p.Headers[p.L3:p.N]
	ihl := int(ip[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || ihl < IPv4MinLen || total < ihl || total > size-p.L3 {
		return errBadHeader
	}
	p.End = p.L3 + total
	p.Protocol = ip[9]
	frag := binary.BigEndian.Uint16(ip[6:])
	p.Fragment, p.NotFirst = frag&0x3fff != 0, frag&0x1fff != 0 // MF(1) offset(13)
	p.L4 = p.L3 + ihl
	return nil
}

func (p *Packet) parseIPv6(size int) error {
	if p.N < p.L3+IPv6Len {
		return errShort
	}
	ip := p.Headers[p.L3:p.N]
	length := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || length > size-p.L3-IPv6Len {
		return errBadHeader
	}
	p.End = p.L3 + IPv6Len + length
	p.Protocol = ip[6]
	for at := p.L3 + IPv6Len; ; {
		switch p.Protocol {
		case protoHopByHop, protoRouting, protoDestOpts: // RFC 8200, section 4
			if at+2 > min(p.N, p.End) {
				return nil // too many to look at
			}
			p.Protocol = p.Headers[at]
			at += (int(p.Headers[at+1]) + 1) * 8
		case protoFragment: // next(1) reserved(1) offset(13) reserved(2) M(1) identification(4)
			p.Fragment = true
			if at+8 > min(p.N, p.End) {
				return nil
			}
			p.NotFirst = binary.BigEndian.Uint16(p.Headers[at+2:])&^7 != 0
			p.Protocol = p.Headers[at]
			if !isExtension(p.Protocol) {
				p.L4 = at + 8
			}
			return nil
		case protoExperiment:
			return nil
		default:
			if at <= p.End {
				p.L4 = at
			}
			return nil
		}
	}
}

// isExtension reports whether protocol is an extension header of IPv6, behind which there is more.
func isExtension(protocol uint8) bool {
	switch protocol {
	case protoHopByHop, protoRouting, protoFragment, protoDestOpts, protoExperiment:
		return true
	}
	return false
}

// TCPHeaderLen is the length of the TCP header, or an error if p is not a whole TCP segment.
func (p *Packet) TCPHeaderLen() (int, error) {
	if p.L4 == 0 || p.Protocol != ProtoTCP || p.Fragment {
		return 0, errBadOffload
	}
	if p.End-p.L4 < TCPMinLen || p.N-p.L4 < TCPMinLen {
		return 0, errShort
	}
	n := int(p.Headers[p.L4+12]>>4) * 4
	if n < TCPMinLen || n > p.End-p.L4 || n > p.N-p.L4 {
		return 0, errBadHeader
	}
	return n, nil
}

// ipv4HeaderValid reports whether the checksum of the IPv4 header is right.
func (p *Packet) ipv4HeaderValid() bool {
	return checksum.Checksum(p.Headers[p.L3:p.L4], 0) == 0xffff
}

// pseudoSum is the sum over the pseudo-header of a transport packet of n octets (RFC 793, section
// 3.1; RFC 8200, section 8.1).
func (p *Packet) pseudoSum(n int) uint16 {
	var sum uint16
	if p.EtherType == EtherIPv4 {
		sum = checksum.Checksum(p.Headers[p.L3+12:p.L3+20], 0)
	} else {
		sum = checksum.Checksum(p.Headers[p.L3+8:p.L3+40], 0)
	}
	sum = checksum.Combine(sum, uint16(p.Protocol))
	return checksum.Combine(sum, uint16(n)) // n <= 65535: it is inside one IP packet
}

// sum is the sum over octets from to to of f.
func (f *Frame) sum(from, to int) uint16 {
	var cs checksum.Checksumer
	at := 0
	for v := range f.Views() {
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

// ChecksumsValidOrNone is ChecksumsValid of a UDP datagram for who takes one without a checksum
// over IPv6, too (RFC 6935, section 5).
func (f *Frame) ChecksumsValidOrNone(p *Packet) bool {
	if p.EtherType == EtherIPv6 && p.Protocol == ProtoUDP && p.L4 != 0 && !p.Fragment &&
		p.N >= p.L4+udpLen && binary.BigEndian.Uint16(p.Headers[p.L4+udpCsumOffset:]) == 0 {
		return true
	}
	return f.ChecksumsValid(p)
}

// ChecksumsValid reports whether the checksums in f's headers are right, as far as they can be
// checked in one frame: of a fragment, the IP header alone. p has parsed f. The transport checksum
// is taken on trust if f says that it is valid or still partial.
func (f *Frame) ChecksumsValid(p *Packet) bool {
	if p.EtherType == EtherIPv4 && !p.ipv4HeaderValid() {
		return false
	}
	if f.Csum != CsumUnverified || p.L4 == 0 || p.Fragment {
		return true
	}
	n := p.End - p.L4
	switch p.Protocol {
	case ProtoTCP:
	case ProtoUDP:
		if n < udpLen || p.N < p.L4+udpLen {
			return false
		}
		if binary.BigEndian.Uint16(p.Headers[p.L4+udpCsumOffset:]) == 0 && p.EtherType == EtherIPv4 {
			return true // the sender made none: RFC 768
		}
		if length := int(binary.BigEndian.Uint16(p.Headers[p.L4+4:])); length >= udpLen && length < n {
			n = length
		}
	default:
		return true // ICMP is checked by the stack
	}
	return checksum.Combine(p.pseudoSum(n), f.sum(p.L4, p.L4+n)) == 0xffff
}

// Check says whether f's offload fields can be relied on: cutting f and completing its checksum
// stay inside it. It looks into frames that claim an offload only.
func (f *Frame) Check() error {
	n := f.Len()
	switch {
	case n < EtherHeaderLen:
		return errShort
	case n > MaxLen:
		return errBadHeader
	case f.GSO == GSONone && f.Csum != CsumPartial:
		return nil
	}
	if f.Csum == CsumPartial && int(f.CsumStart)+int(f.CsumOffset) > n-2 {
		return errBadOffload
	}
	if f.GSO == GSONone {
		if f.GSOSize != 0 || int(f.CsumStart) < EtherHeaderLen {
			return errBadOffload
		}
		return nil
	}
	var p Packet
	if err := p.Parse(f); err != nil {
		return err
	}
	if f.GSO == GSOUDP {
		return f.checkUDP(&p)
	}
	want := uint16(EtherIPv4)
	if f.GSO == GSOTCPv6 {
		want = EtherIPv6
	}
	tcp, err := p.TCPHeaderLen()
	switch {
	case err != nil:
		return err
	case f.GSO > GSOUDP || p.EtherType != want,
		f.Csum != CsumPartial || int(f.CsumStart) != p.L4 || f.CsumOffset != tcpCsumOffset,
		f.GSOSize == 0 || p.End != n || p.L4+tcp == n:
		return errBadOffload
	}
	f.HdrLen = uint16(p.L4 + tcp) // the sender's is a hint only (VIRTIO 1.2, section 5.1.6.2)
	return nil
}

// checkUDP is Check of a super-frame of UDP, which p has parsed.
func (f *Frame) checkUDP(p *Packet) error {
	switch n := f.Len(); {
	case p.L4 == 0 || p.Protocol != ProtoUDP || p.Fragment || p.N < p.L4+udpLen,
		f.Csum != CsumPartial || int(f.CsumStart) != p.L4 || f.CsumOffset != udpCsumOffset,
		f.GSOSize == 0 || p.End != n || n <= p.L4+udpLen,
		int(binary.BigEndian.Uint16(p.Headers[p.L4+4:])) != n-p.L4:
		return errBadOffload
	}
	f.HdrLen = uint16(p.L4 + udpLen)
	return nil
}
