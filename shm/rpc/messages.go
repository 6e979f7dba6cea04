// Code generated from messages.table by go generate; DO NOT EDIT.

package rpc

// A Header begins every message.
type Header struct {
	Op     Op
	Flags  uint16 // none is known: zero
	Seq    uint32 // the reply repeats the request's
	Status int32  // 0 or -errno; 0 in a request
	Len    uint32 // octets that follow
}

// A HandleRequest names one object: DEL_MEM, CTX_CLOSE, GET_ASYNC_EVENT (a context), DEALLOC_PD,
// DEREG_MR, DEALLOC_MW, DESTROY_*, SWITCH_CQ, QUERY_QP, QUERY_SRQ, CM_DESTROY_*, CM_DISCONNECT,
// CM_QUERY, CM_ESTABLISH, CM_NOTIFY, CM_OPEN_UDP, CM_GET_EVENT (a channel).
type HandleRequest struct {
	Handle uint32
	Pad    uint32
}

// A DestroyReply says how many async events of the object the client has been given (it may wait
// until they are acknowledged), and how many were dropped, whose tokens it takes back.
type DestroyReply struct {
	Reported uint32
	Tokens   uint32
}

// A Refusal says in words why a request was refused, to a client that has asked for it by
// FeatureReasons. It stands behind a status below 0 where there is more to say than that, but for
// the HELLO of another version.
type Refusal struct {
	Why [512]byte
}

// A Prefix is an address of a device. Family 0 is none.
type Prefix struct {
	Family uint16 // AFInet, AFInet6
	Bits   uint16
	Pad    uint32
	Addr   [16]byte // IPv4 in the first four
}

// QPCaps sizes a QP. With an SRQ MaxRecvWR, MaxRecvSGE and RxSlab are 0 in the reply.
type QPCaps struct {
	MaxSendWR  uint32
	MaxRecvWR  uint32
	MaxSendSGE uint32
	MaxRecvSGE uint32
	MaxInline  uint32
	TxSlab     uint32 // octets of slab for sends: a power of two, or 0 for none
	RxSlab     uint32 // octets of slab for receives
	Pad        uint32
}

// An AHAttr is struct ibv_ah_attr, as far as Ethernet has it: where packets go to.
type AHAttr struct {
	GID          [16]byte // of the peer, or of a multicast group
	FlowLabel    uint32
	Flags        uint32 // AHGlobal
	GIDIndex     uint8  // of the device's GID that packets come from
	HopLimit     uint8  // 0: 64
	TrafficClass uint8
	SL           uint8
	Port         uint32 // 1
}

// A QPAttr is struct ibv_qp_attr but for its state and what RoCE has not: capacities, an alternate
// path and a rate.
type QPAttr struct {
	CurState     uint32 // StateErr...
	PathMTU      uint32 // enum ibv_mtu
	MigState     uint32 // enum ibv_mig_state: 0 migrated
	QKey         uint32
	RQPSN        uint32
	SQPSN        uint32
	DestQPN      uint32
	Access       uint32 // enum ibv_access_flags
	Path         AHAttr
	PKeyIndex    uint32
	Port         uint8
	MaxRead      uint8 // max_rd_atomic
	MaxDestRead  uint8 // max_dest_rd_atomic
	MinRNRTimer  uint8
	Timeout      uint8
	RetryCount   uint8
	RNRRetry     uint8
	DrainedEvent uint8  // en_sqd_async_notify
	Draining     uint32 // sq_draining
}

// HelloRequest must come first, within the time that the daemon allows.
type HelloRequest struct {
	Magic    uint32 // MagicHello
	Major    uint16
	Minor    uint16
	Features uint64 // FeatureReasons, Again, Direct, Gone, Sockets; others are passed over
	Comm     [16]byte
}

