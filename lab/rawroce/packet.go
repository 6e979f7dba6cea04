// Package rawroce is a RoCEv2 peer made by hand: it builds any packet and can lie in any field, and
// holds each packet that it is sent to the rules for packets. Tests use it against a device.
//
// It shares no code with package roce and its rooms, so that it can disagree with them: the octets
// are built and read from the figures of the InfiniBand Architecture Specification, volume 1,
// chapter 9 and annex A17, alone.
//
//	b := rawroce.Packet{Src: own, Dst: device, Opcode: 0x0a, QPN: qpn, PSN: 5, Ack: rawroce.AckReq,
//		Ext: rawroce.RETH(va, rkey, 4), Payload: []byte("abcd")}.Bytes()
//	answer, err := rawroce.Read(packet)
package rawroce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// Bits of a BTH.
const (
	Solicited = 0x80 // of Flags
	Migrated  = 0x40
	AckReq    = 0x80 // of Ack
)

// Opcodes of reliable connections that tests send.
const (
	SendFirst  = 0x00
	SendOnly   = 0x04
	WriteFirst = 0x06
	WriteOnly  = 0x0a
	WriteImm   = 0x0b
	ReadReq    = 0x0c
	ReadOnly   = 0x10
	Ack        = 0x11
	FetchAdd   = 0x14
	UDSendOnly = 0x64
	CNP        = 0x81
)

// A Packet is one to be sent, or one that has come.
type Packet struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16 // to be sent: 0 stands for 0xc0de and 4791
	ID               uint16 // of IPv4
	TOS, TTL         uint8  // to be sent: TTL 0 stands for 64
	Options          []byte // of IPv4, a multiple of four octets

	Opcode  uint8
	Flags   uint8  // solicited event, migrated, version; the pad count is added to it
	PKey    uint16 // to be sent: 0 stands for 0xffff
	Bits    uint8  // FECN, BECN and six reserved bits
	QPN     uint32
	Ack     uint8 // AckReq and seven reserved bits
	PSN     uint32
	Ext     []byte // extension headers; of a packet that has come, the payload is Payload
	Payload []byte
	Pad     []byte // to be sent, nil: what the payload wants, of zero
}

// RETH is the extension header of a Write or a Read.
func RETH(va uint64, rkey, length uint32) []byte {
	b := binary.BigEndian.AppendUint64(nil, va)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, rkey), length)
}

// AETH is the extension header of an answer.
func AETH(syndrome uint8, msn uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(syndrome)<<24|msn&0xffffff)
}

// DETH is the extension header of a datagram.
func DETH(qkey, qpn uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, qkey), qpn)
}

// AtomicETH is the extension header of an atomic.
func AtomicETH(va uint64, rkey uint32, swap, compare uint64) []byte {
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, va), rkey)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, swap), compare)
}

func or16(v *uint16, d uint16) {
	if *v == 0 {
		*v = d
	}
}

// Bytes is p from the IP header to the ICRC, which is right, as are all lengths and the checksum of
// IPv4.
func (p Packet) Bytes() []byte {
	be := binary.BigEndian
	or16(&p.SrcPort, 0xc0de)
	or16(&p.DstPort, 4791)
	or16(&p.PKey, 0xffff)
	if p.TTL == 0 {
		p.TTL = 64
	}
	if p.Pad == nil {
		p.Pad = make([]byte, -len(p.Payload)&3)
	}
	data := []byte{p.Opcode, p.Flags | uint8(len(p.Pad))<<4}
	data = be.AppendUint16(data, p.PKey)
	data = be.AppendUint32(data, uint32(p.Bits)<<24|p.QPN)
	data = be.AppendUint32(data, uint32(p.Ack)<<24|p.PSN&0xffffff)
	data = append(append(append(data, p.Ext...), p.Payload...), p.Pad...)
	udp := be.AppendUint16(be.AppendUint16(nil, p.SrcPort), p.DstPort)
	udp = be.AppendUint16(udp, uint16(8+len(data)+4))
	udp = append(append(udp, 0, 0), data...)
	var b []byte
	if p.Dst.Is4() {
		head := 20 + len(p.Options)
		b = []byte{0x40 | byte(head/4), p.TOS}
		b = be.AppendUint16(b, uint16(head+len(udp)+4))
		b = be.AppendUint16(b, p.ID)
		b = append(b, 0x40, 0, p.TTL, 17, 0, 0)
		b = append(append(append(b, p.Src.AsSlice()...), p.Dst.AsSlice()...), p.Options...)
		FixIPv4(b)
	} else {
		b = be.AppendUint32(nil, 6<<28|uint32(p.TOS)<<20)
		b = be.AppendUint16(b, uint16(len(udp)+4))
		b = append(append(append(b, 17, p.TTL), p.Src.AsSlice()...), p.Dst.AsSlice()...)
	}
	b = append(b, udp...)
	return binary.LittleEndian.AppendUint32(b, icrc(b))
}

// FixIPv4 makes the checksum of an IPv4 header.
func FixIPv4(b []byte) {
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^Sum(b[:int(b[0]&15)*4]))
}

