package vnic

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/ah"
	"github.com/vrnic/vrnic/vnic/internal/cm"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link/inbox"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

// A ContextConfig says whose a context is and what it may have.
type ContextConfig struct {
	Label string // shown by tools, with PID and Comm
	PID   int
	Comm  string
	// User is whose contexts have a bound together for packets of RoCE that wait (docs/limits.md), a
	// value that can be compared; nil: this context has one alone.
	User   any
	Limits Limits // zero fields: the device's
	// OnViolation is called at most once, on a goroutine of its own, when the owner breaks a rule
	// that no honest program breaks: a damaged ring, or a mapping that faults. The owner should be
	// disconnected. nil: the context is shut down.
	OnViolation func(error)
	// OnAsync takes the events of NextAsyncEvent instead. It is called with locks held: it must
	// not block nor call this package.
	OnAsync func(rdma.AsyncEvent)
	// Privileged: Q_Keys with the top bit set may be used, as on Linux by who may open raw sockets.
	Privileged bool
	// HalfPorts: all contexts of User have half of the ports at most that are chosen from for who
	// binds to none.
	HalfPorts bool
	// Lifetime is the owner's: when it ends so does what waits for the network in a call of the
	// context's, also if nobody can call Shutdown before that returns. nil: until Shutdown.
	Lifetime context.Context
	// InlineEvents: handlers of ids may be called within CMID's ResolveAddr, ResolveRoute and Accept,
	// whose caller then holds no lock that they take. It saves waking a goroutine for each of them.
	InlineEvents bool
	// Impatient: Modify and CreateAH do not wait for a neighbour to answer. They fail with
	// EINPROGRESS, while it is looked for, and find what has come of that when they are called again.
	Impatient bool
}

// A Context is one user's view of a Device, with handles and quotas of its own. It implements
// rdma.Device.
type Context struct {
	dev    *Device
	id     uint32
	cfg    ContextConfig
	limits Limits
	mem    mem.Space
	queues queue.Space
	ahs    *ah.Table      // of a RoCE device, as is inbox
	inbox  *inbox.Budget  // what waits for its user's QPs
	ways   *datagram.Ways // nil: calls wait until they know

	blockingMu sync.Mutex    // held by AllowBlocking
	blocking   chan struct{} // a slot for each goroutine that runs a QP, if memory can block
	violated   sync.Once

	mu     sync.Mutex
	closed bool           // guarded by mu
	qps    map[uint32]*QP // guarded by mu, by QPN

	cm *cm.User

	stop  chan struct{}   // closed by Shutdown
	life  context.Context // ends then, or before with its owner's
	end   context.CancelFunc
	wg    sync.WaitGroup // goroutines of the context; Add with mu held and closed false
	done  chan struct{}
	async asyncQueue
}

func (c *Context) openLocked() error {
	if c.closed {
		return c.closedError()
	}
	return nil
}

func (c *Context) closedError() error {
	return fmt.Errorf("device %s: %w", c.dev.cfg.Name, rdma.ErrClosed)
}

// spawn runs f on a goroutine of c's; false: c is shut down.
func (c *Context) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

func (c *Context) qpList() []*QP {
	c.mu.Lock()
	defer c.mu.Unlock()
	qps := make([]*QP, 0, len(c.qps))
	for _, qp := range c.qps {
		qps = append(qps, qp)
	}
	slices.SortFunc(qps, func(a, b *QP) int { return int(a.num) - int(b.num) })
	return qps
}

// violation reports that c's owner broke a rule. The first time counts.
func (c *Context) violation(err error) {
	c.violated.Do(func() {
		c.dev.log.Warn("violation", "owner", c.cfg.Label, "err", err)
		if c.cfg.OnViolation != nil {
			go c.cfg.OnViolation(err)
			return
		}
		go c.Shutdown()
	})
}

// Shutdown ends all that was made through c: connections close so that their peers see it at
// once, nothing is completed any more. It waits for nobody; see Done.
func (c *Context) Shutdown() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.mem.Shut(c.closedError())
	c.queues.Shut(c.closedError())
	close(c.stop)
	c.end()
	qps := make([]*QP, 0, len(c.qps))
	for _, n := range slices.Sorted(maps.Keys(c.qps)) { // what peers see has an order
		qps = append(qps, c.qps[n])
	}
	c.mu.Unlock()

	c.cm.Shutdown() // first: nobody is told of what follows
	for _, qp := range qps {
		qp.destroy()
	}
	go c.finish(qps)
}

