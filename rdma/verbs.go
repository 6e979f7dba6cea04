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
	// AllocBuffer gives size octets of memory that RegisterMemory takes, and that a daemon reaches
	// as directly as this process. It is zero and begins at a page. Close its MRs before it.
	AllocBuffer(size int) (Buffer, error)
	// CreateCQ makes a completion queue for at least depth completions.
	CreateCQ(depth int) (CQ, error)
	// Listen takes connection requests for addr: one of the device's addresses, or the unspecified
	// one (0.0.0.0 or ::) for all of them, and a port, of which 0 is any free one. At most backlog
	// requests wait to be taken (0: a default); those beyond it are refused.
	Listen(addr netip.AddrPort, backlog int) (Listener, error)
	// Connect connects qp, which must be Idle, and blocks until the peer has accepted or refused, or
	// ctx ends. The error is, or wraps, a *RejectedError if the peer's program refused, and else a
	// syscall.Errno: ECONNREFUSED if nobody listens there, ECONNRESET if the connection was lost or
	// closed before the peer answered, ETIMEDOUT if nothing was heard, EHOSTUNREACH or ENETUNREACH, or
	// EPROTO for an answer that breaks the protocol. qp is in state Error then, and its receives have
	// flushed; Modify to Idle makes it usable again.
	Connect(ctx context.Context, qp QP, remote netip.AddrPort, p ConnParam) (Conn, error)
	// GID is entry index of the device's GID table: 0 is the link-local address of its MAC, then its
	// addresses. ErrInvalid beyond the table and on a device of iWARP.
	GID(index int) (GIDEntry, error)
	// NextAsyncEvent blocks until something happens to an object of this device that no completion
	// tells, or ctx ends: see AsyncEventType.
	NextAsyncEvent(ctx context.Context) (AsyncEvent, error)
	io.Closer
}

// DeviceAttr describes a device and its limits for one user.
type DeviceAttr struct {
	Name      string
	Addrs     []netip.Prefix
	MAC       [6]byte
	MTU       int // octets of an IP packet
	MaxQP     int // how many QPs this user may have; and so on
	MaxCQ     int
	MaxMR     int
	MaxPD     int
	MaxDepth  int    // work requests in a queue, completions in a CQ
	MaxSGE    int    // pieces of memory that one work request names
	MaxInline int    // octets in a work request itself
	MaxIRD    int    // inbound Reads outstanding on a QP
	MaxORD    int    // outbound
	MaxMRLen  uint64 // octets of a region
	MaxMW     int
	MaxSRQ    int
	MaxSRQWR  int // receives in an SRQ
	// What a device of a daemon says of who made it: itself, or a card that it shows itself as.
	VendorID, PartID, HWVersion uint32
	Firmware                    string
	// Of a RoCE device; zero of one of iWARP.
	RoCE      bool
	ActiveMTU MTU // the largest path MTU
	GIDs      int // entries of the GID table
	MaxAH     int
	MaxGroups int // multicast groups, and QPs that may be attached to one
}

// A Buffer is memory made by Device.AllocBuffer.
type Buffer interface {
	Bytes() []byte
	io.Closer
}

// A PD is a protection domain: memory can be used only by QPs and SRQs of the same PD.
type PD interface {
	// RegisterMemory lets the RNIC use b for what access says. On a device of a daemon b has to be
	// a Buffer of that device, or a part of one.
	RegisterMemory(b []byte, access Access) (MR, error)
	// AllocMR makes a region without memory, for fast registration: an OpRegMR request gives it up
	// to maxLen octets of another region and a new key, OpLocalInv, or the peer's OpSendInv, takes
	// them from it again. Its Bytes are nil.
	AllocMR(maxLen uint64) (MR, error)
	// AllocMW makes a memory window that is not bound yet: OpBindMW requests bind it.
	AllocMW(MWType) (MW, error)
	CreateSRQ(SRQConfig) (SRQ, error)
	CreateQP(QPConfig) (QP, error)
	// CreateAH makes an address handle; it finds out where the peer is, and may wait for that.
	// ErrUnsupported on a device of iWARP.
	CreateAH(AHAttr) (AH, error)
	io.Closer // an error while an MR, an MW, an SRQ or a QP is left
}

// An MWType says what a memory window is bound to. The numbers are enum ibv_mw_type's.
type MWType uint32

const (
	// MWType1 is bound to its PD: the key works on every connection of the PD's QPs. A next OpBindMW
	// ends the binding before; one of 0 octets does nothing else.
	MWType1 MWType = 1
	// MWType2 is bound to the QP of its OpBindMW request: the key works on that one connection. The
	// binding is ended by OpLocalInv there or by the peer's OpSendInv; then it may be bound again.
	MWType2 MWType = 2
)