// HelloReply carries the session memfd and the doorbell eventfd, in this order. On a mismatch of
// versions the status is -EPROTONOSUPPORT, there is no fd, and Major and Minor are the daemon's.
type HelloReply struct {
	Magic      uint32
	Major      uint16
	Minor      uint16
	Features   uint64
	Session    uint32
	NumDevices uint32
	Devices    [MaxDevices]DeviceName
}

// SetMemRequest carries the client's /proc/self/mem, open for reading and writing.
type SetMemRequest struct {
	NonceAddr uint64 // where the client has mapped the session page's nonce
}

// AddMemRequest carries a sealed memfd.
type AddMemRequest struct {
	Flags uint32 // none is known
	Pad   uint32
}

// AddMemReply: Size is that of the memfd.
type AddMemReply struct {
	Mem  uint32
	Pad  uint32
	Size uint64
}

// QueryDeviceRequest: Device counts from 0 in the order of HelloReply.Devices; ENODEV beyond the
// last, and of one that has gone ENXIO, to who has set FeatureGone.
type QueryDeviceRequest struct {
	Device uint32
	Pad    uint32
}

// QueryDeviceReply describes a device and its limits for this session.
type QueryDeviceReply struct {
	Name      DeviceName
	GUID      uint64
	MaxMRLen  uint64
	MAC       [6]byte
	NumAddrs  uint16
	MTU       uint32
	VendorID  uint32
	PartID    uint32
	HWVersion uint32
	MaxQP     uint32
	MaxQPWR   uint32
	MaxSGE    uint32
	MaxInline uint32
	MaxCQ     uint32
	MaxCQE    uint32
	MaxMR     uint32
	MaxPD     uint32
	MaxMW     uint32
	MaxSRQ    uint32
	MaxSRQWR  uint32
	MaxSRQSGE uint32
	MaxIRD    uint32
	MaxORD    uint32
	CapFlags  uint32
	AtomicCap uint32
	FWVersion [32]byte
	Addrs     [MaxAddrs]Prefix

	// Since minor version 1.

	NodeType    uint32 // enum ibv_node_type: NodeCA speaks RoCE, NodeRNIC, or 0, iWARP
	MaxAH       uint32
	MaxGroups   uint32 // multicast groups
	MaxGroupQPs uint32 // QPs attached to one

	// Since minor version 2.

	PageSizes  uint64
	Card       uint32 // CardFigures...: what is told is a card's, whatever the session's quotas
	RefusedOps uint32 // opcodes that are not to be posted, a bit each
	MaxReadSGE uint32 // of a Read
	MaxReads   uint32 // Reads and atomics that the device answers at a time
	MaxMembers uint32 // QPs attached to all multicast groups
	MaxPkeys   uint32
	AckDelay   uint32
	Pad        uint32
}

// QueryPortRequest: ports count from 1.
type QueryPortRequest struct {
	Device uint32
	Port   uint32
}

// QueryPortReply is struct ibv_port_attr, as far as an RNIC has something to say.
type QueryPortReply struct {
	State     uint32 // enum ibv_port_state: 4 active
	MaxMTU    uint32 // enum ibv_mtu
	ActiveMTU uint32
	GIDs      uint32
	MaxMsg    uint32
	LinkLayer uint32 // 2 Ethernet
	Width     uint32
	Speed     uint32
	PhysState uint32
	CapFlags  uint32
}

// QueryGIDRequest asks for entry Index of a port's GID table.
type QueryGIDRequest struct {
	Device uint32
	Port   uint32
	Index  uint32
	Pad    uint32
}

// QueryGIDReply is one entry, zero if it is empty.
type QueryGIDReply struct {
	GID  [16]byte
	Type uint32 // enum ibv_gid_type: 2 RoCE v2; 0 of iWARP
	Pad  uint32
}

// CtxOpenRequest opens a device; the context owns PDs, CQs and channels.
type CtxOpenRequest struct {
	Device uint32
	Pad    uint32
}

