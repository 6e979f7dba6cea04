package netstacktest

import (
	"encoding/binary"
	"net/netip"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// TooBig is an ICMP message that tells s that a's packets are too big for mtu.
func TooBig(s *netstack.Stack, a *tcp.Conn, mtu int) []byte {
	m := s.MAC()
	b := append(append([]byte(nil), m[:]...), 2, 0, 0, 0, 0, 0x66)
	local, remote := a.LocalAddr(), a.RemoteAddr()
	tcp := binary.BigEndian.AppendUint16(nil, local.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, remote.Port())
	tcp = append(tcp, make([]byte, 16)...)
	ip := func(src, dst netip.Addr, proto byte, payload []byte) []byte {
		if src.Is4() {
			h := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0}
			binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
			h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
			binary.BigEndian.PutUint16(h[10:], frametest.InetChecksum(h))
			return append(h, payload...)
		}
		h := []byte{0x60, 0, 0, 0, 0, 0, proto, 64}
		binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
		h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
		return append(h, payload...)
	}
	orig := ip(local.Addr(), remote.Addr(), 6, tcp)
	if local.Addr().Is4() {
		icmp := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, orig...)
		binary.BigEndian.PutUint16(icmp[2:], frametest.InetChecksum(icmp))
		return append(append(b, 0x08, 0x00), ip(remote.Addr(), local.Addr(), 1, icmp)...)
	}
	icmp := append([]byte{2, 0, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, orig...)
	p := append(append([]byte(nil), remote.Addr().AsSlice()...), local.Addr().AsSlice()...)
	p = append(p, 0, 0, byte(len(icmp)>>8), byte(len(icmp)), 0, 0, 0, 58)
	binary.BigEndian.PutUint16(icmp[2:], frametest.InetChecksum(append(p, icmp...)))
	return append(append(b, 0x86, 0xdd), ip(remote.Addr(), local.Addr(), 58, icmp)...)
}
