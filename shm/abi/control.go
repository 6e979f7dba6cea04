package abi

import "fmt"

// This file lists the messages of the control socket (SOCK_SEQPACKET, at most MaxMessage octets,
// requests answered one at a time and in their order, nothing unsolicited). All structs have fixed-width, naturally aligned
// fields and explicit zero padding, so that their packed encoding is the C struct. A struct is
// encoded whole; the reader applies the rules of evolution: see Decode.

// MaxMessage is the most that one message holds, header included.
const MaxMessage = 4096

// HeaderLen is the length of the encoded Header.
const HeaderLen = 16

// A Header begins every message.
type Header struct {
	Op     Op
	Flags  uint16 // none is known: zero
	Seq    uint32 // the reply repeats the request's
	Status int32  // 0 or -errno; 0 in a request
	Len    uint32 // octets that follow
}

// An Op names an operation. Numbers are never used again.
type Op uint16

const (
	OpHello      Op = 1
	OpSetMem     Op = 2
	OpAddMem     Op = 3
	OpDelMem     Op = 4
	OpQueryDev   Op = 5
	OpQueryPort  Op = 6
	OpQueryGID   Op = 7
	OpCtxOpen    Op = 16
	OpCtxClose   Op = 17
	OpGetAsync   Op = 18
	OpAllocPD    Op = 32
	OpDeallocPD  Op = 33
	OpRegMR      Op = 34
	OpDeregMR    Op = 35
	OpReregMR    Op = 36
	OpAllocMW    Op = 37
	OpDeallocMW  Op = 38
	OpAllocMR    Op = 39
	OpCreateChan Op = 48
	OpDestroyChn Op = 49
	OpCreateCQ   Op = 50
	OpDestroyCQ  Op = 51
	OpResizeCQ   Op = 52 // EOPNOTSUPP
	OpCreateSRQ  Op = 64
	OpModifySRQ  Op = 65
	OpQuerySRQ   Op = 66
	OpDestroySRQ Op = 67
	OpCreateQP   Op = 68
	OpModifyQP   Op = 69
	OpQueryQP    Op = 70
	OpDestroyQP  Op = 71

	OpCMCreateChan   Op = 96
	OpCMDestroyChan  Op = 97
	OpCMCreateID     Op = 98
	OpCMDestroyID    Op = 99
	OpCMBind         Op = 100
	OpCMResolveAddr  Op = 101
	OpCMResolveRoute Op = 102
	OpCMListen       Op = 103
	OpCMConnect      Op = 104
	OpCMAccept       Op = 105
	OpCMReject       Op = 106
	OpCMDisconnect   Op = 107
	OpCMMigrate      Op = 108
	OpCMSetOption    Op = 109
	OpCMInitQPAttr   Op = 110
	OpCMQuery        Op = 111
	OpCMGetEvent     Op = 112

	OpList    Op = 128
	OpStat    Op = 129
	OpCapture Op = 130 // EOPNOTSUPP
)