// CtxOpenReply carries the client's end of the async event pipe, or socket.
type CtxOpenReply struct {
	Ctx uint32
	Pad uint32
}

// An AsyncEvent answers GET_ASYNC_EVENT; -EAGAIN if there is none.
type AsyncEvent struct {
	Type   uint32 // enum ibv_event_type
	Kind   uint32 // ObjCQ...
	Handle uint32 // of the object
	Cause  uint32 // as the word at QPError
}

// AllocPDRequest makes a PD of a context.
type AllocPDRequest struct {
	Ctx uint32
	Pad uint32
}

// AllocPDReply names it.
type AllocPDReply struct {
	PD  uint32
	Pad uint32
}

// RegMRRequest registers a region. Its octets are Addr.. of the program (ModeApp) or Offset.. of
// Mem (ModeShared); SGEs and the peer address it from IOVA on.
type RegMRRequest struct {
	PD     uint32
	Access uint32 // enum ibv_access_flags; bits 20 to 29 are ignored
	Addr   uint64
	Length uint64
	IOVA   uint64
	Offset uint64
	Mode   uint32
	Mem    uint32
}

// RegMRReply names the region.
type RegMRReply struct {
	MR   uint32
	LKey uint32
	RKey uint32
	Pad  uint32
}

// ReregMRRequest changes what Flags name of a region; the other fields are zero. Its reply is
// REG_MR's: the handle stays, and the keys unless there is a new translation, with which they are
// new. If it fails the region is as it was.
type ReregMRRequest struct {
	MR    uint32
	Flags uint32
	New   RegMRRequest
}

// AllocMWRequest makes a memory window that is not bound.
type AllocMWRequest struct {
	PD   uint32
	Type uint32 // enum ibv_mw_type
}

// AllocMWReply names it.
type AllocMWReply struct {
	MW   uint32
	RKey uint32
}

// AllocMRRequest makes a region of at most MaxLen octets without memory, for REG_MR work requests.
// Its reply is REG_MR's.
type AllocMRRequest struct {
	PD     uint32
	Pad    uint32
	MaxLen uint64
}

// CreateChanRequest makes a completion channel.
type CreateChanRequest struct {
	Ctx uint32
	Pad uint32
}

// CreateChanReply carries the client's end of the event pipe, or socket, and the ring memfd, in
// this order.
type CreateChanReply struct {
	Chan uint32
	Pad  uint32
}

// CreateCQRequest makes a CQ of at least CQE entries. Chan 0: none.
type CreateCQRequest struct {
	Ctx    uint32
	CQE    uint32
	Chan   uint32
	Vector uint32
}

// CreateCQReply carries the CQ memfd. CQE is what it is said to hold; its ring may have more.
type CreateCQReply struct {
	CQ  uint32
	CQE uint32
}

// ResizeCQRequest makes other memory for a CQ, of at least CQE entries. It is used from SWITCH_CQ
// on; another RESIZE_CQ takes its place.
type ResizeCQRequest struct {
	CQ  uint32
	CQE uint32
}

// ResizeCQReply carries the new memfd. CQE is as CreateCQReply has it.
type ResizeCQReply struct {
	CQE uint32
	Pad uint32
}

// CreateSRQRequest makes a shared receive queue.
type CreateSRQRequest struct {
	PD       uint32
	MaxWR    uint32
	MaxSGE   uint32
	MaxPerQP int32 // MaxPerQP is rdma.SRQConfig's: 0 is the default, below 0 no limit.
}

// CreateSRQReply carries the SRQ memfd. The counts are those that the SRQ got: never less than
// asked.
type CreateSRQReply struct {
	SRQ    uint32
	Bell   uint32
	MaxWR  uint32
	MaxSGE uint32
}

// ModifySRQRequest changes what Mask names.
type ModifySRQRequest struct {
	SRQ   uint32
	Mask  uint32
	MaxWR uint32
	Limit uint32
}