// An MW is a memory window: a key of its own for a part of an MR, made and taken back by requests
// on a send queue. While it is bound, the MR cannot be closed.
type MW interface {
	Type() MWType
	// RKey is what NextKey makes the key of the first binding from. It opens nothing by itself.
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

// An SRQ is a shared receive queue: several QPs of its PD take their receives from it, in the order
// of the posts. There is no order between Sends on different QPs (RFC 4296, section 2.2.2).
type SRQ interface {
	Num() uint32 // in AsyncEvent.Object
	// Config is what SRQConfig asked for, with the counts that were given.
	Config() SRQConfig
	// PostRecv and PostRecvs are as a QP's.
	PostRecv(wr *RecvWR) error
	PostRecvs(wrs []RecvWR) (n int, err error)
	// SetLimit asks for one EventSRQLimitReached when fewer than n receives are left. Then the limit
	// is off until it is set again; 0 switches it off too.
	SetLimit(n int) error
	// Limit is what is armed now, 0 if nothing is.
	Limit() (int, error)
	io.Closer // an error while a QP uses it
}

// An MR is a registered region of memory. After Close has returned nothing more is read or written
// through it. It is busy while a window is bound to it or a fast registration covers a part of it.
//
// A peer's OpSendInv can end what OpRegMR or OpBindMW has opened, never what RegisterMemory has.
type MR interface {
	LKey() uint32  // for SGE.LKey: names the region in requests of this end
	RKey() uint32  // for SendWR.RKey: names it in requests of the peer, which has to be told
	Addr() uint64  // of the region's first octet, for SGE.Addr and the peer's SendWR.RemoteAddr
	Bytes() []byte // what was registered
	io.Closer
}

// A CQ is a completion queue: what work requests have come to.
type CQ interface {
	// Poll takes up to len(wc) completions, the oldest first, and returns how many; 0 if there is
	// none. It does not allocate.
	Poll(wc []WC) (int, error)
	// Arm asks for one event when the next completion comes (solicitedOnly: the next that the peer
	// marked Solicited, or that is an error). What came before causes none: poll again after Arm.
	Arm(solicitedOnly bool) error
	// Wait blocks until the event that an Arm asked for, or until ctx ends. It may return early.
	Wait(ctx context.Context) error
	Depth() int // how many completions it holds; one more is an EventCQErr, and lost
	// Resize makes room for at least depth completions; those that are there stay. ErrInvalid if they
	// are more.
	Resize(depth int) error
	io.Closer // an error while a QP uses it
}

// QPConfig says what a QP is made of. Counts of 0 become 1; what the device gives can be more, see
// QP.Config.
type QPConfig struct {
	SendCQ, RecvCQ CQ     // where requests of either queue complete; they may be the same
	MaxSendWR      int    // requests in the send queue that have not completed
	MaxRecvWR      int    // receives that are posted
	MaxSendSGE     int    // pieces of memory in a send request
	MaxRecvSGE     int    // and in a receive
	MaxInline      int    // octets of an inline request
	SignalAll      bool   // each send request is Signaled
	Type           QPType // 0 is RC
	// SRQ, if set, is where the QP takes its receives from; MaxRecvWR and MaxRecvSGE mean nothing
	// then, and PostRecv is refused.
	SRQ SRQ
}

// A QPState is a state of a queue pair (docs/qp-states.md); ibv_qp_state in brackets.
type QPState uint32

const (
	QPIdle      QPState = iota // not connected (INIT)
	QPRTS                      // connected (RTS)
	QPClosing                  // graceful end under way (SQD)
	QPTerminate                // Terminate sent or received, close under way (SQE)
	QPError                    // over; all that is posted flushes (ERR)

	// The states of a RoCE queue pair, beside RTS and Error. It begins in Reset.
	QPReset // nothing is posted, nothing is taken (RESET)
	QPInit  // receives may be posted (INIT)
	QPRTR   // takes packets (RTR)
	QPSQD   // sends no new message (SQD)
	QPSQE   // UC, UD: a send has failed, receives go on (SQE)
)

func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return "?"
}

var qpStateNames = [...]string{"IDLE", "RTS", "CLOSING", "TERMINATE", "ERROR",
	"RESET", "INIT", "RTR", "SQD", "SQE"}

