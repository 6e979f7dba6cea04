package abi

// This file is the shared-memory half of the ABI: every offset, size, magic and flag. Rings are in
// host byte order; hosts are 64-bit and little-endian. Every word that two processes share is an
// aligned uint32. Lines are 64 octets with one writer each, unless "both" is noted.
//
// A change here is a change of the ABI: doc.go says which version it raises, and go generate makes
// verbs/abi.h of it.

// Version of the ABI. Majors must be equal on both sides; the smaller minor counts.
const (
	Major = 1
	Minor = 2
)

// Magics: the first word of each kind of shared memory, and of HELLO.
const (
	MagicHello   = 0x484e5256 // "VRNH"
	MagicSession = 0x534e5256 // "VRNS"
	MagicQP      = 0x514e5256 // "VRNQ"
	MagicCQ      = 0x434e5256 // "VRNC"
	MagicChannel = 0x454e5256 // "VRNE"
	MagicSRQ     = 0x524e5256 // "VRNR"
	MagicPair    = 0x504e5256 // "VRNP"
	MagicKeys    = 0x4b4e5256 // "VRNK"
)

// Session page.
const (
	SessMagic     = 0  // const
	SessMajor     = 4  // const, u16
	SessMinor     = 6  // const, u16
	SessID        = 8  // const
	SessBellWords = 12 // const: words of bells
	SessBellOff   = 16 // const
	SessPollYield = 20 // const: empty polls after which poll_cq yields the processor
	SessNonce     = 24 // const, 16 octets
	SessSleeping  = 64 // both: the daemon blocks on the doorbell
	SessHeaderLen = 128

	NonceLen = 16
	// PollYield is the value of SessPollYield.
	PollYield = 64
)

// QP memory. An SRQ has the RQ half of it, with MagicSRQ and its handle as QPNum; what a QP has
// beyond that is 0. A QP that takes its receives from an SRQ has an RQ of size 0. Indices of rings
// and of slabs run free; sizes are powers of two.
const (
	QPMagic       = 0 // line 0 is const
	QPNum         = 4
	QPSQSize      = 8
	QPSQStride    = 12
	QPRQSize      = 16
	QPRQStride    = 20
	QPSQOff       = 24
	QPRQOff       = 28
	QPTxSlabOff   = 32
	QPTxSlabSize  = 36
	QPRxSlabOff   = 40
	QPRxSlabSize  = 44
	QPMaxInline   = 48
	QPFlags       = 52
	QPSQProd      = 64  // line 1 client
	QPTxSlabProd  = 68  // octets put into the slab: stored before QPSQProd
	QPRQProd      = 128 // line 2 client
	QPRxSlabCons  = 132 // octets taken out of the slab
	QPSQDone      = 192 // line 3 daemon: send WQEs retired, in order
	QPRQHead      = 196 // receive WQEs taken
	QPState       = 200 // an ibv_qp_state, below
	QPTxSlabCons  = 204 // octets of retired requests
	QPError       = 208 // cause of the end: ErrorValid | ErrorRemote | vendor_err, or 0
	QPRxSlabProd  = 212 // octets of completed receives
	QPRQStarved   = 256 // line 4 daemon: ring the bell for the next receive
	QPHeaderLen   = 320
	ErrorValid    = 1 << 31
	ErrorRemote   = 1 << 30
	ErrorCauseMax = 1<<16 - 1 // layer<<12 | type<<8 | code
)

// Values of QPState: enum ibv_qp_state.
const (
	StateReset = 0
	StateInit  = 1
	StateRTR   = 2
	StateRTS   = 3
	StateSQD   = 4
	StateSQE   = 5
	StateErr   = 6
)

// Send WQE. Some operations use words in a way of their own:
//
//   - Immediate data: its eight octets as on the wire at SQImm, four of them, and SQImmLow.
//   - Atomics: SQCmpAdd and SQSwap; the masked ones have one SGE and their masks behind it.
//   - BIND_MW and REG_MR: SQRKey is the new key, SQRemoteAddr the address of the first octet in the
//     region, SQCmpAdd how many there are, SQSwap the access. The one SGE, of length 0, has the
//     region's lkey, and as its address what the peer calls the first octet (0: zero based).
//   - A UD QP sends to SQRemoteQPN with SQRemoteQKey; SQAH is the Key of CREATE_AH.
const (
	SQWRID       = 0  // u64
	SQOp         = 8  // u8, enum ibv_wr_opcode
	SQFlags      = 9  // u8, SQSignaled...
	SQNumSGE     = 10 // u16
	SQLength     = 12 // octets of the message: the sum of the SGEs, of inline or of the slab range
	SQRemoteAddr = 16 // u64
	SQRKey       = 24
	SQImm        = 28 // immediate data in wire order, or the key to invalidate in host order
	SQCmpAdd     = 32 // u64
	SQImmLow     = 32 // the low half of SQCmpAdd
	SQSwap       = 40 // u64
	SQSGE        = 48 // SGEs, or inline octets, or the u32 offset into the tx slab
	SQCmpMask    = 64 // u64, of masked atomics
	SQSwapMask   = 72 // u64
	SQAH         = 16 // of a UD QP: the low half of SQRemoteAddr
	SQRemoteQPN  = 24 // of a UD QP: SQRKey
	SQRemoteQKey = 40 // of a UD QP: the low half of SQSwap

	SQSignaled  = 1
	SQSolicited = 2
	SQFence     = 4
	SQInline    = 8
	SQSlab      = 16
)