var opNames = map[Op]string{
	OpHello: "HELLO", OpSetMem: "SET_MEM", OpAddMem: "ADD_MEM", OpDelMem: "DEL_MEM", OpQueryDev: "QUERY_DEVICE",
	OpQueryPort: "QUERY_PORT", OpQueryGID: "QUERY_GID", OpCtxOpen: "CTX_OPEN", OpCtxClose: "CTX_CLOSE",
	OpGetAsync: "GET_ASYNC_EVENT", OpAllocPD: "ALLOC_PD", OpDeallocPD: "DEALLOC_PD", OpRegMR: "REG_MR",
	OpDeregMR: "DEREG_MR", OpReregMR: "REREG_MR", OpAllocMW: "ALLOC_MW", OpDeallocMW: "DEALLOC_MW", OpAllocMR: "ALLOC_MR",
	OpCreateChan: "CREATE_CHAN", OpDestroyChn: "DESTROY_CHAN", OpCreateCQ: "CREATE_CQ", OpDestroyCQ: "DESTROY_CQ",
	OpResizeCQ: "RESIZE_CQ", OpCreateSRQ: "CREATE_SRQ", OpModifySRQ: "MODIFY_SRQ", OpQuerySRQ: "QUERY_SRQ",
	OpDestroySRQ: "DESTROY_SRQ", OpCreateQP: "CREATE_QP", OpModifyQP: "MODIFY_QP", OpQueryQP: "QUERY_QP",
	OpDestroyQP: "DESTROY_QP", OpCMCreateChan: "CM_CREATE_CHAN", OpCMDestroyChan: "CM_DESTROY_CHAN",
	OpCMCreateID: "CM_CREATE_ID", OpCMDestroyID: "CM_DESTROY_ID", OpCMBind: "CM_BIND",
	OpCMResolveAddr: "CM_RESOLVE_ADDR", OpCMResolveRoute: "CM_RESOLVE_ROUTE", OpCMListen: "CM_LISTEN",
	OpCMConnect: "CM_CONNECT", OpCMAccept: "CM_ACCEPT", OpCMReject: "CM_REJECT", OpCMDisconnect: "CM_DISCONNECT",
	OpCMMigrate: "CM_MIGRATE", OpCMSetOption: "CM_SET_OPTION", OpCMInitQPAttr: "CM_INIT_QP_ATTR",
	OpCMQuery: "CM_QUERY", OpCMGetEvent: "CM_GET_EVENT", OpList: "LIST", OpStat: "STAT", OpCapture: "CAPTURE",
}

func (o Op) String() string {
	if n, ok := opNames[o]; ok {
		return n
	}
	return fmt.Sprintf("Op(%d)", uint16(o))
}

// DeviceNameLen is the space for a device's name, zero padded. MaxDevices is how many names HELLO
// returns; further ones are found by QUERY_DEVICE.
const (
	DeviceNameLen = 32
	MaxDevices    = 64
)

// A DeviceName is a zero-padded name.
type DeviceName [DeviceNameLen]byte

func (n DeviceName) String() string { return CString(n[:]) }

// MakeDeviceName pads s, cutting what is too long.
func MakeDeviceName(s string) (n DeviceName) {
	copy(n[:DeviceNameLen-1], s)
	return n
}