// QuerySRQReply describes an SRQ. Limit is 0 if none is armed.
type QuerySRQReply struct {
	MaxWR  uint32
	MaxSGE uint32
	Limit  uint32
	Pad    uint32
}

// CreateQPRequest makes a QP.
type CreateQPRequest struct {
	PD     uint32
	SendCQ uint32
	RecvCQ uint32
	SRQ    uint32 // 0 none
	Caps   QPCaps
	Flags  uint32
	Type   uint32 // TypeRC, TypeUC, TypeUD; 0 is RC
}

// CreateQPReply carries the QP memfd. Caps are those that the QP got: never less than asked.
type CreateQPReply struct {
	QP   uint32 // handle
	QPN  uint32
	Bell uint32
	Pad  uint32
	Caps QPCaps
}

// ModifyQPRequest changes what Mask names; a mask of 0 changes nothing and succeeds. EINPROGRESS:
// the way to the peer that Attr.Path names is being looked for, for some seconds at most, and who
// sends the request again comes to know.
type ModifyQPRequest struct {
	QP    uint32
	Mask  uint32 // enum ibv_qp_attr_mask
	State uint32 // StateErr...
	Pad   uint32

	// Since minor version 1.

	Attr QPAttr
}

// QueryQPReply describes a QP.
type QueryQPReply struct {
	State  uint32
	QPN    uint32
	Access uint32
	IRD    uint32
	ORD    uint32
	Pad    uint32
	Caps   QPCaps

	// Since minor version 1.

	Attr QPAttr
}

// CreateAHRequest makes an address handle. EINPROGRESS is as MODIFY_QP's.
type CreateAHRequest struct {
	PD   uint32
	Pad  uint32
	Attr AHAttr
}

// CreateAHReply names it: AH for DESTROY_AH, Key for send requests, at SQAH.
type CreateAHReply struct {
	AH  uint32
	Key uint32
}

// AttachMcastRequest has a UD QP receive what is sent to a multicast group, or not any more
// (DETACH_MCAST).
type AttachMcastRequest struct {
	QP  uint32
	Pad uint32
	GID [16]byte
}

// DirectReply carries the pair's memfd.
type DirectReply struct {
	Second  uint32 // 1: the QP is the pair's second, 0: its first
	Covered uint32 // 1: the QP's CQs have room for all that their queues can have in them
}

// IdentifyRequest carries a descriptor of a namespace of the client's, /proc/self/ns/user or pid:
// of each once, before DIRECT. EOPNOTSUPP: there is no direct path for it.
type IdentifyRequest struct {
	Kind uint32 // NamespaceUser, NamespaceProcess
	Pad  uint32
}

// DirectMemRequest names memory that the peer of a QP has lent, as the table of keys has it.
// EAGAIN: there is no direct path for the QP now; ENOENT: there is no such memory any more.
type DirectMemRequest struct {
	QP  uint32
	Mem uint32
}

// A SockAddr is an address with a port in host byte order. Family 0 is none.
type SockAddr struct {
	Family uint16
	Port   uint16
	Scope  uint32
	Addr   [16]byte // IPv4 in the first four
}

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

// CMCreateChanReply carries the client's end of the event pipe, or socket.
type CMCreateChanReply struct {
	Chan uint32
	Pad  uint32
}

// CMCreateIDRequest makes an id whose events go to a channel. CM_CREATE_CHAN's request is empty.
type CMCreateIDRequest struct {
	Chan uint32
	PS   uint32 // enum rdma_port_space: PSTCP, PSUDP
	Type uint32 // TypeRC, TypeUD
	Pad  uint32
	UID  uint64 // comes back in events
}

// CMCreateIDReply names the id.
type CMCreateIDReply struct {
	ID  uint32
	Pad uint32
}

// CMDestroyIDReply: events of the id that the client has been given, and tokens of those dropped.
type CMDestroyIDReply struct {
	Reported uint32
	Tokens   uint32
}

