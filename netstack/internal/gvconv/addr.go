// Package gvconv turns addresses and errors of Go into gVisor's, and back.
package gvconv

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// NIC is the number of a Stack's only interface.
const NIC = 1

// Addr is gVisor's form of a; the zero Addr becomes "any".
func Addr(a netip.Addr) tcpip.Address {
	switch {
	case !a.IsValid():
		return tcpip.Address{}
	case a.Is4():
		return tcpip.AddrFrom4(a.As4())
	default:
		return tcpip.AddrFrom16(a.As16())
	}
}

// FullAddr is gVisor's form of a. Only link-local addresses need to say which interface is meant.
func FullAddr(a netip.AddrPort) tcpip.FullAddress {
	f := tcpip.FullAddress{Addr: Addr(a.Addr()), Port: a.Port()}
	if a.Addr().IsLinkLocalUnicast() || a.Addr().IsMulticast() {
		f.NIC = NIC
	}
	if a.Addr().IsUnspecified() {
		f.Addr = tcpip.Address{}
	}
	return f
}

// GoAddr is the reverse of Addr.
func GoAddr(a tcpip.Address) netip.Addr {
	switch a.Len() {
	case 4:
		return netip.AddrFrom4(a.As4())
	case 16:
		return netip.AddrFrom16(a.As16())
	default:
		return netip.Addr{}
	}
}

// GoAddrPort is the reverse of FullAddr.
func GoAddrPort(f tcpip.FullAddress) netip.AddrPort {
	return netip.AddrPortFrom(GoAddr(f.Addr), f.Port)
}

// Protocol is the EtherType of a's family.
func Protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// Unmap takes the IPv4 address out of an IPv4-mapped one.
func Unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
