package shm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A Device is a device of a vrnic daemon, opened for this process: it implements rdma.Device.
// Close destroys all that was made through it, also the Buffers: their octets must not be touched
// afterwards.
type Device struct {
	c          *Client
	index      uint32
	ctx        uint32
	attr       rdma.DeviceAttr
	card       bool // attr is that of a card of others, which refuses some opcodes, a bit each
	refusedOps uint32
	cm         *cmEvents

	async       *osmem.EventReader
	asyncReader chan struct{} // holds a token while somebody asks for async events
	// The call for the next async event, and what is closed when it has been answered: of whoever
	// holds the token. A call that its maker has not waited for is the next one's.
	asked    *call
	answered <-chan struct{}
	fatal    atomic.Bool // EventDeviceFatal has been given

	closed    chan struct{}
	closeOnce sync.Once

	mu   sync.Mutex // guards the sets below
	over bool       // no more objects
	bufs map[*buffer]struct{}
	pds  map[*protDomain]struct{}
	cqs  map[*compQueue]struct{}
	qps  map[uint32]*queuePair // by handle
	// direct are those that have a direct path.
	direct map[*queuePair]struct{}
	chans  []*compChan // guarded by chanMu
	// chanMu serialises the making and ending of CQs, which share channels.
	chanMu sync.Mutex
}

var _ rdma.Device = (*Device)(nil)

// Open opens the device with this name ("": the daemon's first), also one that was added since the
// session began.
func (c *Client) Open(name string) (_ *Device, err error) {
	number, q, err := c.find(name)
	if err != nil {
		return nil, err
	}
	d := &Device{
		c: c, index: number, attr: deviceAttr(q), card: q.Card != 0, refusedOps: q.RefusedOps,
		asyncReader: make(chan struct{}, 1), closed: make(chan struct{}),
		bufs: make(map[*buffer]struct{}), pds: make(map[*protDomain]struct{}),
		cqs: make(map[*compQueue]struct{}), qps: make(map[uint32]*queuePair),
		direct: make(map[*queuePair]struct{}),
	}
	var rep rpc.CtxOpenReply
	fds, err := c.rpc(rpc.OpCtxOpen, "open device", &rpc.CtxOpenRequest{Device: d.index}, &rep, -1)
	if err != nil {
		return nil, err
	}
	d.ctx = rep.Ctx
	if d.attr.RoCE {
		if err := d.queryPort(); err != nil {
			osmem.CloseFDs(fds)
			_ = c.callHandle(rpc.OpCtxClose, "close device", d.ctx) // err says more
			return nil, err
		}
	}
	if d.async, err = c.newPipe(fds[0]); err != nil {
		return nil, err // the session is dead
	}
	if d.cm, err = newCMEvents(d); err != nil {
		c.closePipe(d.async)
		_ = c.callHandle(rpc.OpCtxClose, "close device", d.ctx) // err says more
		return nil, err
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.devices[d] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		d.close()
		return nil, errClosed("client")
	}
	return d, nil
}

func deviceAttr(q *rpc.QueryDeviceReply) rdma.DeviceAttr {
	a := rdma.DeviceAttr{
		Name: q.Name.String(), MAC: q.MAC, MTU: int(q.MTU),
		MaxQP: int(q.MaxQP), MaxCQ: int(q.MaxCQ), MaxMR: int(q.MaxMR), MaxPD: int(q.MaxPD),
		MaxDepth: int(min(q.MaxQPWR, q.MaxCQE)), MaxSGE: int(q.MaxSGE),
		MaxIRD: int(q.MaxIRD), MaxORD: int(q.MaxORD), MaxMRLen: q.MaxMRLen,
		MaxInline: int(q.MaxInline),
		VendorID:  q.VendorID, PartID: q.PartID, HWVersion: q.HWVersion,
		Firmware: text(q.FWVersion[:]),
		MaxMW:    int(q.MaxMW), MaxSRQ: int(q.MaxSRQ), MaxSRQWR: int(q.MaxSRQWR),
		RoCE: q.NodeType == rpc.NodeCA, MaxAH: int(q.MaxAH), MaxGroups: int(q.MaxGroups),
	}
	for _, p := range q.Addrs[:min(int(q.NumAddrs), len(q.Addrs))] {
		if p := p.Prefix(); p.IsValid() {
			a.Addrs = append(a.Addrs, p)
		}
	}
	return a
}

// text is what stands before the first zero.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// Name is the device's name in the daemon.
func (d *Device) Name() string { return d.attr.Name }

// Attr describes the device as it was when it was opened.
func (d *Device) Attr() rdma.DeviceAttr {
	a := d.attr
	a.Addrs = slices.Clone(d.attr.Addrs)
	return a
}

// Client is the session that the device belongs to.
func (d *Device) Client() *Client { return d.c }

