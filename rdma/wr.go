package rdma

import "fmt"

// An Opcode says what a send work request does. The numbers are enum ibv_wr_opcode's.
type Opcode uint8

const (
	OpWrite Opcode = 0
	// OpWriteImm is a Write with Immediate Data (RFC 7306) behind it, in two messages. It has one
	// completion here, when both have gone out, and one at the peer, where it takes a receive.
	OpWriteImm Opcode = 1
	OpSend     Opcode = 2
	// OpSendImm is a Send with immediate data. On iWARP it is Immediate Data alone and has no payload:
	// a Send with immediate data of one and the same receive does not exist there, and a post with
	// octets to send is refused.
	OpSendImm     Opcode = 3
	OpRead        Opcode = 4
	OpCompareSwap Opcode = 5
	OpFetchAdd    Opcode = 6
	OpLocalInv    Opcode = 7 // ends a binding of an MW or a fast registration of this end
	OpBindMW      Opcode = 8 // see MW
	OpSendInv     Opcode = 9 // a Send that ends one of the peer's
	// Atomics with masks have no number in libibverbs; these are the kernel's.
	OpMaskedCompareSwap Opcode = 12
	OpMaskedFetchAdd    Opcode = 13
	// OpRegMR is a fast registration, see PD.AllocMR; the kernel's IB_WR_REG_MR.
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
	// Fence holds the request back until all earlier Reads and atomics of its queue have completed.
	Fence SendFlags = 1 << 0
	// Signaled asks for a completion on success; an error always has one.
	Signaled SendFlags = 1 << 1
	// Solicited lets the peer's completion wake whoever has armed a CQ for solicited ones only. It is
	// for Sends and immediate data.
	Solicited SendFlags = 1 << 2
	// Inline sends SendWR.Inline instead of registered memory; the octets are taken by the post.
	Inline SendFlags = 1 << 3
)

// An SGE (scatter/gather element) names a piece of registered memory of this end.
type SGE struct {
	Addr   uint64 // an address within the region, counted as MR.Addr is
	Length uint32 // in octets
	LKey   uint32 // the region's
}

// A SendWR asks a QP to send a message. Its octets are those of Inline if the flag is set, else of
// SGEs one after the other (for a Read, where the answer goes).
type SendWR struct {
	ID     uint64 // the WC carries it back
	Op     Opcode
	Flags  SendFlags
	SGEs   []SGE
	Inline []byte

	// Write, Read and atomics: where in the peer's memory, with the address and the key that its
	// program has told. BindMW, RegMR: the key that the peer shall use, made by NextKey, and the
	// address that it shall use for the first octet, often Range.Addr, or 0.
	RemoteAddr uint64
	RKey       uint32

	// SendImm, WriteImm: the eight octets of immediate data as two big-endian numbers. libibverbs has
	// the first only: ImmLow is 0 from verbs programs.
	Imm, ImmLow uint32
	InvKey      uint32 // SendInv: the peer's key to invalidate; LocalInv: one of this end

	Atomic AtomicArgs // atomics only
	Range  MemRange   // BindMW, RegMR only
	To     Datagram   // of a UD QP only
}

// A Datagram is where a UD QP sends to.
type Datagram struct {
	AH   uint32 // AH.Handle
	QPN  uint32
	QKey uint32 // with the top bit set, the QP's own is sent
}

// AtomicArgs are the operands of an atomic on 8 octets of the peer's memory at SendWR.RemoteAddr,
// which must be a multiple of 8 (RFC 7306, section 5). The old value is written to the 8 octets of
// the SGEs, in this host's byte order, as the target is in the peer's.
//
// FetchAdd adds CompareAdd modulo 2^64. MaskedFetchAdd drops the carry out of each bit that is set
// in SwapMask, so that several fields are added at once. CompareSwap stores Swap if the old value
// is CompareAdd. MaskedCompareSwap compares the bits in CompareMask only, and replaces those in
// SwapMask.
type AtomicArgs struct {
	CompareAdd, Swap      uint64
	CompareMask, SwapMask uint64 // of the masked operations only
}

// A MemRange is what a memory window or a fast registration covers: Length octets at Addr of the
// region with key LKey. Length 0 unbinds a window of type 1.
//
// Access may have remote rights that the region has not: a region can be closed to peers, and parts
// of it open for a while. What lets a peer write needs LocalWrite of the region, and with OpRegMR
// in Access too. A window needs MWBind of the region.
type MemRange struct {
	Addr, Length uint64
	LKey         uint32
	Access       Access
}