// CMBindRequest binds an id to an address of a device, or an unspecified one; port 0 for a free
// one.
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
// with number Param.QPN and protection domain PD; an id of PSUDP connects without one, both 0.
// ESTABLISHED, or a failure, follows. With PD 0 an id of PSTCP on RoCE tells the peer of a QP that
// the client takes to RTR and RTS itself (CM_INIT_QP_ATTR): CONNECT_RESPONSE follows CM_CONNECT
// then, and is answered by CM_ESTABLISH or CM_REJECT.
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

// CMMigrateRequest moves an id, and its events that wait, to another channel.
type CMMigrateRequest struct {
	ID   uint32
	Chan uint32
}

// CMMigrateReply: events of the id that the client has been given so far, and tokens to take back
// from the channel that it came from.
type CMMigrateReply struct {
	Reported uint32
	Tokens   uint32
}

// CMSetOptionRequest sets an option of an id before it listens or connects. A number is a u32 or
// u64 value.
type CMSetOptionRequest struct {
	ID    uint32
	Level uint32
	Name  uint32
	Len   uint32
	Value [MaxOption]byte
}

// CMInitQPAttrRequest asks for what ibv_modify_qp needs to take the QP of an id to State.
type CMInitQPAttrRequest struct {
	ID    uint32
	State uint32 // StateInit, StateRTR or StateRTS
}

// CMInitQPAttrReply is struct ibv_qp_attr as far as Mask says.
type CMInitQPAttrReply struct {
	Mask   uint32
	State  uint32
	Access uint32 // enum ibv_access_flags
	Port   uint32

	// Since minor version 1.

	Attr QPAttr
}

// CMQueryReply describes an id. Device is NoDevice while it is bound to none.
type CMQueryReply struct {
	Src    SockAddr
	Dst    SockAddr
	Device uint32
	Port   uint32 // 1, or 0 without a device
}

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
	Flags  uint32    // EventExtensions and its like
	QKey   uint32    // of PSUDP: with Param.QPN and Path what datagrams go to
	Param  ConnParam // what the peer sent

	// Since minor version 1.

	Path  AHAttr
	Group uint64 // the UID of CM_JOIN_MULTICAST, of MULTICAST_JOIN and MULTICAST_ERROR
}

// CMJoinMulticastRequest joins a multicast group, with port 0. MULTICAST_JOIN or MULTICAST_ERROR
// follows; the former has in Path and Param.QPN what to attach a QP to and to send to.
type CMJoinMulticastRequest struct {
	ID    uint32
	Flags uint32 // none: a full member
	UID   uint64 // comes back in events, as Group
	Addr  SockAddr
}

// CMLeaveMulticastRequest leaves a group that the id has joined.
type CMLeaveMulticastRequest struct {
	ID   uint32
	Pad  uint32
	Addr SockAddr
}

// CMLeaveMulticastReply: events of the group that the client has been given, and tokens of those
// dropped.
type CMLeaveMulticastReply struct {
	Reported uint32
	Tokens   uint32
}

// ListRequest asks for rows (LIST, STAT). Cursor 0 takes a fresh snapshot; Next of the reply goes
// on in it. Kind is unused by STAT.
type ListRequest struct {
	Kind   uint32
	Flags  uint32 // none is known
	Cursor uint64
}

// ListReply holds whole rows, each a JSON object and a newline. Next 0: that was all.
type ListReply struct {
	Next uint64
	Len  uint32
	Pad  uint32
	Data [ListData]byte
}

// ControlRequest changes the daemon, for root and the daemon's own user. What Verb is done with is
// Value of Key, in the words of the command line. A descriptor may come with ControlAdd of a TAP,
// which it is then; Flags say of it what ControlForce does not. With ControlCapture,
// ControlLatency, ControlTrace and ControlRecord one has to come.
type ControlRequest struct {
	Verb  uint32
	Flags uint32
	Key   [32]byte
	Value [2048]byte
}
