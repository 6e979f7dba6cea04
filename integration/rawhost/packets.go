package rawhost

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// Packets are those of one protocol on top of IPv6 that go between an address of a Host's and one
// of the daemon's, past the Host's stack.
type Packets struct {
	h             *Host
	local, remote netip.Addr
	protocol      byte
	mac           atomic.Pointer[[6]byte] // the daemon's device's
}

// Of the headers of a packet of IPv6 in a frame: RFC 8200, section 3.
const (
	etherLen, ipv6Len = 14, 40
	packetAt          = etherLen + ipv6Len // behind both
	etherIPv6         = 0x86dd
)

// Packets begins with them; take is called for each that the daemon sends, one at a time. It sets
// the Host's filter.
func (h *Host) Packets(ctx context.Context, local, remote netip.Addr, protocol byte,
	take func(packet []byte)) (*Packets, error) {
	p := &Packets{h: h, local: local, remote: remote, protocol: protocol}
	h.SetFilter(func(f Frame) [][]byte {
		if !f.ToDaemon && p.took(f.Octets, take) {
			return nil
		}
		return [][]byte{f.Octets}
	})
	// Nobody listens there, but whoever says so is the neighbour.
	c, err := h.stack.TCP().Dial(ctx, local, netip.AddrPortFrom(remote, 9))
	if err == nil {
		c.Abort()
	}
	if p.mac.Load() == nil {
		return nil, errors.Join(err, syscall.EHOSTUNREACH)
	}
	return p, nil
}

// took looks at a frame of the daemon's and hands its packet on, if it is one of these.
func (p *Packets) took(b []byte, take func([]byte)) bool {
	if len(b) < packetAt || binary.BigEndian.Uint16(b[12:]) != etherIPv6 ||
		netip.AddrFrom16([16]byte(b[etherLen+8:])) != p.remote {
		return false
	}
	mac := [6]byte(b[6:])
	p.mac.Store(&mac)
	n := packetAt + int(binary.BigEndian.Uint16(b[etherLen+4:]))
	if b[etherLen+6] != p.protocol || n > len(b) ||
		netip.AddrFrom16([16]byte(b[etherLen+24:])) != p.local {
		return false
	}
	take(b[packetAt:n])
	return true
}

// Send sends a packet.
func (p *Packets) Send(packet []byte) {
	mac, own := p.mac.Load(), p.h.stack.MAC()
	b := append(append(make([]byte, 0, packetAt+len(packet)), mac[:]...), own[:]...)
	b = binary.BigEndian.AppendUint16(b, etherIPv6)
	b = append(b, 0x60, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(packet))), p.protocol, 64)
	b = append(append(b, p.local.AsSlice()...), p.remote.AsSlice()...)
	p.h.link.send(append(b, packet...))
}