// A QP is a queue pair: one end of a connection. Work requests are copied by a post, so that the
// same variable can be posted again; the memory that they name is in use until they complete.
type QP interface {
	Num() uint32 // in WC.QPN and AsyncEvent.Object
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
	// PostRecv posts one receive, PostRecvs several; a QP takes them from the beginning on, also
	// before it is connected. They fail as PostSend and PostSends do.
	PostRecv(wr *RecvWR) error
	PostRecvs(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes that mask names, State among them, all or none: ErrInvalid for
	// one that is missing, that may not be there or whose value cannot be. A RoCE QP is connected
	// this way; a QP of iWARP takes State only, and is connected by Connect and Accept only. It waits
	// for the way to the peer to be found: a syscall.Errno tells that there is none.
	Modify(attr *QPAttr, mask QPAttrMask) error
	// Query gives the attributes as they are now.
	Query() (QPAttr, error)
	// AttachMulticast has a UD QP receive what is sent to a multicast group, DetachMulticast takes it
	// back.
	AttachMulticast(group GID) error
	DetachMulticast(group GID) error
	// Abort moves the QP to Error: the connection ends at once and what is posted flushes.
	Abort() error
	io.Closer // aborts; completions that nobody has polled are dropped
}

// ConnParam is what one end brings to a connection, and, in Conn.Param, what came out.
type ConnParam struct {
	// PrivateData is for the peer's program: at most 508 octets, 512 with MPA revision 1; a peer on
	// Linux's siw takes 251.
	PrivateData []byte
	// IRD and ORD are how many Reads and atomics may be under way, of the peer's (inbound) and of
	// ours (outbound). 0 asks for the default, NoReads for none.
	IRD, ORD uint16
	MPA      MPAParam
	// SCTP has the end that connects use SCTP (RFC 5043) in place of TCP; a listener takes both, and
	// ConnRequest.Param tells. The parts of MPA that SCTP has no use for (CRC, Markers and MULPDU)
	// mean nothing then. Between two QPs of one device SCTP means nothing.
	SCTP bool
	// Extensions allows the messages of RFC 7306 on the connection: atomics and immediate data. Both
	// programs have to agree on them by themselves (RFC 7306, section 1.1), so both ends set it; a
	// peer that does not know them ends the connection. Between two QPs of one device they always
	// work. Without them the requests complete with WCLocQPOp and nothing is sent.
	Extensions bool
	// Protocol is what the end that connects speaks; ConnRequest.Param tells, and the end that accepts
	// says the same, or the other gives up. It means nothing on a device of RoCE.
	Protocol Protocol
	ROI      ROIParam
	RoCE     RoCEParam
}

// A Protocol is what goes over a connection of iWARP.
type Protocol uint8

const (
	IWARP Protocol = iota // RDMAP on DDP: RFC 5040, RFC 5041
	// ROI is draft-bailey-roi-rdma-00, experimental and between two vrnics only: docs/roi.md. Sends
	// wait at their sender until the peer has a receive for them. Private data are at most 496 octets,
	// OpWriteImm is a Write that tells the peer 20 bits of Imm, and a Send, Write or Read is as ever;
	// other operations complete with WCLocQPOp. MPAParam.Markers and Extensions cannot be had.
	ROI
)

func (p Protocol) String() string {
	switch p {
	case IWARP:
		return "iWARP"
	case ROI:
		return "ROI"
	}
	return "unknown protocol"
}

// ROIParam says which credits of ROI are not used; both ends say the same. A QP with an SRQ does
// without those for Sends, as receives of a pool cannot be promised to anybody.
type ROIParam struct {
	NoSendCredits bool // a Send that finds no receive waits at its receiver, as in iWARP
	NoReadCredits bool // IRD and ORD alone bound Reads
}

// RoCEParam is what an end of a connection of a RoCE device has beside; MPAParam, SCTP and
// Extensions mean nothing there. Private data are at most 56 octets of the end that connects, 196
// of the one that accepts and 148 of one that rejects; the peer gets as many, zeros behind the
// rest.
type RoCEParam struct {
	// RetryCount is how often a packet of either end that is not answered is sent again; the end that
	// connects says it for both. RNRRetry is for the peer: how often it sends again what has found no
	// receive here, 7 without end. 0 asks for 7, NoRetry for none.
	RetryCount, RNRRetry uint8
	FlowControl, SRQ     bool // told to the peer, and nothing else
	// ACKTimeout is the code of the local ACK timeout of either end, 4.096 us * 2^ACKTimeout, and
	// TrafficClass that of the packets; the end that connects says both. ACKTimeout 0 asks for 19.
	ACKTimeout, TrafficClass uint8

	// QPN is the peer's QP. Of datagrams it is the one that serves, with its Q_Key, and Path is how to
	// send there. The end that accepts gives QPN and QKey; QKey 0 is rdma_cm's.
	QPN, QKey uint32
	Path      AHAttr
}

// NoRetry in RoCEParam.RetryCount or RNRRetry asks for none.
const NoRetry = 0xff

// NoReads in ConnParam.IRD or ORD asks for none.
const NoReads = 0xffff

// MPAParam holds what can be set for one end of an MPA connection (RFC 5044, RFC 6581). MPA frames
// messages on TCP. Few programs care: the zero value asks for the defaults, which are revision 2
// with enhanced set-up, CRC on, no markers for us, peer-to-peer with every kind of ready-to-receive
// message, and frames (FPDUs) of the size of a TCP segment. What the peer asks for in turn is
// served. It means nothing between two QPs of one device.
type MPAParam struct {
	Revision uint8 // 1 or 2; 0 is 2. That of a listener is set before requests come
	CRC      CRCMode
	Markers  bool // ask for markers in what the peer sends
	// ClientServer, of the end that connects, does without the ready-to-receive message: that end has
	// to send first then.
	ClientServer bool
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

// A ConnRequest is a peer's wish to connect. It waits until it is answered, once: by Accept or by
// Reject.
type ConnRequest interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	Param() ConnParam // the peer's: its private data, IRD and ORD
	// Accept connects qp, which must be Idle, and blocks until the connection is established, or ctx
	// ends.
	Accept(ctx context.Context, qp QP, p ConnParam) (Conn, error)
	// Reject refuses; privateData is in the peer's RejectedError.
	Reject(privateData []byte) error
}

// A Conn is an established connection of a QP.
type Conn interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// Param holds the peer's private data and the IRD and ORD that were agreed.
	Param() ConnParam
	// Disconnect ends the connection gracefully; it does not wait for the peer. What has been posted
	// is sent, for a bounded time; on RoCE it is flushed, and the peer told at once.
	Disconnect() error
	// Done is closed once the connection has ended, by either side, and the QP has been flushed. A QP
	// of RoCE that fails, as at a peer that does not answer (WCRetryExc), does not end it, as with
	// rdma_cm: completions tell, and Disconnect tells the peer.
	Done() <-chan struct{}
	// Err is nil for a graceful end and before the end, else the cause: a *TerminateError or an
	// error of the transport.
	Err() error
}