// NextKey gives the next key for a window or for an MR of PD.AllocMR: the upper 24 bits name the
// object, the lower 8 are its user's.
func NextKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// A RecvWR posts memory for one Send of the peer, which fills the SGEs one after the other, or for
// its immediate data, which leave them alone.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// A WCStatus says how a work request ended. The numbers are enum ibv_wc_status'.
type WCStatus uint32

const (
	WCSuccess   WCStatus = 0
	WCLocLen    WCStatus = 1 // the message is longer than the buffer
	WCLocQPOp   WCStatus = 2 // the QP cannot do that, such as an atomic without ConnParam.Extensions
	WCLocProt   WCStatus = 4 // a bad key, range or right of one's own memory
	WCFlush     WCStatus = 5 // the QP ended first
	WCMWBind    WCStatus = 6 // a window or a fast registration that may not be, see MemRange
	WCBadResp   WCStatus = 7
	WCLocAccess WCStatus = 8
	WCRemInvReq WCStatus = 9
	WCRemAccess WCStatus = 10 // the peer refused access to its memory
	WCRemOp     WCStatus = 11
	WCRetryExc  WCStatus = 12 // RoCE: the peer did not answer
	WCRNRRetry  WCStatus = 13 // RoCE: the peer had no receive
	WCFatal     WCStatus = 19
	WCGeneral   WCStatus = 21
)

var statusNames = map[WCStatus]string{
	WCSuccess: "success", WCLocLen: "local length error", WCLocQPOp: "local QP operation error",
	WCLocProt: "local protection error", WCFlush: "work request flushed",
	WCMWBind:  "memory window bind error",
	WCBadResp: "bad response error", WCLocAccess: "local access error",
	WCRemInvReq: "remote invalid request error",
	WCRemAccess: "remote access error", WCRemOp: "remote operation error", WCFatal: "fatal error",
	WCRetryExc: "transport retry counter exceeded", WCRNRRetry: "RNR retry counter exceeded",
	WCGeneral: "general error",
}

func (s WCStatus) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("WCStatus(%d)", uint32(s))
}

// A WCOpcode says what a completion completes. The numbers are enum ibv_wc_opcode's.
type WCOpcode uint16

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
	// WCRecvImm: a Write with immediate data took the receive, whose buffer is as it was. On iWARP
	// that is any Immediate Data, and ByteLen is 0: the message does not say whether a Write belongs
	// to it, nor how long that was. On RoCE ByteLen is the Write's.
	WCRecvImm WCOpcode = 129
)

// WCFlags say which optional fields of a WC hold something. The bits are enum ibv_wc_flags'.
type WCFlags uint16

const (
	// WCGRH: of a UD QP; the first 40 octets of the receive are the network header, and ByteLen counts
	// them.
	WCGRH     WCFlags = 1 << 0
	WCWithImm WCFlags = 1 << 1 // Imm is immediate data
	WCWithInv WCFlags = 1 << 3 // Imm is the key that the peer's Send invalidated
)

// A WC is a completion. Op, ByteLen, Imm and Flags hold something only if Status is WCSuccess.
type WC struct {
	ID        uint64 // of the SendWR or RecvWR
	Status    WCStatus
	VendorErr uint32 // layer<<12 | type<<8 | code of the Terminate that caused it, else 0
	ByteLen   uint32 // Recv, Read: octets received
	Imm       uint32 // what Flags says
	ImmLow    uint32 // the last four octets of immediate data; see SendWR.ImmLow
	QPN       uint32 // QP.Num
	SrcQP     uint32 // of a UD QP: who has sent it
	Op        WCOpcode
	Flags     WCFlags
}

// Access says what a region may be used for. The bits are enum ibv_access_flags'. To be read by
// this end's requests needs no right.
type Access uint32

const (
	LocalWrite   Access = 1 << 0 // by receives, and by Reads and atomics of this end
	RemoteWrite  Access = 1 << 1 // by Writes of the peer; needs LocalWrite
	RemoteRead   Access = 1 << 2 // by Reads of the peer
	RemoteAtomic Access = 1 << 3 // by atomics of the peer; needs LocalWrite
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
