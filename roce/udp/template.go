package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/roce/packet"
)

// Limits and defaults of a Flow.
const (
	// MinSourcePort is the least of the source ports that RoCEv2 sends from.
	MinSourcePort = 0xc000

	DefaultHopLimit = 64
)

// A Flow is what the packets of a queue pair to one peer, or of an address handle, have in common.
type Flow struct {
	Src, Dst netip.Addr // both IPv4 or both IPv6, without a zone
	// SrcPort is the same for the life of a queue pair, so that routers with several ways send all of
	// it over one of them: SourcePort has one.
	SrcPort      uint16
	TrafficClass uint8  // a DSCP in the upper six bits, ECN in the lower two
	HopLimit     uint8  // 0: DefaultHopLimit
	FlowLabel    uint32 // of IPv6, 20 bits
}

// SourcePort is the source port of the packets of a queue pair: from MinSourcePort on.
func SourcePort(qpn packet.QPN) uint16 {
	// The lower bits of QPNs in a row, and the upper ones, too.
	return MinSourcePort | uint16(qpn^qpn>>14)&(1<<14-1)
}

// A Template makes the headers of a Flow's packets. It belongs to one owner at a time.
type Template struct {
	b  [IPv6Len + HeaderLen]byte
	n  int
	id uint16 // of the next IPv4 packet
}

// NewTemplate makes one. It panics if the addresses are not of one family.
func NewTemplate(f Flow) Template {
	be := binary.BigEndian
	var t Template
	if f.HopLimit == 0 {
		f.HopLimit = DefaultHopLimit
	}
	b := t.b[:0]
	switch {
	case f.Src.Is4() && f.Dst.Is4():
		src, dst := f.Src.As4(), f.Dst.As4()
		b = append(b, 0x45, f.TrafficClass)
		b = be.AppendUint32(b, 0)                          // length and identification
		b = append(b, 0x40, 0, f.HopLimit, protocol, 0, 0) // do not fragment
		b = append(append(b, src[:]...), dst[:]...)
		t.id = be.Uint16(dst[2:]) ^ f.SrcPort
	case f.Src.Is6() && f.Dst.Is6() && !f.Src.Is4In6() && !f.Dst.Is4In6():
		src, dst := f.Src.As16(), f.Dst.As16()
		b = be.AppendUint32(b, 6<<28|uint32(f.TrafficClass)<<20|f.FlowLabel&0xfffff)
		b = append(b, 0, 0, protocol, f.HopLimit)
		b = append(append(b, src[:]...), dst[:]...)
	default:
		panic(fmt.Sprintf("udp: a flow from %v to %v", f.Src, f.Dst))
	}
	b = be.AppendUint16(b, f.SrcPort)
	b = be.AppendUint16(b, packet.Port)
	t.n = len(be.AppendUint32(b, 0)) // length; no checksum: RFC 768, RFC 6935
	return t
}

// Len is how many octets Append adds.
func (t *Template) Len() int { return t.n }

// Append adds the headers to b, which is empty: a packet begins. They lack what Finish fills in.
func (t *Template) Append(b []byte) []byte { return append(b, t.b[:t.n]...) }

// Finish makes a whole packet of b, which is what Append has added, and behind it all from the BTH
// to the padding: it fills in the lengths, IPv4's identification, one more than that of the packet
// before, and checksum, and adds the ICRC.
func (t *Template) Finish(b []byte) []byte {
	t.setLengths(b, len(b)+packet.ICRCLen)
	c, _ := packet.Of(b)
	return c.Append(b)
}

// Mark has b, a packet that Append has begun and Finish has not seen, say that it has experienced
// congestion.
func Mark(b []byte) {
	if b[0]>>4 == 6 {
		b[1] |= CE << 4
	} else {
		b[1] |= CE
	}
}

// IP makes the IP header alone, of b, which is empty, of a packet that has n octets from the BTH to
// the padding: for who needs no packet.
func (t *Template) IP(b []byte, n int) []byte {
	b = t.Append(b)
	t.setLengths(b, t.n+n+packet.ICRCLen)
	return b[:t.n-HeaderLen]
}

// setLengths fills in what depends on n, the octets of the packet.
func (t *Template) setLengths(b []byte, n int) {
	be := binary.BigEndian
	if t.n == IPv4Len+HeaderLen {
		be.PutUint16(b[2:], uint16(n))
		be.PutUint16(b[4:], t.id)
		t.id++
		var sum uint32
		for i := 0; i < IPv4Len; i += 2 {
			sum += uint32(be.Uint16(b[i:]))
		}
		sum = sum&0xffff + sum>>16
		be.PutUint16(b[10:], ^uint16(sum+sum>>16))
	} else {
		be.PutUint16(b[4:], uint16(n-IPv6Len))
	}
	be.PutUint16(b[t.n-4:], uint16(n-t.n+HeaderLen))
}
