package rdma

import (
	"context"
	"io"
	"net/netip"
	"time"
)

// A Device is one user's open view of an RNIC. Closing it destroys all that was made through it
// and ends its connections; what blocks on them returns.
type Device interface {
	Name() string
	Attr() DeviceAttr
	AllocPD() (PD, error)
	// AllocBuffer gives memory that RegisterMemory takes and that both sides of the rings reach
	// without a copy. It starts as zeroes and is page aligned. Close returns it; close its MRs first.
	AllocBuffer(size int) (Buffer, error)
	// CreateCQ makes a completion queue for at least depth completions.
	CreateCQ(depth int) (CQ, error)
	// Listen takes connection requests for addr; an unspecified address stands for all of the
	// device's, port 0 for a free one. At most backlog requests wait (0: a default).
	Listen(addr netip.AddrPort, backlog int) (Listener, error)
	// Connect connects qp and blocks until the peer has accepted or refused, or ctx ends.
	// An error is a *RejectedError if the peer's program refused.
	Connect(ctx context.Context, qp QP, remote netip.AddrPort, p ConnParam) (Conn, error)
	// NextAsyncEvent blocks until something happens to an object of this device outside of any
	// request: see AsyncEventType.
	NextAsyncEvent(ctx context.Context) (AsyncEvent, error)
	io.Closer
}

// DeviceAttr describes a device and its limits for one user.
type DeviceAttr struct {
	Name     string
	Addrs    []netip.Prefix
	MAC      [6]byte
	MTU      int // octets of an IP packet
	MaxQP    int
	MaxCQ    int
	MaxMR    int
	MaxPD    int
	MaxDepth int // work requests in a queue, completions in a CQ
	MaxSGE   int
	MaxIRD   int // inbound Reads outstanding on a QP
	MaxORD   int // outbound
	MaxMRLen uint64
	MaxMW    int
	MaxSRQ   int
	MaxSRQWR int // receives in an SRQ
}

// A Buffer is memory made by Device.AllocBuffer.
type Buffer interface {
	Bytes() []byte
	io.Closer
}

// A PD keeps objects together that may work with each other.
type PD interface {
	// RegisterMemory makes b, or a part of a Buffer, known to the RNIC. Devices in another
	// process take only parts of a Buffer of theirs.
	RegisterMemory(b []byte, access Access) (MR, error)
	// AllocMR makes a region of at most maxLen octets that is not valid yet: RegMR requests give it
	// memory and a new key, LocalInv and SendInv take them again. Its Bytes are nil.
	AllocMR(maxLen uint64) (MR, error)
	// AllocMW makes a memory window that is not bound yet: BindMW requests bind it.
	AllocMW(MWType) (MW, error)
	CreateSRQ(SRQConfig) (SRQ, error)
	CreateQP(QPConfig) (QP, error)
	io.Closer // an error while an MR, an MW, an SRQ or a QP is left
}

// An MWType says what a memory window is bound to. The numbers are enum ibv_mw_type's.
type MWType uint32

const (
	MWType1 MWType = 1 // to a PD: every QP of it serves the window; rebinding or a bind of 0 octets ends it
	// MWType2 is bound to the QP of its BindMW request: the key works on that one connection only. It
	// is ended by LocalInv or the peer's SendInv on that QP, and may then be bound again.
	MWType2 MWType = 2
)

// An MW is a memory window: a key of its own for a part of an MR, made and taken back by requests
// on a send queue. While it is bound, the MR cannot be closed.
type MW interface {
	Type() MWType
	// RKey is the key at allocation. It is not valid for anything; BindMW takes one of the same
	// upper 24 bits, see NextKey.
	RKey() uint32
	io.Closer // ends the binding first
}

// SRQConfig says what a shared receive queue is made of. Counts of 0 become 1; what the device
// gives can be more, see SRQ.Config.
type SRQConfig struct {
	MaxWR  int
	MaxSGE int
	// MaxPerQP is how many receives one QP may have taken whose completions nobody has polled
	// yet, so that one peer cannot take them all: its next Send waits, as if no receive were
	// posted. 0 is half of MaxWR, for QPs that are not alone at the SRQ; below 0 is no limit.
	MaxPerQP int
}

// An SRQ is a receive queue that several QPs of its PD take from, in the order of the posts. There is no order
// between Sends on different QPs (RFC 4296, section 2.2.2).
type SRQ interface {
	Num() uint32 // in AsyncEvent.Object
	Config() SRQConfig
	PostRecv(wr *RecvWR) error
	PostRecvs(wrs []RecvWR) (n int, err error)
	// SetLimit arms the limit: one EventSRQLimitReached when fewer than n receives are left, and
	// then it is off. 0 switches it off.
	SetLimit(n int) error
	// Limit is what is armed now, 0 if nothing is.
	Limit() (int, error)
	io.Closer // an error while a QP uses it
}