// SGE within a WQE.
const (
	SGEAddr   = 0 // u64
	SGELength = 8
	SGELKey   = 12
	SGELen    = 16
)

// Receive WQE. Stride is RQSGE + SGELen*max_sge.
const (
	RQWRID   = 0 // u64
	RQNumSGE = 8
	RQCookie = 12
	RQSGE    = 16
)

// CQ memory.
const (
	CQMagic     = 0 // line 0 is const
	CQHandle    = 4
	CQSize      = 8
	CQCQEOff    = 12
	CQProd      = 64 // line 1 daemon
	CQOverrun   = 68
	CQCons      = 128 // line 2 client
	CQArm       = 192 // line 3 both
	CQHeaderLen = 256

	ArmSolicited = 1 // an event for the next solicited completion or error
	ArmNext      = 2 // an event for the next completion of any kind
	ArmQueued    = 4 // an event is queued and not yet taken
)

// CQE. The first 40 octets are those of struct ibv_wc.
const (
	CQEWRID      = 0 // u64
	CQEStatus    = 8
	CQEOpcode    = 12
	CQEVendorErr = 16
	CQEByteLen   = 20
	CQEImm       = 24 // immediate data in wire order, or the invalidated key in host order
	CQEQPN       = 28 // 0: of one that the program has destroyed
	CQESrcQP     = 32 // on iWARP, with immediate data: its last four octets, in wire order
	CQEWCFlags   = 36
	CQESQDone    = 40
	CQECookie    = 44
	CQESlabOff   = 48 // where in the rx slab the message is; NoSlab: in the receive's memory
	CQESlabLen   = 52
	CQETimestamp = 56 // u64, CLOCK_MONOTONIC nanoseconds
	CQELen       = 64

	NoSlab = 0xffffffff
)

// Completion channel memory.
const (
	ChanMagic     = 0 // line 0 is const
	ChanHandle    = 4
	ChanSize      = 8
	ChanOff       = 12
	ChanProd      = 64  // line 1 daemon
	ChanCons      = 128 // line 2 client
	ChanHeaderLen = 192

	// ChanSlots is how many CQ handles a channel's ring holds.
	ChanSlots = 4096
)