// usable is nil if objects can be made.
func (d *Device) usable() error {
	select {
	case <-d.closed:
		return errClosed("device")
	default:
		return d.c.gone()
	}
}

// NextAsyncEvent implements rdma.Device. When the session dies it gives one EventDeviceFatal, then
// rdma.ErrDeviceGone.
func (d *Device) NextAsyncEvent(ctx context.Context) (rdma.AsyncEvent, error) {
	select {
	case d.asyncReader <- struct{}{}:
	case <-ctx.Done():
		return rdma.AsyncEvent{}, ctx.Err()
	case <-d.closed:
		return rdma.AsyncEvent{}, errClosed("device")
	}
	defer func() { <-d.asyncReader }()
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, d.async.Kick)
		defer stop()
	}
	for {
		if err := ctx.Err(); err != nil {
			return rdma.AsyncEvent{}, err
		}
		if err := d.usable(); err != nil {
			return d.deviceFatal(err)
		}
		k, err := d.askAsync(ctx)
		if err != nil {
			return rdma.AsyncEvent{}, err
		}
		if err = k.err; err == nil {
			if ev, ok := d.asyncEvent(k.rep.(*rpc.AsyncEvent)); ok {
				return ev, nil
			}
			continue
		}
		if !errors.Is(err, syscall.EAGAIN) {
			if d.usable() == nil {
				return rdma.AsyncEvent{}, err
			}
			continue
		}
		if err := d.async.Wait(); err != nil && err != osmem.ErrKicked {
			if d.usable() == nil { // nobody but the daemon can have closed it
				_ = d.c.die(errGone)
			}
		}
	}
}

// askAsync asks the daemon for the next event. If ctx ends first the call stays, with the event
// that it may bring.
func (d *Device) askAsync(ctx context.Context) (*call, error) {
	if d.asked == nil {
		d.asked = &call{op: rpc.OpGetAsyncEvent, what: "async event", req: &rpc.HandleRequest{
			Handle: d.ctx}, rep: &rpc.AsyncEvent{}, fd: -1}
		d.answered = d.c.begin(d.asked)
	}
	select {
	case <-d.answered:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-d.closed:
		return nil, errClosed("device")
	}
	k := d.asked
	d.asked = nil
	return k, nil
}

// deviceFatal reports the end of the session once.
func (d *Device) deviceFatal(err error) (rdma.AsyncEvent, error) {
	if errors.Is(err, rdma.ErrDeviceGone) && d.fatal.CompareAndSwap(false, true) {
		return rdma.AsyncEvent{Type: rdma.EventDeviceFatal, Time: time.Now()}, nil
	}
	return rdma.AsyncEvent{}, err
}

// asyncEvent translates; false for an object that has been destroyed since.
func (d *Device) asyncEvent(e *rpc.AsyncEvent) (rdma.AsyncEvent, bool) {
	ev := rdma.AsyncEvent{Type: rdma.AsyncEventType(e.Type), Object: e.Handle, Time: time.Now(),
		Cause: terminateError(e.Cause)}
	if e.Kind == rpc.ObjQP {
		d.mu.Lock()
		q := d.qps[e.Handle]
		d.mu.Unlock()
		if q == nil {
			return ev, false
		}
		ev.Object = q.num
	}
	return ev, true
}

// Close implements rdma.Device. It returns nil.
func (d *Device) Close() error {
	d.c.mu.Lock()
	delete(d.c.devices, d)
	d.c.mu.Unlock()
	d.close()
	return nil
}

// close destroys everything, in an order in which nothing is in use any more when its turn comes.
func (d *Device) close() {
	d.closeOnce.Do(func() {
		d.mu.Lock()
		d.over = true
		d.mu.Unlock()
		close(d.closed)
		d.async.Kick()
		for _, q := range values(d, d.qps) {
			q.Close() // fails only in use
		}
		d.cm.close()
		for _, q := range keys(d, d.cqs) {
			q.Close()
		}
		for _, pd := range keys(d, d.pds) {
			pd.closeAll()
		}
		for _, b := range keys(d, d.bufs) {
			b.Close()
		}
		_ = d.c.callHandle(rpc.OpCtxClose, "close device", d.ctx) // the session's end does it too
		d.c.closePipe(d.async)
	})
}

// values copies a set of d's under its lock.
func values[K comparable, V any](d *Device, set map[K]V) []V {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(set))
}

// keys copies a set of d's under its lock.
func keys[K comparable](d *Device, set map[K]struct{}) []K {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(set))
}

// add puts o into a set of d's, unless d is closing.
func add[K comparable, V any](d *Device, set map[K]V, k K, v V) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errClosed("device")
	}
	set[k] = v
	return nil
}

func remove[K comparable, V any](d *Device, set map[K]V, k K) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(set, k)
}
