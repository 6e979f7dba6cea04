package rdma

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// NetworkHeaderLen is how many octets of a receive of a UD QP are in front of the datagram: the
// IPv6 header that it came with, or 20 octets that mean nothing and its IPv4 header.
const NetworkHeaderLen = 40

// ReplyTo is the attributes of an address handle on d that goes back to where a datagram came from:
// head is the first NetworkHeaderLen octets of its receive. A datagram that came to a group is
// answered from the device's first address of that family. ErrInvalid if head is no header, or the
// address that it came to is not in d's GID table.
func ReplyTo(d Device, head []byte) (AHAttr, error) {
	a := AHAttr{Port: 1, Global: true}
	src, dst, ok := a.from(head)
	if !ok {
		return AHAttr{}, fmt.Errorf("% x is no header of a datagram: %w", head, ErrInvalid)
	}
	a.GID = GIDOf(src)
	for i := range min(d.Attr().GIDs, 1<<8) {
		e, err := d.GID(i)
		if err != nil {
			return AHAttr{}, err
		}
		own := e.GID.Addr()
		if own == dst || dst.IsMulticast() && e != (GIDEntry{}) && own.Is4() == dst.Is4() &&
			own.IsLinkLocalUnicast() == src.IsLinkLocalUnicast() {
			a.GIDIndex = uint8(i)
			return a, nil
		}
	}
	return AHAttr{}, fmt.Errorf("a datagram to %v, which is no address of device %s: %w", dst,
		d.Name(), ErrInvalid)
}

// from reads the header of a datagram: traffic class and flow label go into a.
func (a *AHAttr) from(head []byte) (src, dst netip.Addr, ok bool) {
	if len(head) < NetworkHeaderLen {
		return src, dst, false
	}
	// Octets before an IPv4 header mean nothing, so that it is looked for first.
	if v4 := head[20:40]; v4[0] == 0x45 && checksum(v4) == 0xffff {
		a.TrafficClass = v4[1]
		return netip.AddrFrom4([4]byte(v4[12:])), netip.AddrFrom4([4]byte(v4[16:])), true
	}
	if head[0]>>4 != 6 {
		return src, dst, false
	}
	word := binary.BigEndian.Uint32(head)
	a.TrafficClass, a.FlowLabel = uint8(word>>20), word&0xfffff
	return netip.AddrFrom16([16]byte(head[8:])), netip.AddrFrom16([16]byte(head[24:])), true
}

// checksum is the sum of an IPv4 header: all ones if it is right.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}
