package ipoib

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// HeaderLen is how many octets of encapsulation are in front of each packet (RFC 4391, section 6):
// its type, and two octets that are sent as zero and not looked at.
const HeaderLen = 4

// A Type says what a frame holds: an EtherType.
type Type uint16

// The types of RFC 4391. On a connection only the two of IP are taken (RFC 4755, section 4).
const (
	IPv4 Type = 0x0800
	ARP  Type = 0x0806
	RARP Type = 0x8035
	IPv6 Type = 0x86DD
)

// PutHeader writes the encapsulation of a packet of type t into the first HeaderLen octets of b.
func PutHeader(b []byte, t Type) {
	binary.BigEndian.PutUint16(b, uint16(t))
	b[2], b[3] = 0, 0
}

// ParseHeader takes a frame apart; false: it is too short to have a header.
func ParseHeader(b []byte) (t Type, packet []byte, ok bool) {
	if len(b) < HeaderLen {
		return 0, nil, false
	}
	return Type(binary.BigEndian.Uint16(b)), b[HeaderLen:], true
}

// TypeOf is the type of an IP packet by its first octet; 0 of none.
func TypeOf(packet []byte) Type {
	if len(packet) == 0 {
		return 0
	}
	switch packet[0] >> 4 {
	case 4:
		return IPv4
	case 6:
		return IPv6
	}
	return 0
}

func frame(t Type, packet []byte) []byte {
	b := make([]byte, HeaderLen, HeaderLen+len(packet))
	PutHeader(b, t)
	return append(b, packet...)
}

// A GID names a port, or a multicast group.
type GID [16]byte

// Addr is g as an IPv6 address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g) }

// network is the first half of g, but all of it if it is an IPv4 address.
func (g GID) network() GID {
	if !g.Addr().Is4In6() {
		clear(g[8:])
	}
	return g
}

// LinkAddrLen is how many octets a LinkAddr has on the wire.
const LinkAddrLen = 20

// Flags of a LinkAddr say which kinds of connections its interface takes (RFC 4755, section 3.1):
// this one those of FlagRC, or none (docs/decisions.md#I8).
const (
	FlagRC = 0x80
	FlagUC = 0x40
)

// MaxQPN is the largest number of a queue pair; as the destination of a packet it is all members of
// a group.
const MaxQPN = 1<<24 - 1

// A LinkAddr is the link-layer address of an interface: its UD queue pair, its port, and flags
// (RFC 4391, section 9.1.1).
type LinkAddr struct {
	Flags uint8
	QPN   uint32 // 24 bits
	GID   GID
}

// Append adds a to b as it is on the wire.
func (a LinkAddr) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(a.Flags)<<24|a.QPN&MaxQPN)
	return append(b, a.GID[:]...)
}

// ParseLinkAddr reads the first LinkAddrLen octets of b. Flags that nobody has defined are dropped.
// False: b is too short, or this is no interface's address.
func ParseLinkAddr(b []byte) (a LinkAddr, ok bool) {
	if len(b) < LinkAddrLen {
		return a, false
	}
	a = LinkAddr{Flags: b[0] & (FlagRC | FlagUC), QPN: binary.BigEndian.Uint32(b) & MaxQPN,
		GID: GID(b[4:])}
	return a, a.valid()
}

// valid says that packets can be sent to a: it is one port's, and neither the queue pair of
// management, nor the one of groups.
func (a LinkAddr) valid() bool {
	return a.QPN > 1 && a.QPN < MaxQPN && a.GID != GID{} && a.GID[0] != 0xff
}

// Bare is a without flags: what tells interfaces apart.
func (a LinkAddr) Bare() LinkAddr {
	a.Flags = 0
	return a
}

// Compare is below, at or above 0 as a, without flags, is less than b, equal to it or more, from
// the most significant octet on (RFC 4755, section 3.3).
func (a LinkAddr) Compare(b LinkAddr) int {
	var x, y [LinkAddrLen]byte
	return bytes.Compare(a.Bare().Append(x[:0]), b.Bare().Append(y[:0]))
}
