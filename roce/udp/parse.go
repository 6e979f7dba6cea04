package udp

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vrnic/vrnic/roce/packet"
)

// Octets of the headers.
const (
	HeaderLen = 8  // UDP's
	IPv4Len   = 20 // IPv4's without options
	IPv6Len   = 40

	// MaxHeaderLen is the most octets in front of a BTH: IPv4 with all options it can have.
	MaxHeaderLen = 60 + HeaderLen

	// minLen is the least that a UDP datagram of RoCE has, with its own header.
	minLen = HeaderLen + packet.BTHLen + packet.ICRCLen

	protocol = 17
)

// ECN codepoints: the lower two bits of a traffic class (RFC 3168).
const (
	ECNMask = 3
	ECT0    = 2 // the sender takes note of congestion
	CE      = 3 // congestion was experienced
)

// A Packet is a RoCEv2 packet as it has come.
type Packet struct {
	Src, Dst netip.Addr
	// Header is the IP header, with its options if it is IPv4, and the UDP header behind it.
	Header []byte
	// Datagram is what UDP carries: from the BTH to the ICRC.
	Datagram []byte
}

// Why Parse refuses a packet.
var (
	ErrIP       = errors.New("the packet has no IP header of IPv4 or IPv6, or is cut")
	ErrFragment = errors.New("the packet is a fragment")
	ErrNotRoCE  = errors.New("the packet is not UDP to the port of RoCEv2")
	ErrLength   = errors.New("the packet's UDP length is not possible")
)

// Parse takes a packet apart: ip begins with the IP header, and may have octets behind the packet,
// which do not count, as those between the end of the UDP datagram and that of the packet do not.
// The result is parts of ip. A fragment and an IPv6 packet with extension headers are refused.
// Neither checksum is looked at, nor the ICRC: see Packet.Valid.
func Parse(ip []byte) (p Packet, err error) {
	if len(ip) < IPv4Len {
		return Packet{}, ErrIP
	}
	be := binary.BigEndian
	var head, total int
	switch ip[0] >> 4 {
	case 4:
		head, total = int(ip[0]&0xf)*4, int(be.Uint16(ip[2:]))
		switch {
		case head < IPv4Len || total < head || total > len(ip):
			return Packet{}, ErrIP
		case be.Uint16(ip[6:])&0x3fff != 0: // more fragments (1) offset (13)
			return Packet{}, ErrFragment
		case ip[9] != protocol:
			return Packet{}, ErrNotRoCE
		}
		p.Src, p.Dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case 6:
		if len(ip) < IPv6Len {
			return Packet{}, ErrIP
		}
		head, total = IPv6Len, IPv6Len+int(be.Uint16(ip[4:]))
		switch {
		case total > len(ip):
			return Packet{}, ErrIP
		case ip[6] != protocol:
			return Packet{}, ErrNotRoCE
		}
		p.Src, p.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return Packet{}, ErrIP
	}
	if total < head+HeaderLen {
		return Packet{}, ErrLength
	}
	udp := ip[head:total]
	if be.Uint16(udp[2:]) != packet.Port {
		return Packet{}, ErrNotRoCE
	}
	n := int(be.Uint16(udp[4:]))
	if n < minLen || n > len(udp) {
		return Packet{}, ErrLength
	}
	p.Header, p.Datagram = ip[:head+HeaderLen:head+HeaderLen], udp[HeaderLen:n:n]
	return p, nil
}

// Valid reports whether the ICRC is right.
func (p *Packet) Valid() bool {
	var b [MaxHeaderLen + packet.BTHLen]byte
	n := copy(b[:MaxHeaderLen], p.Header)
	n += copy(b[n:n+packet.BTHLen], p.Datagram)
	c, ok := packet.Start(b[:n])
	end := len(p.Datagram) - packet.ICRCLen
	if !ok || end < packet.BTHLen {
		return false
	}
	c = c.Add(p.Datagram[packet.BTHLen:end])
	return uint32(c) == binary.LittleEndian.Uint32(p.Datagram[end:])
}

// TrafficClass is the IP header's: a DSCP in the upper six bits, ECN in the lower two.
func (p *Packet) TrafficClass() uint8 {
	if p.Header[0]>>4 == 4 {
		return p.Header[1]
	}
	return p.Header[0]<<4 | p.Header[1]>>4
}

// HopLimit is IPv6's, or IPv4's time to live.
func (p *Packet) HopLimit() uint8 {
	if p.Header[0]>>4 == 4 {
		return p.Header[8]
	}
	return p.Header[7]
}

// FlowLabel is IPv6's, 20 bits, and 0 for IPv4.
func (p *Packet) FlowLabel() uint32 {
	if p.Header[0]>>4 == 4 {
		return 0
	}
	return binary.BigEndian.Uint32(p.Header) & 0xfffff
}

// IP is the IP header.
func (p *Packet) IP() []byte { return p.Header[:len(p.Header)-HeaderLen] }
