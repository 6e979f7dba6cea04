package abi

import "net/netip"

// Address families of SockAddr and Prefix.
const (
	AFInet  = 2
	AFInet6 = 10
)

// A SockAddr is an address with a port in host byte order. Family 0 is none.
type SockAddr struct {
	Family uint16
	Port   uint16
	Scope  uint32
	Addr   [16]byte // IPv4 in the first four
}

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

// ReadsDefault in ConnParam.IRD or ORD asks for the endpoint's default; 0 is none.
const ReadsDefault = 0xffff

// A ConnParam is struct rdma_conn_param.
type ConnParam struct {
	IRD         uint16 // responder_resources
	ORD         uint16 // initiator_depth
	FlowControl uint8
	Retry       uint8
	RNRRetry    uint8
	SRQ         uint8
	QPN         uint32
	PrivateLen  uint32
	Private     [MaxPrivate]byte
}

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

// Numbers of enum rdma_port_space that an RNIC knows.
const PSTCP = 0x0106

// CMCreateChanReply carries the read end of the event pipe.
type CMCreateChanReply struct {
	Chan uint32
	Pad  uint32
}

// CMCreateIDRequest makes an id whose events go to a channel. CM_CREATE_CHAN's request is empty.
type CMCreateIDRequest struct {
	Chan uint32
	PS   uint32 // enum rdma_port_space: PSTCP
	Type uint32 // enum ibv_qp_type: 2 RC
	Pad  uint32
	UID  uint64 // comes back in events
}

// CMCreateIDReply names the id.
type CMCreateIDReply struct {
	ID  uint32
	Pad uint32
}

// CMBindRequest binds an id to an address of a device, or an unspecified one; port 0 for a free one.
type CMBindRequest struct {
	ID   uint32
	Pad  uint32
	Addr SockAddr
}

// CMResolveAddrRequest: Src may have family 0. ADDR_RESOLVED or ADDR_ERROR follows.
type CMResolveAddrRequest struct {
	ID        uint32
	TimeoutMS uint32
	Src       SockAddr
	Dst       SockAddr
}

// CMResolveRouteRequest: ROUTE_RESOLVED or ROUTE_ERROR follows.
type CMResolveRouteRequest struct {
	ID        uint32
	TimeoutMS uint32
}

// CMListenRequest: backlog 0 is a default.
type CMListenRequest struct {
	ID      uint32
	Backlog uint32
}

// CMConnectRequest connects or accepts (CM_CONNECT, CM_ACCEPT). The QP is the one of this session
// with number Param.QPN and protection domain PD. ESTABLISHED, or a failure, follows.
type CMConnectRequest struct {
	ID    uint32
	PD    uint32
	UID   uint64 // CM_ACCEPT: the UID of later events of the id; 0 leaves it
	Param ConnParam
}

// CMRejectRequest refuses a connection request with private data.
type CMRejectRequest struct {
	ID         uint32
	PrivateLen uint32
	Private    [MaxPrivate]byte
}

// Levels and names of CM_SET_OPTION. Levels 0 and 1 are rdma_cm's.
const (
	OptLevelID    = 0
	OptLevelIB    = 1
	OptLevelVRNIC = 0x5652

	OptMPARevision = 1 // 1 or 2
	OptMPACRC      = 2 // rdma.CRCMode
	OptMPAMarkers  = 3 // 1: ask for markers
	OptMPARTR      = 4 // rdma.RTRKinds, and RTRClientServer
	OptReads       = 5 // ird<<16 | ord
	OptFPDUSize    = 6 // rdma.MPAParam's MULPDU
	OptTransport   = 7 // 0 TCP, 1 SCTP
	OptDevice      = 8 // number of the only device that CM_BIND of an unspecified address binds to
	OptExtensions  = 9 // 1: the messages of RFC 7306 are allowed

	// RTRClientServer in OptMPARTR turns the peer-to-peer model off.
	RTRClientServer = 8

	MaxOption = 64
)

// CMSetOptionRequest sets an option of an id before it listens or connects. A number is a u32 or u64 value.
type CMSetOptionRequest struct {
	ID    uint32
	Level uint32
	Name  uint32
	Len   uint32
	Value [MaxOption]byte
}

// CMMigrateRequest moves an id, and its events that wait, to another channel.
type CMMigrateRequest struct {
	ID   uint32
	Chan uint32
}

// CMMigrateReply: events of the id that the client has been given so far, and tokens to take back from
// the channel that it came from.
type CMMigrateReply struct {
	Reported uint32
	Tokens   uint32
}

// CMInitQPAttrRequest asks for what ibv_modify_qp needs to take the QP of an id to State.
type CMInitQPAttrRequest struct {
	ID    uint32
	State uint32 // StateInit, StateRTR or StateRTS
}

// Bits of CMInitQPAttrReply.Mask: enum ibv_qp_attr_mask.
const (
	QPAttrState  = 1 << 0
	QPAttrAccess = 1 << 3
)

// CMInitQPAttrReply is struct ibv_qp_attr as far as Mask says.
type CMInitQPAttrReply struct {
	Mask   uint32
	State  uint32
	Access uint32 // enum ibv_access_flags
	Port   uint32
}

// CMQueryReply describes an id. Device is NoDevice while it is bound to none.
type CMQueryReply struct {
	Src    SockAddr
	Dst    SockAddr
	Device uint32
	Port   uint32 // 1, or 0 without a device
}

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
	EvTimewaitExit    = 15
)

// A CMEvent answers CM_GET_EVENT; -EAGAIN if there is none.
type CMEvent struct {
	Type   uint32 // EvAddrResolved...
	Status int32  // 0 or -errno; a reject's reason
	ID     uint32 // whose event it is; of a connect request, the listener
	Child  uint32 // the new id of a connect request
	UID    uint64 // of ID
	Cause  uint32 // as the word at QPError, for DISCONNECTED and CONNECT_ERROR
	Device uint32 // of ID or Child
	Src    SockAddr
	Dst    SockAddr
	Flags  uint32 // EventExtensions and EventSCTP
	Pad    uint32
	Param  ConnParam // what the peer sent
}

// Flags of a CMEvent.
const (
	EventExtensions = 1 // the connection that is established has the messages of RFC 7306
	EventSCTP       = 2 // it is over SCTP, as the one that is asked for
)

// CMDestroyIDReply: events of the id that the client has been given, and tokens of those dropped.
type CMDestroyIDReply struct {
	Reported uint32
	Tokens   uint32
}
