package lab

import (
	"encoding/binary"
	"net/netip"

	"github.com/vrnic/vrnic/netstack/detour"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/roce/packet"
)

// IsRoCE matches RoCE's packets.
func IsRoCE(p *frame.Packet, _ *frame.Frame, _ bool) bool {
	_, dst, ok := ports(p)
	return ok && p.Protocol == frame.ProtoUDP && dst == packet.Port
}

// NotRoCE matches all others.
func NotRoCE(p *frame.Packet, f *frame.Frame, in bool) bool { return !IsRoCE(p, f, in) }

// Stream matches the packets of a connection of TCP, or an association of SCTP, at its local end's
// port of the switch.
func Stream(protocol uint8, local, remote netip.AddrPort) detour.Match {
	return func(p *frame.Packet, _ *frame.Frame, in bool) bool {
		src, dst, ok := ports(p)
		if !ok || p.Protocol != protocol {
			return false
		}
		from, to := addresses(p)
		a, b := netip.AddrPortFrom(from, src), netip.AddrPortFrom(to, dst)
		if in {
			return a == local && b == remote
		}
		return a == remote && b == local
	}
}

// Connection matches the packets of a connected queue pair of RoCE, at its own end's port of the
// switch: own and dest are its number and its peer's.
func Connection(local, remote netip.Addr, own, dest uint32) detour.Match {
	return func(p *frame.Packet, f *frame.Frame, in bool) bool {
		at := p.L4 + 8 // behind UDP
		if !IsRoCE(p, f, in) || p.N < at+packet.BTHLen {
			return false
		}
		to := binary.BigEndian.Uint32(p.Headers[at+4:]) & 0xffffff
		src, dst := addresses(p)
		if in {
			return src == local && dst == remote && to == dest
		}
		return src == remote && dst == local && to == own
	}
}

// ports are those of TCP, UDP or SCTP; false: they are not there.
func ports(p *frame.Packet) (src, dst uint16, ok bool) {
	if p.L4 == 0 || p.NotFirst || p.N < p.L4+4 {
		return 0, 0, false
	}
	be := binary.BigEndian
	return be.Uint16(p.Headers[p.L4:]), be.Uint16(p.Headers[p.L4+2:]), true
}

// addresses are those of an IP packet.
func addresses(p *frame.Packet) (src, dst netip.Addr) {
	ip := p.Headers[p.L3:]
	if p.EtherType == frame.EtherIPv4 {
		return netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	}
	return netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
}