// stuckAfter is how long the owner of a QP may be away in a client's memory before the stream is
// taken from it, so that the peer does not wait for that client's page faults.
const stuckAfter = 300 * time.Millisecond

func (c *Context) finish(qps []*QP) {
	t := time.NewTimer(stuckAfter)
	for i := 0; i < len(qps); i++ {
		select {
		case <-qps[i].gone:
			continue
		case <-t.C:
		}
		for _, qp := range qps[i:] {
			qp.abandon()
		}
		break
	}
	t.Stop()
	c.wg.Wait()
	c.cm.Wait()

	c.mem.Close()
	c.queues.Close()

	c.dev.mu.Lock()
	delete(c.dev.contexts, c)
	if r := c.dev.roce; r != nil {
		r.inboxes.leave(c.cfg.User)
	}
	c.dev.mu.Unlock()
	close(c.done)
}

// gone says that Shutdown was called.
func (c *Context) gone() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

// Done is closed when all that was made through a closed c is gone, its goroutines too.
func (c *Context) Done() <-chan struct{} { return c.done }

// Close is Shutdown, and waits for Done. With memory that can block it may take as long as that
// does.
func (c *Context) Close() error {
	c.Shutdown()
	<-c.done
	return nil
}

func (c *Context) Name() string    { return c.dev.cfg.Name }
func (c *Context) Device() *Device { return c.dev }

// Attr describes the device and the limits of c.
func (c *Context) Attr() rdma.DeviceAttr {
	l := c.limits
	a := rdma.DeviceAttr{
		Name: c.dev.cfg.Name, Addrs: append([]netip.Prefix(nil), c.dev.cfg.Addrs...), MAC: c.dev.cfg.MAC,
		MTU:   c.dev.cfg.MTU,
		MaxQP: l.QP, MaxCQ: l.CQ, MaxMR: l.MR, MaxPD: l.PD, MaxDepth: l.Depth, MaxSGE: l.SGE,
		MaxIRD: l.IRD, MaxORD: l.ORD, MaxMRLen: l.MRLen, MaxSRQ: l.SRQ, MaxSRQWR: l.Depth, MaxMW: l.MW,
		MaxInline: l.Inline,
	}
	if r := c.dev.roce; r != nil {
		a.RoCE, a.ActiveMTU, a.GIDs = true, r.limits.ActiveMTU, gidTable
		a.MaxAH, a.MaxGroups = l.AH, MaxGroupMembers
	}
	return a
}

// AllocBuffer gives memory of this process.
func (c *Context) AllocBuffer(size int) (rdma.Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate a buffer of %d octets: %w", size, rdma.ErrInvalid)
	}
	if uint64(size) > c.limits.MRLen {
		return nil, fmt.Errorf("allocate a buffer of %d octets, at most %d: %w", size, c.limits.MRLen,
			rdma.ErrLimit)
	}
	return &buffer{mem.Pages(size)}, nil
}

// A buffer is memory of the Go heap: the GC frees it when its MRs, too, are gone.
type buffer struct{ b []byte }

func (b *buffer) Bytes() []byte { return b.b }
func (b *buffer) Close() error  { b.b = nil; return nil }

// AllowBlocking says that c may have memory that can block from now on (mode 0). When it returns,
// no QP of c whose link could touch it is run by others than c's own goroutines. rdma.ErrClosed if
// c is closed meanwhile.
func (c *Context) AllowBlocking() error {
	c.blockingMu.Lock()
	defer c.blockingMu.Unlock()
	if !c.mem.AllowBlocking() {
		return nil
	}
	for _, qp := range c.qpList() {
		qp.do(func() {}) // whoever ran it before has noticed, or is done
	}
	select {
	case <-c.stop:
		return fmt.Errorf("device %s: %w", c.dev.cfg.Name, rdma.ErrClosed)
	default:
		return nil
	}
}
