package rpc

import "net/netip"

// Address families of SockAddr and Prefix.
const (
	AFInet  = 2
	AFInet6 = 10
)

// AddrPort is a as netip has it; not valid if the family is unknown. The scope is dropped.
func (a SockAddr) AddrPort() netip.AddrPort {
	switch a.Family {
	case AFInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Addr[:4])), a.Port)
	case AFInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), a.Port)
	}
	return netip.AddrPort{}
}

// MakeSockAddr converts; the zero AddrPort gives family 0.
func MakeSockAddr(ap netip.AddrPort) (a SockAddr) {
	ip := ap.Addr().Unmap()
	switch {
	case ip.Is4():
		b := ip.As4()
		a.Family, a.Port = AFInet, ap.Port()
		copy(a.Addr[:], b[:])
	case ip.Is6():
		a.Family, a.Port, a.Addr = AFInet6, ap.Port(), ip.As16()
	}
	return a
}

// Append appends the octets of a to b, as they are in front of a datagram (CM_OPEN_UDP).
func (a SockAddr) Append(b []byte) []byte { return append(b, a.octets()...) }

// CutSockAddr takes what Append has appended from the front of b; false: b is too short.
func CutSockAddr(b []byte) (a SockAddr, rest []byte, ok bool) {
	n := copy(a.octets(), b)
	return a, b[n:], n == len(a.octets())
}

// Prefix is p as netip has it; not valid if the family is unknown.
func (p Prefix) Prefix() netip.Prefix {
	ap := SockAddr{Family: p.Family, Addr: p.Addr}.AddrPort()
	if !ap.Addr().IsValid() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(ap.Addr(), int(p.Bits))
}

// MakePrefix converts.
func MakePrefix(p netip.Prefix) Prefix {
	a := MakeSockAddr(netip.AddrPortFrom(p.Addr(), 0))
	return Prefix{Family: a.Family, Bits: uint16(max(p.Bits(), 0)), Addr: a.Addr}
}

// MaxPrivate is the space for private data. MPA carries 512 octets, less 4 for its revision 2.
const MaxPrivate = 512

// ReadsDefault in ConnParam.IRD or ConnParam.ORD asks for the endpoint's default; 0 is none.
const ReadsDefault = 0xffff

// PrivateData is a view of the private data; false if PrivateLen is impossible.
func (p *ConnParam) PrivateData() ([]byte, bool) {
	if p.PrivateLen > MaxPrivate {
		return nil, false
	}
	return p.Private[:p.PrivateLen:p.PrivateLen], true
}

// SetPrivateData copies b; false if it is too long.
func (p *ConnParam) SetPrivateData(b []byte) bool {
	if len(b) > MaxPrivate {
		return false
	}
	p.PrivateLen = uint32(copy(p.Private[:], b))
	return true
}

// Numbers of enum rdma_port_space that are known; PSUDP on RoCE only.
const (
	PSTCP = 0x0106
	PSUDP = 0x0111
)

// Levels and names of CM_SET_OPTION. Levels 0 and 1 are rdma_cm's.
const (
	OptLevelID    = 0
	OptLevelIB    = 1
	OptLevelVRNIC = 0x5652

	OptTOS        = 0 // of OptLevelID, as the next
	OptReuseAddr  = 1
	OptAFOnly     = 2
	OptACKTimeout = 3

	OptMPARevision = 1  // 1 or 2
	OptMPACRC      = 2  // 0 default: as 2; 1 off; 2 wanted; 3 required
	OptMPAMarkers  = 3  // 1: ask for markers
	OptMPARTR      = 4  // 1 Write, 2 Read, 4 Send, 0 all; RTRClientServer
	OptReads       = 5  // ird<<16 | ord
	OptFPDUSize    = 6  // the longest segment that is sent, 128 to 64768; 0 as TCP's
	OptTransport   = 7  // 0 TCP, 1 SCTP
	OptDevice      = 8  // number of the only device that CM_BIND of an unspecified address binds to
	OptExtensions  = 9  // 1: the messages of RFC 7306 are allowed
	OptProtocol    = 10 // 0: iWARP, or ProtocolROI with the other flags

	// RTRClientServer in OptMPARTR turns the peer-to-peer model off.
	RTRClientServer = 8

	// ProtocolROI in OptProtocol is draft-bailey-roi-rdma-00, experimental: without the credits that
	// the other flags name.
	ProtocolROI           = 1
	ProtocolNoSendCredits = 2
	ProtocolNoReadCredits = 4

	MaxOption = 64
)

// Bits of CMInitQPAttrReply.Mask: enum ibv_qp_attr_mask.
const (
	QPAttrState  = 1 << 0
	QPAttrAccess = 1 << 3
)

// NoDevice in CMQueryReply.
const NoDevice = 0xffffffff

// Types of a CM event: enum rdma_cm_event_type.
const (
	EvAddrResolved    = 0
	EvAddrError       = 1
	EvRouteResolved   = 2
	EvRouteError      = 3
	EvConnectRequest  = 4
	EvConnectResponse = 5
	EvConnectError    = 6
	EvUnreachable     = 7
	EvRejected        = 8
	EvEstablished     = 9
	EvDisconnected    = 10
	EvDeviceRemoval   = 11
	EvMulticastJoin   = 12
	EvMulticastError  = 13
	EvAddrChange      = 14
	EvTimewaitExit    = 15
)

// Flags of a CMEvent.
const (
	EventExtensions = 1 // the connection that is established has the messages of RFC 7306
	EventSCTP       = 2 // it is over SCTP, as the one that is asked for
	EventByProgram  = 4 // it was rejected by the peer's program, and not lost on the way
	// the flags of OptProtocol, each times 8
	EventROI           = 8
	EventNoSendCredits = 16
	EventNoReadCredits = 32
)