// HelloRequest must come first, within the time that the daemon allows.
type HelloRequest struct {
	Magic    uint32 // MagicHello
	Major    uint16
	Minor    uint16
	Features uint64 // none is known
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

// An EmptyReply has a status only.
type EmptyReply struct{}

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

// A HandleRequest names one object: DEL_MEM, CTX_CLOSE, GET_ASYNC_EVENT (a context), DEALLOC_PD,
// DEREG_MR, DEALLOC_MW, DESTROY_*, QUERY_QP, QUERY_SRQ, CM_DESTROY_*, CM_DISCONNECT, CM_QUERY, CM_GET_EVENT (a channel).
type HandleRequest struct {
	Handle uint32
	Pad    uint32
}

// QueryDeviceRequest: Device counts from 0 in the order of HelloReply.Devices; ENODEV beyond the last.
type QueryDeviceRequest struct {
	Device uint32
	Pad    uint32
}

// MaxAddrs is how many addresses of a device QUERY_DEVICE returns.
const MaxAddrs = 16

// A Prefix is an address of a device. Family 0 is none.
type Prefix struct {
	Family uint16 // AFInet, AFInet6
	Bits   uint16
	Pad    uint32
	Addr   [16]byte // IPv4 in the first four
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

// QueryGIDReply is one entry.
type QueryGIDReply struct {
	GID  [16]byte
	Type uint32
	Pad  uint32
}

// CtxOpenRequest opens a device; the context owns PDs, CQs and channels.
type CtxOpenRequest struct {
	Device uint32
	Pad    uint32
}

// CtxOpenReply carries the read end of the async event pipe.
type CtxOpenReply struct {
	Ctx uint32
	Pad uint32
}

// Kinds of object in an AsyncEvent.
const (
	ObjNone = 0
	ObjCQ   = 1
	ObjQP   = 2
	ObjSRQ  = 3
)

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

// Modes of REG_MR.
const (
	ModeApp    = 0 // the program's own memory, through the fd of SET_MEM
	ModeShared = 1 // a part of a memfd of ADD_MEM
)

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

// Flags of REREG_MR: enum ibv_rereg_mr_flags.
const (
	ReregTranslation = 1 // Addr, Length, IOVA, Offset, Mode and Mem
	ReregPD          = 2
	ReregAccess      = 4
)

// ReregMRRequest changes what Flags name of a region; the other fields are zero. Its reply is REG_MR's:
// the handle stays, the keys are new. If it fails the region is as it was.
type ReregMRRequest struct {
	MR    uint32
	Flags uint32
	New   RegMRRequest
}

// AllocMRRequest makes a region of at most MaxLen octets without memory, for REG_MR work requests. Its
// reply is REG_MR's.
type AllocMRRequest struct {
	PD     uint32
	Pad    uint32
	MaxLen uint64
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

// CreateChanRequest makes a completion channel.
type CreateChanRequest struct {
	Ctx uint32
	Pad uint32
}

// CreateChanReply carries the read end of the event pipe and the ring memfd, in this order.
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

// CreateCQReply carries the CQ memfd. CQE is what it holds.
type CreateCQReply struct {
	CQ  uint32
	CQE uint32
}

// A DestroyReply says how many async events of the object the client has been given (it may wait
// until they are acknowledged), and how many were dropped, whose tokens it takes back.
type DestroyReply struct {
	Reported uint32
	Tokens   uint32
}

// CreateSRQRequest makes a shared receive queue.
type CreateSRQRequest struct {
	PD     uint32
	MaxWR  uint32
	MaxSGE uint32
	// MaxPerQP is rdma.SRQConfig's: 0 is the default, below 0 no limit.
	MaxPerQP int32
}

// CreateSRQReply carries the SRQ memfd. The counts are those that the SRQ got: never less than asked.
type CreateSRQReply struct {
	SRQ    uint32
	Bell   uint32
	MaxWR  uint32
	MaxSGE uint32
}

// Mask of MODIFY_SRQ: enum ibv_srq_attr_mask, of which the change of MaxWR is EOPNOTSUPP.
const (
	ModifySRQMaxWR = 1
	ModifySRQLimit = 2
)

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

// Flags of CREATE_QP.
const (
	CreateQPSigAll     = 1 // every send request completes visibly
	CreateQPEndInError = 2 // after a graceful end the QP is in StateErr and what is posted flushes, else in StateInit
)

// CreateQPRequest makes a QP.
type CreateQPRequest struct {
	PD     uint32
	SendCQ uint32
	RecvCQ uint32
	SRQ    uint32 // 0 none
	Caps   QPCaps
	Flags  uint32
	Pad    uint32
}

// CreateQPReply carries the QP memfd. Caps are those that the QP got: never less than asked.
type CreateQPReply struct {
	QP   uint32 // handle
	QPN  uint32
	Bell uint32
	Pad  uint32
	Caps QPCaps
}

// Mask of MODIFY_QP.
const ModifyQPState = 1

// ModifyQPRequest changes what Mask names; a mask of 0 changes nothing and succeeds.
type ModifyQPRequest struct {
	QP    uint32
	Mask  uint32
	State uint32 // StateErr...
	Pad   uint32
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
}

// Limits of LIST.
const (
	ListDev    = 1
	ListQP     = 2
	ListMR     = 3
	ListCQ     = 4
	ListCM     = 5
	ListClient = 6
	ListPort   = 7
	ListDaemon = 8

	// ListData is how much of rows one reply holds.
	ListData = MaxMessage - HeaderLen - 16
)

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