// An MR is a registered region. After Close has returned nothing more is read or written through it;
// it is ErrBusy while a window is bound to it or a fast registration covers a part of it.
//
// A peer's SendInv can end a registration by RegMR only, and one of RegisterMemory never.
type MR interface {
	LKey() uint32
	RKey() uint32
	Addr() uint64 // of the region's first octet, for SGE.Addr and SendWR.RemoteAddr
	Bytes() []byte
	io.Closer
}

// A CQ is a completion queue.
type CQ interface {
	// Poll takes up to len(wc) completions; 0 if there are none. It does not allocate.
	Poll(wc []WC) (int, error)
	// Arm asks for one event when a completion comes next (solicitedOnly: one that the peer
	// marked, or an error). Completions that came before cause none: poll again after it.
	Arm(solicitedOnly bool) error
	// Wait blocks until the event of an Arm, or ctx ends. It does not arm nor poll.
	Wait(ctx context.Context) error
	Depth() int
	io.Closer // an error while a QP uses it
}

// QPConfig says what a QP is made of. Counts of 0 become 1; what the device gives can be more, see QP.Config.
type QPConfig struct {
	SendCQ, RecvCQ CQ
	MaxSendWR      int
	MaxRecvWR      int
	MaxSendSGE     int
	MaxRecvSGE     int
	MaxInline      int  // octets
	SignalAll      bool // every send request completes visibly
	// SRQ, if set, is where the QP takes its receives from; MaxRecvWR and MaxRecvSGE mean nothing
	// then, and PostRecv is refused.
	SRQ SRQ
}

// A QPState is a state of a queue pair (docs/qp-states.md); ibv_qp_state in brackets.
type QPState uint32

const (
	QPIdle      QPState = iota // not connected (INIT)
	QPRTS                      // connected (RTS)
	QPClosing                  // graceful close under way (SQD)
	QPTerminate                // Terminate sent or received, close under way (SQE)
	QPError                    // over; all that is posted flushes (ERR)
)

func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return "?"
}

var qpStateNames = [...]string{"IDLE", "RTS", "CLOSING", "TERMINATE", "ERROR"}

// A QP is a queue pair. Posting takes no reference to the work request.
type QP interface {
	Num() uint32
	State() QPState
	// Config is what QPConfig asked for, with the counts that were given.
	Config() QPConfig
	// PostSend posts one request: ErrQueueFull, ErrInvalid (an opcode, SGE count or size it
	// cannot take) or ErrNotConnected (the QP is Idle) if it was not. On a QP in Error it is
	// taken and flushed.
	PostSend(wr *SendWR) error
	// PostSends posts wrs in order with one doorbell and says how many were taken; n < len(wrs)
	// goes with the error of wrs[n].
	PostSends(wrs []SendWR) (n int, err error)
	PostRecv(wr *RecvWR) error
	PostRecvs(wrs []RecvWR) (n int, err error)
	// Abort moves the QP to Error: the connection ends at once and what is posted flushes.
	Abort() error
	io.Closer
}

// ConnParam is what one end brings to a connection, and, in Conn.Param, what came out.
type ConnParam struct {
	PrivateData []byte // at most 508 octets, 512 with MPA revision 1; to siw at most 251
	IRD, ORD    uint16 // inbound and outbound Reads outstanding; 0 asks for the default, NoReads for none
	MPA         MPAParam
	// SCTP has the end that connects use SCTP (RFC 5043) in place of TCP; a listener takes both, and
	// ConnRequest.Param tells. The parts of MPA that SCTP has no use for, CRC, Markers and MULPDU, mean
	// nothing then. Nor does this between two QPs of one device.
	SCTP bool
	// Extensions allows the messages of RFC 7306 on the connection: atomics and immediate data. Both
	// programs have to agree on them by themselves (RFC 7306, section 1.1), so both ends set it; a
	// peer that does not know them ends the connection. Between two QPs of one device they always
	// work. Without them the requests complete with WCLocQPOp and nothing is sent.
	Extensions bool
}

// NoReads in ConnParam.IRD or ORD asks for none.
const NoReads = 0xffff