// Memory of a pair: of two connected QPs whose programs exchange messages without the daemon
// (docs/direct.md). Of each direction it has what goes from one of them, the sender, to the other.
const (
	PairMagic     = 0  // line 0 is const
	PairQPN       = 4  // of the first QP; the second one's behind it
	PairOff       = 16 // of the direction from the first QP; the other one's behind it
	PairSlots     = 24 // how many slots that has, a power of two; the other one's behind it
	PairSlab      = 32 // octets of its slab; the other one's behind it
	PairReach     = 40 // what keys may give its sender: enum ibv_access_flags; behind it the other's
	PairHeaderLen = 64

	DirOpen       = 0   // line 0 daemon: the sender may, if its send queue is drained
	DirRecvBase   = 4   // receives that are used: stored before QPSQDone of the sender
	DirSeq        = 64  // line 1 sender: odd while it looks at what the daemon may take from it
	DirRecvDone   = 68  // receives that are used
	DirNotify     = 72  // messages for which the receiver's CQ wanted an event
	DirSolicited  = 76  // solicited ones of them
	DirMessages   = 80  // u64, those that a receive has got
	DirOctets     = 88  // u64, of them and of Writes
	DirOwn        = 96  // requests that are over for which its own CQ wanted an event
	DirAsked      = 104 // u64, of DirMessages those that were solicited
	DirCompleted  = 112 // requests that have completed without the daemon, if its CQ is not covered
	DirPolled     = 116 // of DirCompleted those that are polled
	DirSlabCons   = 128 // line 2 receiver: octets taken out of the slab
	DirWant       = 132 // what its CQ is armed for
	DirSpoiled    = 136 // not 0: what has come makes no sense, and the connection is to end
	DirPassed     = 140 // times that the daemon is to raise an event of which a sleeper has heard
	DirTakes      = 144 // what its library knows of beside Sends: TakesImm
	DirBit        = 148 // and one, in the bitmap of its CQ, that is set behind each message; 0: none
	DirWrites     = 192 // line 3 sender: u64
	DirReads      = 200 // u64
	DirReadOctets = 208 // u64, octets of Reads
	DirAtomics    = 216 // u64
	DirImms       = 224 // u64, of DirMessages those that are immediate data
	DirHeard      = 232 // messages for which a sleeper wanted an event, or was about to sleep
	DirHeardAsked = 236 // solicited ones beside them
	DirUnsent     = 240 // u64, of DirWrites those of which iWARP sends but the immediate data
	DirRooms      = 256 // receiver: a room for each slot, then the slots, each on lines of its own

	// In DirWant, beside what CQArm has.
	WantAsleep = 4 // who waits is woken by the socket of DIRECT_SLEEP
	WantSleep  = 8 // and what lies from here on tells this sleep from others

	// In DirTakes: immediate data. Earlier libraries say 0, and have it from the daemon.
	TakesImm = 1

	// Room i says that receive i is posted (docs/decisions.md#X3).
	RoomStamp  = 0 // i + 1, XOR RoomBit if there is DirBit: stored last
	RoomLength = 4 // octets that it takes; NoRoom: a message for it goes by the daemon
	RoomLen    = 8

	NoRoom  = 0xffffffff
	RoomBit = 1 << 31 // earlier libraries, which set no bits, find no receive

	// Slot i is the message that receive i has got (docs/decisions.md#X4).
	SlotStamp   = 0  // i + 1: stored last
	SlotLength  = 4  // octets of the message, immediate data not among them
	SlotFlags   = 8  // SQSolicited, SlotImm, SlotWrite
	SlotSlabOff = 12 // where in the slab it is; NoSlab: in the slot
	SlotData    = 16
	SlotLen     = 128

	SlotImm   = 256 // in front of its octets are ImmLen of immediate data, as from SQImm on
	SlotWrite = 512 // with it: no octets follow, and SlotLength is what the completion says of a Write
	ImmLen    = 8
)

// Table of the keys that open memory of a protection domain, for those who write and read there
// without the daemon. A key's entry is at (key >> 8) & (size - 1) or one of the seven behind.
const (
	KeysMagic     = 0 // line 0 is const
	KeysSize      = 4 // entries, a power of two
	KeysOff       = 8
	KeysGone      = 12 // counts memory that has been taken back
	KeysHeaderLen = 64

	KeyKey    = 0  // 0: there is none. Stored last.
	KeyAccess = 4  // enum ibv_access_flags
	KeyQPN    = 8  // of the only QP whose peer it serves; 0: all of the domain
	KeyMem    = 12 // of ADD_MEM, in the owner's session
	KeyAddr   = 16 // u64, that the peer says for the first octet
	KeyLength = 24 // u64
	KeyOffset = 32 // u64, of the first octet in Mem
	KeyLen    = 64
)

// Bitmap of a CQ's: of those of many QPs that have a direct path which are to be looked at
// (docs/direct.md#many, docs/decisions.md#X17). All peers may write all of it, so nothing there
// says how it is laid out: MaxBits bits come behind the header.
const (
	BitsWant      = 0 // line 0 receiver: what the CQ is armed for, in place of DirWant
	BitsHeaderLen = 64
)

// Bounds that no peer may exceed, whatever the quotas say.
const (
	MaxDepth   = 65536   // slots of a queue, and of a channel's ring
	MaxCQDepth = 1 << 20 // slots of a CQ: those of many QPs complete there
	MaxBits    = 4096    // of a CQ's bitmap
	MaxSGE     = 32      // SGEs of a WQE
	MaxInline  = 1024    // inline octets of a WQE
	MinInline  = 64      // what a QP gets at least; so a stride has room for the masks of an atomic
	MaxSlab    = 1 << 20
	MinSlab    = 64 // and the granularity of slabs

	// MaxSlabRecv is the longest receive that goes through an rx slab: copying more costs more than
	// the daemon's access to the program's memory.
	MaxSlabRecv = 8192

	MaxSQStride = 1088 // roundup64(SQSGE + max(SGELen*MaxSGE, MaxInline))
	MaxRQStride = RQSGE + SGELen*MaxSGE
)

// SQStride is the stride of a send queue whose WQEs have up to maxSGE SGEs or maxInline octets.
func SQStride(maxSGE, maxInline int) int {
	return (SQSGE + max(SGELen*maxSGE, maxInline) + 63) &^ 63
}

// RQStride is the stride of a receive queue whose WQEs have up to maxSGE SGEs.
func RQStride(maxSGE int) int { return RQSGE + SGELen*maxSGE }

// DirSlots is where in a direction its n slots begin.
func DirSlots(n uint32) uint32 { return Align64(DirRooms + RoomLen*n) }
