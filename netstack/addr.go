package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// gvAddr is gVisor's form of a; the zero Addr becomes "any".
func gvAddr(a netip.Addr) tcpip.Address {
	switch {
	case !a.IsValid():
		return tcpip.Address{}
	case a.Is4():
		return tcpip.AddrFrom4(a.As4())
	default:
		return tcpip.AddrFrom16(a.As16())
	}
}

// gvFullAddr is gVisor's form of a. Only link-local addresses need to say which interface is meant.
func gvFullAddr(a netip.AddrPort) tcpip.FullAddress {
	f := tcpip.FullAddress{Addr: gvAddr(a.Addr()), Port: a.Port()}
	if a.Addr().IsLinkLocalUnicast() || a.Addr().IsMulticast() {
		f.NIC = nicID
	}
	if a.Addr().IsUnspecified() {
		f.Addr = tcpip.Address{}
	}
	return f
}

// goAddr is the reverse of gvAddr.
func goAddr(a tcpip.Address) netip.Addr {
	switch a.Len() {
	case 4:
		return netip.AddrFrom4(a.As4())
	case 16:
		return netip.AddrFrom16(a.As16())
	default:
		return netip.Addr{}
	}
}

// goAddrPort is the reverse of gvFullAddr.
func goAddrPort(f tcpip.FullAddress) netip.AddrPort {
	return netip.AddrPortFrom(goAddr(f.Addr), f.Port)
}

// ipProtocol is the EtherType of a's family.
func ipProtocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// unmap takes the IPv4 address out of an IPv4-mapped one.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
