package ipoib

import (
	"net/netip"
	"time"
)

// Messages of Neighbor Discovery (RFC 4861), and its options for link-layer addresses.
const (
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	redirect              = 137

	sourceAddr = 1
	targetAddr = 2

	// optionLen is of an option with a link-layer address: three times eight octets, of which two are
	// zero in front of the address (RFC 4391, section 9.3).
	optionLen = 24

	solicited, override = 0x40, 0x20
	ndHops              = 255 // of each packet of ND: it comes from this link
)

// appendOption adds an option with a link-layer address.
func appendOption(b []byte, kind uint8, a LinkAddr) []byte {
	return a.Append(append(b, kind, optionLen/8, 0, 0))
}

// linkOption finds the link-layer address among the options of a message; false: there is none, or
// the options are malformed.
func linkOption(b []byte, kind uint8) (a LinkAddr, ok bool) {
	for len(b) >= 8 && b[1] != 0 && int(b[1])*8 <= len(b) {
		n := int(b[1]) * 8
		if b[0] == kind && n == optionLen {
			return ParseLinkAddr(b[4:n])
		}
		b = b[n:]
	}
	return a, false
}

// isND says whether body is a message that looks for neighbours, or tells of some.
func isND(h *ipHeader, body []byte) bool {
	return h.proto == protoICMPv6 && len(body) >= 4 &&
		body[0] >= routerSolicitation && body[0] <= redirect
}

// receiveND takes a message of ND. It reports whether the host gets it: what is about routers.
func (i *Interface) receiveND(now time.Time, h *ipHeader, body []byte) (host bool) {
	if h.hops != ndHops || body[1] != 0 || sum(pseudo(h.src, h.dst, len(body)), body) != 0 {
		i.stats.DropMalformed++
		return false
	}
	switch body[0] {
	case routerSolicitation, routerAdvertisement:
		at := 8
		if body[0] == routerAdvertisement {
			at = 16
		}
		if len(body) < at {
			i.stats.DropMalformed++
			return false
		}
		if a, ok := linkOption(body[at:], sourceAddr); ok && !h.src.IsUnspecified() {
			i.learnForeign(now, h.src, a, false)
		}
		return true
	case redirect: // it is the host's, which finds the neighbour by itself
		return true
	}
	if len(body) < 24 {
		i.stats.DropMalformed++
		return false
	}
	target := netip.AddrFrom16([16]byte(body[8:]))
	if body[0] == neighborAdvertisement {
		if a, ok := linkOption(body[24:], targetAddr); ok {
			i.learnForeign(now, target, a, false)
		}
		return false
	}
	i.solicitedBy(now, h.src, target, body[24:])
	return false
}

// learnForeign is learn of what is not ours.
func (i *Interface) learnForeign(now time.Time, ip netip.Addr, a LinkAddr, create bool) {
	if i.owns(ip) || a.Bare() == i.own.Bare() || ip.IsMulticast() {
		i.stats.DropForeign++
		return
	}
	i.learn(now, ip, a, create)
}

// solicitedBy answers who looks for target. One without an address looks whether it can have it,
// and has the answer sent to all nodes.
func (i *Interface) solicitedBy(now time.Time, src, target netip.Addr, options []byte) {
	if !i.owns(target) {
		return
	}
	if src.IsUnspecified() {
		i.advertise(i.groupAddr(allNodes), target, allNodes, override)
		return
	}
	a, ok := linkOption(options, sourceAddr)
	if ok {
		i.learnForeign(now, src, a, true)
	}
	if n := i.neighbours[src]; n != nil && n.known() {
		i.advertise(n.addr, target, src, solicited|override)
	}
}

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allSystems = netip.AddrFrom4([4]byte{224, 0, 0, 1})
)

func (i *Interface) advertise(to LinkAddr, target, dst netip.Addr, flags uint8) {
	t := target.As16()
	msg := append([]byte{neighborAdvertisement, 0, 0, 0, flags, 0, 0, 0}, t[:]...)
	msg = appendOption(msg, targetAddr, i.own)
	i.datagram(to, IPv6, icmpv6(target, dst, ndHops, msg))
}

// solicit asks for the link-layer address of target.
func (i *Interface) solicit(target netip.Addr, to *LinkAddr) {
	dst := solicitedNode(target)
	at := i.groupAddr(dst)
	if to != nil {
		dst, at = target, *to
	}
	t := target.As16()
	msg := append([]byte{neighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, t[:]...)
	msg = appendOption(msg, sourceAddr, i.own)
	i.datagram(at, IPv6, icmpv6(i.source(target), dst, ndHops, msg))
}