// An AsyncEventType says what happened. The numbers are enum ibv_event_type's.
type AsyncEventType uint32

const (
	EventCQErr       AsyncEventType = 0 // a completion was lost: the CQ was full
	EventQPFatal     AsyncEventType = 1
	EventQPReqErr    AsyncEventType = 2
	EventQPAccessErr AsyncEventType = 3
	// EventCommEst: a packet has come for a QP that is not RTS yet (of RoCE).
	EventCommEst     AsyncEventType = 4
	EventSQDrained   AsyncEventType = 5
	EventDeviceFatal AsyncEventType = 8
	// EventPortActive and EventPortErr: the network of the device is there again, or has gone;
	// messages wait, for as long as the transport is patient.
	EventPortActive AsyncEventType = 9
	EventPortErr    AsyncEventType = 10
	EventSRQErr     AsyncEventType = 14
	// EventSRQLimitReached says that an SRQ is short of receives, as SRQ.SetLimit asked for.
	EventSRQLimitReached AsyncEventType = 15
	// EventLastWQEReached: a QP with an SRQ is in Error and takes nothing from it any more.
	EventLastWQEReached AsyncEventType = 16
	EventGIDChange      AsyncEventType = 18 // the GID table of a RoCE device has changed
)

var asyncNames = map[AsyncEventType]string{
	EventCQErr: "CQ_ERR", EventQPFatal: "QP_FATAL", EventQPReqErr: "QP_REQ_ERR",
	EventQPAccessErr: "QP_ACCESS_ERR", EventCommEst: "COMM_EST", EventGIDChange: "GID_CHANGE",
	EventSQDrained: "SQ_DRAINED", EventDeviceFatal: "DEVICE_FATAL", EventPortActive: "PORT_ACTIVE",
	EventPortErr: "PORT_ERR",
	EventSRQErr:  "SRQ_ERR", EventSRQLimitReached: "SRQ_LIMIT_REACHED",
	EventLastWQEReached: "QP_LAST_WQE_REACHED",
}

func (t AsyncEventType) String() string {
	if n, ok := asyncNames[t]; ok {
		return n
	}
	return "EVENT_UNKNOWN"
}

// An AsyncEvent reports what happened to an object: a QP number, an SRQ number or a CQ handle; 0 of
// the device and its port.
type AsyncEvent struct {
	Type   AsyncEventType
	Object uint32
	Time   time.Time
	Cause  *TerminateError // of QP events, where there is one
}
