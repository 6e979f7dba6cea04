package rdma

import "fmt"

// An Opcode says what a send work request does. The numbers are enum ibv_wr_opcode's.
type Opcode uint8

const (
	OpWrite Opcode = 0
	// OpWriteImm is a Write with RFC 7306 Immediate Data behind it, two messages: one completion here, when
	// both have gone out, and one at the peer, where the data takes a receive.
	OpWriteImm Opcode = 1
	OpSend     Opcode = 2
	// OpSendImm is Immediate Data alone. It has no payload: a Send with immediate data of one and the
	// same receive does not exist in iWARP, and a post with octets to send is refused.
	OpSendImm     Opcode = 3
	OpRead        Opcode = 4
	OpCompareSwap Opcode = 5
	OpFetchAdd    Opcode = 6
	OpLocalInv    Opcode = 7
	OpBindMW      Opcode = 8
	OpSendInv     Opcode = 9
	// Atomics with masks have no number in libibverbs; these are the kernel's.
	OpMaskedCompareSwap Opcode = 12
	OpMaskedFetchAdd    Opcode = 13
	// OpRegMR is a fast registration, the kernel's IB_WR_REG_MR.
	OpRegMR Opcode = 32
)

const opcodeNumCount = 33

var opcodeNames = [opcodeNumCount]string{
	OpWrite:       "WRITE",
	OpWriteImm:    "WRITE_WITH_IMM",
	OpSend:        "SEND",
	OpSendImm:     "SEND_WITH_IMM",
	OpRead:        "READ",
	OpCompareSwap: "CMP_SWP",
	OpFetchAdd:    "FETCH_ADD",
	OpLocalInv:    "LOCAL_INV",
	OpBindMW:      "BIND_MW",
	OpSendInv:     "SEND_WITH_INV",

	OpMaskedCompareSwap: "MASKED_CMP_SWP",
	OpMaskedFetchAdd:    "MASKED_FETCH_ADD",
	OpRegMR:             "REG_MR",
}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) && opcodeNames[o] != "" {
		return opcodeNames[o]
	}
	return fmt.Sprintf("Opcode(%d)", uint8(o))
}

// SendFlags modify a send work request. The bits are enum ibv_send_flags'.
type SendFlags uint8

const (
	// Fence holds the request back until all earlier Reads of its queue have completed.
	Fence SendFlags = 1 << 0
	// Signaled asks for a completion on success; an error always completes.
	Signaled SendFlags = 1 << 1
	// Solicited asks the peer to raise a solicited event (Sends and immediate data only).
	Solicited SendFlags = 1 << 2
	// Inline sends SendWR.Inline instead of registered memory; the octets are taken by the post.
	Inline SendFlags = 1 << 3
)

// An SGE names Length octets at Addr of a registered region.
type SGE struct {
	Addr   uint64 // an address within the region, counted as MR.Addr is
	Length uint32
	LKey   uint32
}

// A SendWR asks a QP to send a message. Its octets are those of Inline if the flag is set, else of
// SGEs one after the other (for a Read, where the answer goes).
type SendWR struct {
	ID     uint64 // the WC carries it back
	Op     Opcode
	Flags  SendFlags
	SGEs   []SGE
	Inline []byte

	RemoteAddr uint64 // Write, Read, atomics: address in the peer's region. BindMW, RegMR: see Range
	RKey       uint32 // Write, Read, atomics: the peer's key. BindMW, RegMR: the new key, see NextKey
	Imm        uint32 // SendImm, WriteImm: the first four octets of immediate data, as a big-endian number
	ImmLow     uint32 // the last four of RFC 7306's eight; libibverbs has none, so 0 from verbs programs
	InvKey     uint32 // SendInv: the peer's key to invalidate; LocalInv: our own

	Atomic AtomicArgs // atomics only
	Range  MemRange   // BindMW, RegMR only
}

// AtomicArgs are the operands of an atomic on 8 octets of the peer's memory at SendWR.RemoteAddr,
// which must be a multiple of 8 (RFC 7306, section 5). The old value is written to the 8 octets of
// the SGEs, in this host's byte order, as the target is in the peer's.
//
// FetchAdd adds CompareAdd modulo 2^64. MaskedFetchAdd drops the carry out of each bit that is set in
// SwapMask, so that several fields are added at once. CompareSwap stores Swap if the old value is
// CompareAdd. MaskedCompareSwap compares the bits in CompareMask only, and replaces those in SwapMask.
type AtomicArgs struct {
	CompareAdd, Swap      uint64
	CompareMask, SwapMask uint64 // of the masked operations only
}