// Sum is the checksum of IP before it is complemented: of octets with a right one it is 0xffff.
func Sum(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s>>16 != 0 { // a carry may make another one
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// FixICRC makes the ICRC of b anew, after something in it was changed.
func FixICRC(b []byte) {
	n := len(b) - 4
	binary.LittleEndian.PutUint32(b[n:], icrc(b[:n]))
}

// HeadLen is the length of the IP header at b.
func HeadLen(b []byte) int {
	if b[0]>>4 == 6 {
		return 40
	}
	return int(b[0]&15) * 4
}

// icrc is the invariant CRC of b, a packet up to its ICRC.
func icrc(b []byte) uint32 {
	m := append([]byte{255, 255, 255, 255, 255, 255, 255, 255}, b...)
	ip := m[8:]
	ones := func(at ...int) {
		for _, i := range at {
			if i < len(ip) {
				ip[i] = 0xff
			}
		}
	}
	n := HeadLen(b)
	if b[0]>>4 == 6 {
		ip[0] |= 0x0f
		ones(1, 2, 3, 7)
	} else {
		ones(1, 8, 10, 11)
	}
	ones(n+6, n+7, n+8+4)
	return crc32.ChecksumIEEE(m)
}

// extLen is how many octets of extension headers follow the BTH of each opcode that may come.
var extLen = map[uint8]int{
	0x00: 0, 0x01: 0, 0x02: 0, 0x03: 4, 0x04: 0, 0x05: 4, 0x06: 16, 0x07: 0, 0x08: 0, 0x09: 4,
	0x0a: 16, 0x0b: 20, 0x0c: 16, 0x0d: 4, 0x0e: 0, 0x0f: 4, 0x10: 4, 0x11: 4, 0x12: 12, 0x13: 28,
	0x14: 28, 0x16: 4, 0x17: 4, 0x20: 0, 0x21: 0, 0x22: 0, 0x23: 4, 0x24: 0, 0x25: 4, 0x26: 16,
	0x27: 0, 0x28: 0, 0x29: 4, 0x2a: 16, 0x2b: 20, 0x64: 8, 0x65: 12, 0x81: 16,
}

// Read takes a packet apart that somebody has sent, from the IP header on, and holds it to what is
// a must for every packet, whatever it is about: IPv4 without options and with DF, exact lengths,
// port 4791, version 0, reserved bits 0, padding of zero where it has to be, and the ICRC.
func Read(b []byte) (p Packet, err error) {
	be := binary.BigEndian
	if len(b) < 20+8+12+4 {
		return p, fmt.Errorf("%d octets", len(b))
	}
	n, least := HeadLen(b), HeadLen(b)+8+12+4
	switch b[0] >> 4 {
	case 4:
		total := int(be.Uint16(b[2:]))
		switch {
		case n != 20 || be.Uint16(b[6:]) != 0x4000 || b[9] != 17:
			return p, fmt.Errorf("IPv4 header % x: options, no DF, or not UDP", b[:20])
		case total > len(b) || total < least:
			return p, fmt.Errorf("IPv4 length %d of %d", total, len(b))
		case Sum(b[:20]) != 0xffff:
			return p, errors.New("wrong IPv4 checksum")
		}
		b = b[:total]
		p.TOS, p.ID, p.TTL = b[1], be.Uint16(b[4:]), b[8]
		p.Src, _ = netip.AddrFromSlice(b[12:16])
		p.Dst, _ = netip.AddrFromSlice(b[16:20])
	case 6:
		total := 40 + int(be.Uint16(b[4:]))
		if total > len(b) || total < least || b[6] != 17 {
			return p, fmt.Errorf("IPv6 header % x", b[:40])
		}
		b = b[:total]
		p.TOS, p.TTL = uint8(be.Uint16(b)>>4), b[7]
		p.Src, _ = netip.AddrFromSlice(b[8:24])
		p.Dst, _ = netip.AddrFromSlice(b[24:40])
	default:
		return p, fmt.Errorf("IP of version %d", b[0]>>4)
	}
	udp := b[n:]
	p.SrcPort, p.DstPort = be.Uint16(udp), be.Uint16(udp[2:])
	switch {
	case p.DstPort != 4791:
		return p, fmt.Errorf("to port %d", p.DstPort)
	case int(be.Uint16(udp[4:])) != len(udp):
		return p, fmt.Errorf("UDP length %d of %d", be.Uint16(udp[4:]), len(udp))
	case binary.LittleEndian.Uint32(b[len(b)-4:]) != icrc(b[:len(b)-4]):
		return p, errors.New("wrong ICRC")
	}
	h := udp[8 : len(udp)-4]
	p.Opcode, p.Flags, p.PKey = h[0], h[1]&^0x30, be.Uint16(h[2:])
	p.Bits, p.QPN = h[4], be.Uint32(h[4:])&0xffffff
	p.Ack, p.PSN = h[8], be.Uint32(h[8:])&0xffffff
	ext, known := extLen[p.Opcode]
	pad := int(h[1] >> 4 & 3)
	switch {
	case !known:
		return p, fmt.Errorf("opcode %#02x", p.Opcode)
	case h[1]&0xf != 0:
		return p, fmt.Errorf("version %d", h[1]&0xf)
	case p.Bits&0x3f != 0 || p.Ack&0x7f != 0:
		return p, fmt.Errorf("reserved bits %#02x, %#02x", p.Bits, p.Ack)
	case len(h) < 12+ext+pad:
		return p, fmt.Errorf("opcode %#02x with %d octets and %d of padding", p.Opcode, len(h), pad)
	}
	p.Ext, p.Payload, p.Pad = h[12:12+ext], h[12+ext:len(h)-pad], h[len(h)-pad:]
	if (len(p.Payload)+pad)%4 != 0 || string(p.Pad) != string(make([]byte, pad)) {
		return p, fmt.Errorf("%d octets with the padding % x", len(p.Payload), p.Pad)
	}
	return p, nil
}

// Syndrome is the first octet of the AETH of an answer.
func (p *Packet) Syndrome() uint8 { return p.Ext[0] }

// String is p in a few words.
func (p Packet) String() string {
	return fmt.Sprintf("opcode %02x QP %#x PSN %#x ext % x, %d octets", p.Opcode, p.QPN, p.PSN, p.Ext,
		len(p.Payload))
}