// MPAParam holds what can be set for one end of an MPA connection (RFC 5044, RFC 6581). The zero
// value asks for the defaults: revision 2 with enhanced set-up, CRC on, no markers for us, peer-to-peer
// with every kind of ready-to-receive message, FPDUs of the size of a TCP segment. What the peer
// asks for in turn is served. It means nothing between two QPs of one device.
type MPAParam struct {
	Revision     uint8 // 1 or 2; 0 is 2. That of a listener is set before requests come
	CRC          CRCMode
	Markers      bool     // ask for markers in what the peer sends
	ClientServer bool     // of the end that connects: no ready-to-receive message, so it has to send first
	RTR          RTRKinds // kinds that are offered or taken; 0 is all
	// MULPDU is the longest segment that is sent, 128 to 64768 octets, whatever TCP's segments
	// are; 0 follows them. Larger ones are fewer and cost less, but hardware peers may refuse them.
	MULPDU uint16
}

// RTRKinds is a set of ready-to-receive messages (RFC 6581, section 9.2).
type RTRKinds uint8

const (
	RTRWrite RTRKinds = 1 << iota // zero-length RDMA Write
	RTRRead                       // zero-length RDMA Read
	RTRSend                       // zero-length Send: it takes a receive of the peer's
)

// A CRCMode says whether an end of an MPA connection wants CRCs.
type CRCMode uint8

const (
	CRCDefault CRCMode = iota // as CRCWanted
	// CRCOff: not asked for; used if the peer asks. Only where something as strong guards the data
	// from end to end, IPsec for example: RFC 5044, section 4.4.
	CRCOff
	CRCWanted   // asked for, so used
	CRCRequired // as CRCWanted, and no connection to a peer that does not confirm it
)

// A Listener takes connection requests.
type Listener interface {
	Addr() netip.AddrPort
	// Next blocks until a request is there.
	Next(ctx context.Context) (ConnRequest, error)
	io.Closer // pending requests are refused
}

// A ConnRequest is a peer's wish to connect. Answer it once, by Accept or by Reject.
type ConnRequest interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	Param() ConnParam // the peer's: its private data, IRD and ORD
	// Accept connects qp and blocks until the connection is established.
	Accept(ctx context.Context, qp QP, p ConnParam) (Conn, error)
	Reject(privateData []byte) error
}

// A Conn is an established connection of a QP.
type Conn interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// Param holds the peer's private data and the IRD and ORD that were agreed.
	Param() ConnParam
	// Disconnect ends the connection gracefully; it does not wait for the peer. What is posted
	// and not sent flushes.
	Disconnect() error
	// Done is closed once the connection has ended, by either side, and the QP has been flushed.
	Done() <-chan struct{}
	// Err is nil for a graceful end and before the end, else the cause: a *TerminateError or an
	// error of the transport.
	Err() error
}

// An AsyncEventType says what happened. The numbers are enum ibv_event_type's.
type AsyncEventType uint32

const (
	EventCQErr       AsyncEventType = 0
	EventQPFatal     AsyncEventType = 1
	EventQPReqErr    AsyncEventType = 2
	EventQPAccessErr AsyncEventType = 3
	EventSQDrained   AsyncEventType = 5
	EventDeviceFatal AsyncEventType = 8
	EventPortActive  AsyncEventType = 9
	EventSRQErr      AsyncEventType = 14
	// EventSRQLimitReached: see SRQ.SetLimit.
	EventSRQLimitReached AsyncEventType = 15
	// EventLastWQEReached: a QP with an SRQ is in Error and takes nothing from it any more.
	EventLastWQEReached AsyncEventType = 16
)

var asyncNames = map[AsyncEventType]string{
	EventCQErr: "CQ_ERR", EventQPFatal: "QP_FATAL", EventQPReqErr: "QP_REQ_ERR", EventQPAccessErr: "QP_ACCESS_ERR",
	EventSQDrained: "SQ_DRAINED", EventDeviceFatal: "DEVICE_FATAL", EventPortActive: "PORT_ACTIVE",
	EventSRQErr: "SRQ_ERR", EventSRQLimitReached: "SRQ_LIMIT_REACHED", EventLastWQEReached: "QP_LAST_WQE_REACHED",
}

func (t AsyncEventType) String() string {
	if n, ok := asyncNames[t]; ok {
		return n
	}
	return "EVENT_UNKNOWN"
}

// An AsyncEvent reports what happened to an object: a QP number, an SRQ number or a CQ handle.
type AsyncEvent struct {
	Type   AsyncEventType
	Object uint32
	Time   time.Time
	Cause  *TerminateError // of QP events, where there is one
}