// A MemRange is what a memory window or a fast registration covers: Length octets at Addr of the
// region with key LKey. The peer calls its first octet SendWR.RemoteAddr. Length 0 unbinds a window
// of type 1.
//
// Access may have remote rights that the region has not: a region can be closed to peers, and parts of
// it open for a while. What lets write needs the region's LocalWrite; a window also needs its MWBind.
type MemRange struct {
	Addr, Length uint64
	LKey         uint32
	Access       Access
}

// NextKey gives the next key for a window or for an MR of PD.AllocMR: the upper 24 bits name the
// object, the lower 8 are its user's.
func NextKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// A RecvWR posts a buffer for one Send of the peer.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// A WCStatus says how a work request ended. The numbers are enum ibv_wc_status'.
type WCStatus uint32

const (
	WCSuccess   WCStatus = 0
	WCLocLen    WCStatus = 1 // the message is longer than the buffer
	WCLocQPOp   WCStatus = 2
	WCLocProt   WCStatus = 4 // a bad key, range or right of one's own memory
	WCFlush     WCStatus = 5 // the QP ended first
	WCMWBind    WCStatus = 6
	WCBadResp   WCStatus = 7
	WCLocAccess WCStatus = 8
	WCRemInvReq WCStatus = 9
	WCRemAccess WCStatus = 10 // the peer refused access to its memory
	WCRemOp     WCStatus = 11
	WCFatal     WCStatus = 19
	WCGeneral   WCStatus = 21
)

var statusNames = map[WCStatus]string{
	WCSuccess: "success", WCLocLen: "local length error", WCLocQPOp: "local QP operation error",
	WCLocProt: "local protection error", WCFlush: "work request flushed", WCMWBind: "memory window bind error",
	WCBadResp: "bad response error", WCLocAccess: "local access error", WCRemInvReq: "remote invalid request error",
	WCRemAccess: "remote access error", WCRemOp: "remote operation error", WCFatal: "fatal error",
	WCGeneral: "general error",
}

func (s WCStatus) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("WCStatus(%d)", uint32(s))
}

// A WCOpcode says what a completion completes. The numbers are enum ibv_wc_opcode's.
type WCOpcode uint32

const (
	WCSend        WCOpcode = 0
	WCWrite       WCOpcode = 1
	WCRead        WCOpcode = 2
	WCCompareSwap WCOpcode = 3
	WCFetchAdd    WCOpcode = 4
	WCBindMW      WCOpcode = 5
	WCLocalInv    WCOpcode = 6
	WCRegMR       WCOpcode = 32 // as the request
	WCRecv        WCOpcode = 128
	// WCRecvImm: Immediate Data took the receive, whose buffer is as it was. ByteLen is 0: the message
	// does not say whether a Write belongs to it, nor how long that was.
	WCRecvImm WCOpcode = 129
)

// WCFlags say which optional fields of a WC hold something. The bits are enum ibv_wc_flags'.
type WCFlags uint32

const (
	WCWithImm WCFlags = 1 << 1 // Imm is immediate data
	WCWithInv WCFlags = 1 << 3 // Imm is the key that the peer's Send invalidated
)

// A WC is a completion. Op, ByteLen, Imm and Flags hold something only if Status is WCSuccess.
type WC struct {
	ID        uint64
	Status    WCStatus
	Op        WCOpcode
	VendorErr uint32 // layer<<12 | type<<8 | code of the Terminate that caused it, else 0
	ByteLen   uint32 // Recv, Read: octets received
	Imm       uint32
	ImmLow    uint32 // the last four octets of immediate data; see SendWR.ImmLow
	QPN       uint32
	Flags     WCFlags
}

// Access says what a region may be used for. The bits are enum ibv_access_flags'. Local read is always allowed.
type Access uint32

const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
	MWBind       Access = 1 << 4 // windows may be bound to the region
)

func (a Access) String() string {
	b := []byte("-----")
	for i, c := range []byte("lwrab") {
		if a&(1<<i) != 0 {
			b[i] = c
		}
	}
	return string(b)
}
