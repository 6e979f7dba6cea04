package wqe

import (
	"sync/atomic"
	"unsafe"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
	"github.com/vrnic/vrnic/vnic/internal/stats"
)

// An Owner is the QP as its requests see it.
type Owner interface {
	// Violation ends the user's context: a queue of it is damaged.
	Violation(err error)
	// Wake has the QP run, by any goroutine and with any lock held.
	Wake()
	// Log writes to the log at debug level.
	Log(msg string, args ...any)
}

// Requests are those of one QP. What each message needs is in front and together, with the first
// slots of its queues: with many QPs it comes from memory, line by line.
type Requests struct {
	num uint32
	// watched is set while somebody does: it is on a line of the cache that messages need, and watch
	// is not.
	watched atomic.Bool
	owner   Owner
	cfg     rdma.QPConfig
	Memory  mem.Stream // what the peer may touch, and the keys
	Stats   stats.QP
	Recv    Receives
	Queues  queue.Pair
	send    sendSide
	watch   atomic.Pointer[watch] // see watching
	fate    Fate                  // if send.spoiled
}

// FrontLen is how much of Requests messages need: up to what few requests have.
const FrontLen = unsafe.Offsetof(Requests{}.send) + unsafe.Offsetof(sendSide{}.first) +
	unsafe.Offsetof(Request{}.WR) + unsafe.Offsetof(rdma.SendWR{}.Atomic)

// Init makes r the requests of a QP of owner; roce: of RoCE. cfg is checked, and q too.
func (r *Requests) Init(owner Owner, q *queue.PairConfig, pd *mem.PD, roce bool) {
	r.owner, r.cfg = owner, q.QPConfig
	r.Queues.Init(q)
	r.Memory.Init(pd, roce)
	r.send.roce = roce
	r.send.init(r)
	r.Recv.init(r)
}

// Add makes r count in its PD under the QP's number; an error wraps rdma.ErrClosed.
func (r *Requests) Add(qpn uint32) error {
	r.num = qpn
	return r.Memory.Add(qpn)
}

// Num is the QP's number, and Config what it was made with.
func (r *Requests) Num() uint32            { return r.num }
func (r *Requests) Config() *rdma.QPConfig { return &r.cfg }

// Begin is for a new connection: extensions says that RFC 7306 was agreed on, which RoCE always
// has, reads that the peer answers Reads and atomics.
func (r *Requests) Begin(extensions, reads bool) {
	s := &r.send
	s.extensions, s.answered, s.finished, s.broken = extensions, reads, false, false
}

// Log writes to the log at debug level, with the QP's number.
func (r *Requests) Log(msg string, args ...any) { r.owner.Log(msg, args...) }
