package rdma

import "net/netip"

// A GID names an end of a RoCE network: an IPv6 address, or an IPv4 address mapped to one.
type GID [16]byte

// GIDOf makes a GID of an address; a zone is lost.
func GIDOf(a netip.Addr) GID { return a.As16() }

// Addr is the address that g is, IPv4 unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// A GIDEntry is an entry of a device's GID table. The zero entry is an empty one.
type GIDEntry struct {
	GID  GID
	Type GIDType
}

// A GIDType says how packets of a GID look. The numbers are enum ibv_gid_type's.
type GIDType uint32

// The one type there is: UDP over IPv4 or IPv6.
const GIDRoCEv2 GIDType = 2

// An AHAttr says where packets go to, and how: struct ibv_ah_attr as far as RoCE has it.
type AHAttr struct {
	GID          GID   // of the peer, or of a multicast group
	GIDIndex     uint8 // of the device's own GID, which the packets come from
	HopLimit     uint8 // 0: 64
	TrafficClass uint8 // DSCP and ECN
	FlowLabel    uint32
	SL           uint8 // means nothing here, and is kept
	Port         uint8 // 1
	// Global says that the attributes above it hold: there is nothing else on Ethernet.
	Global bool
}

// An AH is an address handle: where datagrams of a UD queue pair go to.
type AH interface {
	Attr() AHAttr
	// Handle is what SendWR.AH names it by.
	Handle() uint32
	// Close destroys it. Requests that were posted before still go by it, if their QP gets to them
	// within a second.
	Close() error
}
