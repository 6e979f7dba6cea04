package server

import (
	"iter"
	"net/netip"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// The interfaces of this file are the seam to what lies above: the daemon implements them over its
// RNIC devices. shm keeps the handles; a method is called on the object that a handle named, and
// gets other objects as the values that the handler itself returned for them.
//
// Unless noted, methods are called from the session's control goroutine, one at a time; they answer
// without waiting for the network. Those that may wait do so until Session.Context ends at most. An
// error that is or wraps a syscall.Errno becomes the reply's status, any other becomes EIO. After
// an object's Close has returned nil, and after Handler.Close has returned, the handler touches
// neither its rings nor its memory.

// A Handler is the RNIC behind one session.
type Handler interface {
	// Devices are the names of the devices, in the order of their numbers.
	Devices() []string
	// QueryDevice and its like: ENODEV for a device that there is not. The limits of the session's
	// quotas are applied by the caller, but for a device that is described as a card of others.
	QueryDevice(device uint32) (*rpc.QueryDeviceReply, error)
	QueryPort(device, port uint32) (*rpc.QueryPortReply, error)
	QueryGID(device, port, index uint32) (*rpc.QueryGIDReply, error)
	// OpenContext opens a device for the session. Its async events go to events.
	OpenContext(device uint32, events *AsyncQueue) (ContextHandler, error)
	// MemGone says that memory which peers may have mapped was taken back.
	MemGone()
	// LendMem says that the client has lent its own memory (SET_MEM): MRs of ModeApp may follow.
	LendMem() error
	// CreateID makes a connection manager id. Its events go to id.Push, from any goroutine.
	CreateID(req *rpc.CMCreateIDRequest, id *CMID) (IDHandler, error)
	// List gives rows of a kind (ListDev...; ListClient and ListUser are answered by shm), each of
	// which is one JSON object when it is marshalled. all: the caller may see every session's
	// objects, else only those of its own session. The client takes rows as it likes: no lock may be
	// held between them, and nothing kept for all of them. What is there from beginning to end comes
	// once; what comes or goes meanwhile may.
	List(kind uint32, all bool) (iter.Seq[any], error)
	// Stat is List for counters.
	Stat(all bool) iter.Seq[any]
	// Control changes the daemon, for a privileged client. fd is what came with the request, -1 if
	// there was none; taken says that it is the handler's. It may wait.
	Control(req *rpc.ControlRequest, fd int) (taken bool, err error)
	// Close ends the session: connections are ended, QPs, MRs, ids and all else are freed. It is
	// called once, when no other method runs or will be called, and the Close methods of the
	// objects are not called then. cause is nil if the client ended in order. Close may wait for
	// the session's own goroutines (stuck copies of mode 0 memory), never for the network.
	Close(cause error)
}

// A ContextHandler is an open device.
type ContextHandler interface {
	AllocPD() (PDHandler, error)
	// CQDepth is how many completions a CQ is said to hold that asks for so many; 0: as many as its
	// ring.
	CQDepth(asked uint32) uint32
	// CreateCQ: ring is where completions go; ring.Size() is how many it holds, asked for were asked.
	CreateCQ(ring *ring.CQProducer, asked uint32) (CQHandler, error)
	// Close is called when nothing is left of what was made through the context.
	Close() error
}

// A PDHandler is a protection domain. Close returns EBUSY while it is in use.
type PDHandler interface {
	// RegMR registers mem: under a new key or, if old is not nil, in place of old, which ends, under
	// its key. If it fails old is as it was.
	RegMR(req *rpc.RegMRRequest, mem *osmem.Memory, old MRHandler) (MRHandler, error)
	AllocMR(maxLen uint64) (MRHandler, error)
	AllocMW(typ uint32) (MWHandler, error)
	// SRQSize is how many receives of how many parts an SRQ is said to have that asks for these; 0: as
	// many as its ring.
	SRQSize(maxWR, maxSGE uint32) (wr, sge uint32)
	// CreateSRQ: rings.Layout says what sizes the SRQ's ring has, req what was asked for.
	CreateSRQ(req *rpc.CreateSRQRequest, rings *ring.DaemonSRQ) (SRQHandler, error)
	// QPSize is what a QP of a type is said to have that asks for these.
	QPSize(asked rpc.QPCaps, typ uint32) QPSize
	// QPMemory is how many octets of its own a QP takes whose rings have caps.
	QPMemory(caps rpc.QPCaps) int64
	CreateQP(p *QPParts) (QPHandler, error)
	// CreateAH makes an address handle. EINPROGRESS: the way to the peer is looked for, and the next
	// call may know it.
	CreateAH(attr *rpc.AHAttr) (AHHandler, error)
	Close() error
}

// A QPSize is how many requests the queues of a QP are said to have, and how many octets inline; 0:
// as many as the rings have.
type QPSize struct{ Send, Recv, Inline uint32 }

// An AHHandler is an address handle.
type AHHandler interface {
	Key() uint32 // what send requests name it by
	Close() error
}

// QPParts are what a QP is made of.
type QPParts struct {
	Type           uint32     // rpc.TypeRC...
	Asked          rpc.QPCaps // what the client wants at least
	Caps           rpc.QPCaps // those that the rings have
	SigAll         bool       // every send request completes visibly
	EndInError     bool       // a graceful end leaves it in StateErr, not in StateInit
	SendCQ, RecvCQ CQHandler  // of the same context
	SRQ            SRQHandler // or nil
	Rings          *ring.DaemonQP
	Bits           *Bits // of RecvCQ
}

// An MRHandler is a registered region. Close returns when nothing more is read or written through
// it, and EBUSY while a window is bound to it. mem of RegMR is released by shm afterwards.
type MRHandler interface {
	Keys() (lkey, rkey uint32)
	Close() error
}

// An MWHandler is a memory window.
type MWHandler interface {
	RKey() uint32
	Close() error
}

// A CQHandler is a completion queue. Close returns EBUSY while a QP uses it.
type CQHandler interface {
	// CheckResize is asked before there is memory for a ring for so many, which may be any number.
	CheckResize(asked uint32) error
	// Resize says that the ring holds size completions from now on.
	Resize(size int) error
	Close() error
}

// An SRQHandler is a shared receive queue. Close returns EBUSY while a QP uses it. It may use its
// ring from any goroutine, one at a time.
type SRQHandler interface {
	SetLimit(n uint32) error
	// Query fills Limit; the rest is what the client was told when the SRQ was made.
	Query(r *rpc.QuerySRQReply) error
	// Bell says that the client may have posted, and that all QPs that wait for it should look. It is
	// called as QPHandler.Bell is.
	Bell(waiting func() bool) (more bool)
	Close() error
}

// A QPHandler is a queue pair.
type QPHandler interface {
	Num() uint32 // 24 bits, unique on its device
	// Modify: EINPROGRESS is as CreateAH's. It may wait for who runs the queue pair.
	Modify(req *rpc.ModifyQPRequest) error
	// Query fills what the rings do not tell: State, Access, IRD, ORD and Attr.
	Query(r *rpc.QueryQPReply)
	// Attach makes the QP a member of a multicast group, which it is not; Detach ends that.
	Attach(group [16]byte) error
	Detach(group [16]byte) error
	// Direct gives a descriptor of the memory that the QP and its peer share on the direct path, and
	// fills rep; EAGAIN: there is none now. alloc makes such memory, and what gives it back.
	Direct(alloc func(size int) (*osmem.Region, int, func(), error), rep *rpc.DirectReply) (
		fd int, err error)
	// DirectKeys gives a descriptor of the keys of the peer's domain, and DirectMem one of memory that
	// the peer's client has lent; EAGAIN: there is no direct path now.
	DirectKeys() (fd int, err error)
	DirectMem(mem uint32) (fd int, err error)
	// DirectSleep gives the end of a pair of sockets by which the peer's client wakes this one, and
	// DirectWake the end by which this one wakes the peer's; EAGAIN as the others.
	DirectSleep() (fd int, err error)
	DirectWake() (fd int, err error)
	// DirectBits gives a descriptor of the bitmap of the CQ to which the peer's receives come; EAGAIN
	// as the others.
	DirectBits() (fd int, err error)
	// Bell says that the client may have posted. It is called from the session's doorbell thread,
	// also for stale and forged bells, and concurrently with other methods but not after Close
	// has begun. It takes a fair share, a small one while waiting says that others wait for the
	// thread, and returns whether it left more: then it is called again when the other rung QPs had
	// their turn.
	Bell(waiting func() bool) (more bool)
	Close() error
}

// An IDHandler is a connection manager id. Methods return ENODEV for an address that is no
// device's, EINVAL for a call that its state does not allow. What takes time ends in an event.
type IDHandler interface {
	Bind(addr netip.AddrPort) error
	ResolveAddr(src, dst netip.AddrPort, timeoutMS uint32) error
	ResolveRoute(timeoutMS uint32) error
	Listen(backlog uint32) error
	// Connect and Accept get a nil qp for an id of datagrams that names none, and where the client
	// moves the QP with number p.QPN itself; EINVAL if it has none of that number.
	Connect(qp QPHandler, p *rpc.ConnParam) error
	Accept(qp QPHandler, p *rpc.ConnParam) error
	// Establish says that the client has moved its QP to RTS.
	Establish() error
	// Notify says that the QP of an id that has accepted has heard of its peer; EISCONN: it is known.
	Notify() error
	// OpenUDP has the UDP port that the id is bound to served by packets, which are the handler's if
	// it succeeds. EBUSY: it is.
	OpenUDP(packets *osmem.Packets) error
	// Join joins a multicast group; the event that follows has group as its Group. Leave leaves what
	// Join has joined.
	Join(addr netip.Addr, group uint64) error
	Leave(addr netip.Addr) error
	Reject(private []byte) error
	Disconnect() error
	SetOption(level, name uint32, value []byte) error
	Query() rpc.CMQueryReply
	// InitQPAttr says what takes the id's QP to a state (StateInit, StateRTR or StateRTS).
	InitQPAttr(state uint32) (rpc.CMInitQPAttrReply, error)
	// Close ends the id: a listener refuses what is pending, a connection is disconnected. No
	// event is pushed after it has returned.
	Close() error
}
