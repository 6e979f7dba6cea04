package mad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// AddressLen is how many octets of a REQ's or a SIDRREQ's private data are the address header; a
// program's own are behind it.
const AddressLen = 36

// A PortSpace is a space of port numbers of rdma_cm, of its own each.
type PortSpace uint8

// The port spaces (rdma_port_space).
const (
	PortSpaceIPoIB PortSpace = 0x02
	PortSpaceTCP   PortSpace = 0x06
	PortSpaceUDP   PortSpace = 0x11
	PortSpaceIB    PortSpace = 0x3f
)

// UDPQKey is the Q_Key of a QP of PortSpaceUDP, unless its program chose one.
const UDPQKey = 0x01234567

const serviceIDPrefix = 0x0000000001 // in the upper five octets

// ServiceID is the service that listens on port of ps.
func ServiceID(ps PortSpace, port uint16) uint64 {
	return serviceIDPrefix<<24 | uint64(ps)<<16 | uint64(port)
}

// ServiceOf takes a service apart; false: it is none of rdma_cm's.
func ServiceOf(id uint64) (ps PortSpace, port uint16, ok bool) {
	return PortSpace(id >> 16), uint16(id), id>>24 == serviceIDPrefix
}

// An Address is what rdma_cm says of both ends: the addresses that the program connects from and
// to, and its port; the other's is in the ServiceID.
type Address struct {
	Source, Dest netip.Addr // of one family
	Port         uint16     // the source's
}

// ErrAddress says that private data do not begin with an address header as there should be.
var ErrAddress = errors.New("the private data have no address header of rdma_cm")

// ParseAddress takes the header of private data apart; rest is the program's.
func ParseAddress(private []byte) (a Address, rest []byte, err error) {
	if len(private) < AddressLen {
		return a, nil, fmt.Errorf("%w: %d octets", ErrAddress, len(private))
	}
	version, family := private[0]>>4, private[1]>>4
	a = Address{Port: binary.BigEndian.Uint16(private[2:]), Source: addr(private[4:20], family),
		Dest: addr(private[20:36], family)}
	if version != 0 || !a.Source.IsValid() {
		return a, nil, fmt.Errorf("%w: version %d, IP version %d", ErrAddress, version, family)
	}
	return a, private[AddressLen:], nil
}

func addr(b []byte, family uint8) netip.Addr {
	switch family {
	case 4:
		return netip.AddrFrom4([4]byte(b[12:16]))
	case 6:
		return netip.AddrFrom16([16]byte(b))
	}
	return netip.Addr{}
}

// Append adds the header to b.
func (a *Address) Append(b []byte) []byte {
	family := byte(6 << 4)
	if a.Source.Is4() {
		family = 4 << 4
	}
	b = append(b, 0, family)
	b = binary.BigEndian.AppendUint16(b, a.Port)
	for _, ip := range []netip.Addr{a.Source, a.Dest} {
		if ip.Is4() {
			b = append(b, make([]byte, 12)...)
		}
		b = append(b, ip.AsSlice()...)
	}
	return b
}

// GIDOf is the GID of an address: an IPv4 one as IPv6 has it.
func GIDOf(a netip.Addr) GID { return a.As16() }

// AddrOf is the address that a GID of RoCEv2 is.
func AddrOf(g GID) netip.Addr { return netip.AddrFrom16(g).Unmap() }
