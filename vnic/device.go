package vnic

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/ah"
	"github.com/vrnic/vrnic/vnic/internal/cm"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/handle"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// A Device is one virtual RNIC.
type Device struct {
	cfg Config
	log *slog.Logger

	mu        sync.Mutex
	contexts  map[*Context]struct{}  // +checklocks:mu
	closed    bool                   // +checklocks:mu
	qps       handle.Table[*QP]      // guarded by mu; QPNs are the device's
	qpns      *handle.Scatter        // guarded by mu; nil: they are from 1 on
	past      Counters               // guarded by mu; of QPs that are gone
	ctxCount  uint32                 // +checklocks:mu
	observers map[*observer]struct{} // guarded by mu
	reaper    *time.Timer            // +checklocks:mu
	reaped    uint64                 // guarded by mu: connections that were idle for too long
	portDown  bool                   // guarded by mu: SetPort has said so
	portHolds int                    // guarded by mu: by how many it is made to look down

	keys *mem.Keys // STags

	recorder atomic.Pointer[record.Recorder] // of connections that begin; nil: nobody's

	cm *cm.Manager

	roce *adapter // nil: a device of iWARP

	watched     atomic.Int32               // by so many, see Watch
	copiesShown atomic.Int32               // to so many, see WatchCopies
	within      atomic.Pointer[StreamPair] // of who has called ToStreams last, or nil
}

// New makes a device.
func New(cfg Config) (*Device, error) {
	if cfg.Name == "" || len(cfg.Addrs) == 0 {
		return nil, fmt.Errorf("vnic: a device needs a name and an address: %w", rdma.ErrInvalid)
	}
	for _, p := range cfg.Addrs {
		if !p.IsValid() || p.Addr().IsUnspecified() || p.Addr().IsMulticast() {
			return nil, fmt.Errorf("vnic: %v is no address for device %s: %w", p, cfg.Name, rdma.ErrInvalid)
		}
	}
	cfg.Addrs = slices.Clone(cfg.Addrs)
	cfg.Limits = cfg.Limits.or(DefaultLimits())
	cfg.Timeouts = cfg.Timeouts.or(DefaultTimeouts())
	or(&cfg.MTU, 1500)
	or(&cfg.MaxPending, defaultPending)
	or(&cfg.MaxPendingPerPeer, defaultPeerPending)
	or(&cfg.MaxHalfOpen, defaultHalfOpen)
	or(&cfg.MaxHalfOpenPerPeer, defaultPeerHalfOpen)
	or(&cfg.MaxConnsPerPeer, defaultPeerConns)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	keys, err := mem.NewKeys()
	if err != nil {
		return nil, fmt.Errorf("vnic: %w", err)
	}
	var qpns *handle.Scatter
	if cfg.RoCE || cfg.Adverse {
		if qpns, err = handle.NewScatter(); err != nil {
			return nil, fmt.Errorf("vnic: %w", err)
		}
	}
	var roce *adapter
	if cfg.RoCE {
		if roce, err = newAdapter(&cfg); err != nil {
			return nil, err
		}
	}
	d := &Device{
		cfg: cfg, roce: roce, log: cfg.Log.With("dev", cfg.Name), keys: keys, qpns: qpns,
		contexts: make(map[*Context]struct{}),
	}
	d.cm = d.newCM()
	d.watchIdle()
	return d, nil
}

func (d *Device) Name() string { return d.cfg.Name }

// Config returns what New was given, with the defaults filled in.
func (d *Device) Config() Config {
	c := d.cfg
	c.Addrs = slices.Clone(c.Addrs)
	return c
}

// Open gives a new user's view of d.
func (d *Device) Open(cfg ContextConfig) (*Context, error) {
	c := &Context{
		dev: d, cfg: cfg, limits: cfg.Limits.or(d.cfg.Limits),
		done: make(chan struct{}), stop: make(chan struct{}),
		blocking: make(chan struct{}, blockingAtOnce),
	}
	life := cfg.Lifetime
	if life == nil {
		life = context.Background()
	}
	c.life, c.end = context.WithCancel(life)
	if d.roce != nil {
		c.ahs = new(ah.Table)
		if cfg.Impatient {
			c.ways = datagram.NewWays(func(local, remote netip.Addr) (datagram.Route, error) {
				return c.await(c.life, local, remote)
			}, c.spawn)
		}
	}
	c.async.wake = make(chan struct{}, 1)
	c.mem.Init(mem.Config{
		Keys: d.keys,
		Limits: mem.Limits{
			PD: c.limits.PD, MR: c.limits.MR, MW: c.limits.MW,
			MRLen: c.limits.MRLen, MRTotal: c.limits.MRTotal,
		},
		Violation: c.violation, Log: d.log.With("owner", cfg.Label),
	})
	c.queues.Init(queue.Config{
		CQ: c.limits.CQ, CQDepth: c.limits.CQDepth, SRQ: c.limits.SRQ,
		Depth: c.limits.Depth, SGE: c.limits.SGE,
		Event: func(t rdma.AsyncEventType, object uint32) { c.event(t, object, nil) },
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		c.end()
		return nil, fmt.Errorf("open device %s: %w", d.cfg.Name, rdma.ErrClosed)
	}
	d.ctxCount++
	c.id = d.ctxCount
	l := &c.limits
	c.cm = d.cm.NewUser(cm.UserConfig{
		Number: c.id, MaxIDs: l.CMID, MaxPending: l.Pending, IRD: l.IRD, ORD: l.ORD,
		InlineEvents: cfg.InlineEvents, Owner: cfg.User, HalfPorts: cfg.HalfPorts,
	})
	d.contexts[c] = struct{}{}
	if d.roce != nil {
		c.inbox = d.roce.inboxes.join(cfg.User)
	}
	return c, nil
}

// Close closes all contexts of d and waits for them.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	if d.reaper != nil {
		d.reaper.Stop()
	}
	var cs []*Context
	for c := range d.contexts {
		cs = append(cs, c)
	}
	d.mu.Unlock()
	for _, c := range cs {
		c.Shutdown()
	}
	for _, c := range cs {
		<-c.done
	}
	if d.roce != nil {
		d.cfg.Beside.remove(d.roce)
		return d.roce.close()
	}
	return nil
}

// A RequestWatcher hears of the requests of a queue pair.
type RequestWatcher = wqe.Watcher

// A Spoiler has requests of a queue pair fail on purpose, and a Fate says how.
type (
	Spoiler = wqe.Spoiler
	Fate    = wqe.Fate
)

// Record has connections that begin from now on recorded by r, and what sets them up, datagrams,
// and requests of all queue pairs, until stop is called. Who would copy messages sends packets
// meanwhile (Watch), if there is a network. One recording at a time.
func (d *Device) Record(r *record.Recorder) (stop func(), err error) {
	if !d.recorder.CompareAndSwap(nil, r) {
		return nil, fmt.Errorf("device %s is being recorded already: %w", d.cfg.Name, rdma.ErrBusy)
	}
	unwatch := func() {}
	if d.cfg.Network != nil {
		unwatch = d.Watch()
	}
	unobserve := d.Observe(func(qpn uint32) RequestWatcher { return r.Requests(d.cfg.Name, qpn) })
	for _, qp := range d.qpList() {
		if qp.packets != nil && qp.Type() == rdma.UD {
			qp.callAsync(qp.recordDatagrams)
		}
	}
	stopCM := func() {}
	if d.roce != nil {
		stopCM = d.roce.gsi.Load().Record(r.Tape(d.cfg.Name, 0))
	}
	stopSCTP := func() {}
	if n, ok := d.cfg.Network.(SCTPRecorder); ok && d.roce == nil {
		stopSCTP = n.RecordSCTP(r.Tape(d.cfg.Name, 0))
	}
	return func() {
		stopSCTP()
		stopCM()
		unobserve()
		unwatch()
		d.recorder.Store(nil)
	}, nil
}

// An SCTPRecorder is a Network whose SCTP can be recorded.
type SCTPRecorder interface {
	// RecordSCTP has associations that begin from now on recorded by t, until stop is called.
	RecordSCTP(t *record.Tape) (stop func())
}

// tape records the connection that QP qpn begins; nil: nobody wants that.
func (d *Device) tape(qpn uint32) *record.Tape {
	if r := d.recorder.Load(); r != nil {
		return r.Tape(d.cfg.Name, qpn)
	}
	return nil
}

// An observer looks at the requests of queue pairs.
type observer struct {
	of    func(qp *QP) RequestWatcher // nil: of that one nobody
	stops map[*QP]func()
}

// Observe has what of gives for a queue pair hear of its requests, of those that there are and
// those that are made later; nil: of that one nobody does. stop ends it.
func (d *Device) Observe(of func(qpn uint32) RequestWatcher) (stop func()) {
	return d.observe(func(qp *QP) RequestWatcher { return of(qp.num) })
}

// SpoilConnects has f say, of each connection that is asked for from now on, whether it comes to
// nothing, and of which event its CMID hears then. stop ends it.
func (d *Device) SpoilConnects(f func() (ev CMEvent, fails bool)) (stop func()) {
	return d.cm.SpoilConnects(f)
}

// Spoil has the requests of queue pairs be spoiled by what of gives for each; nil: not those of
// that one. It is as Observe else.
func (d *Device) Spoil(of func(qp *QP) Spoiler) (stop func()) {
	return d.observe(func(qp *QP) RequestWatcher {
		if s := of(qp); s != nil {
			return s
		}
		return nil
	})
}

func (d *Device) observe(of func(qp *QP) RequestWatcher) (stop func()) {
	o := &observer{of, make(map[*QP]func())}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.observers == nil {
		d.observers = make(map[*observer]struct{})
	}
	d.observers[o] = struct{}{}
	for qp := range d.qps.All() {
		o.add(qp)
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.observers, o)
		for _, stop := range o.stops {
			stop()
		}
		clear(o.stops)
	}
}

// add has a queue pair observed. The device is locked, as for remove.
func (o *observer) add(qp *QP) {
	if w := o.of(qp); w != nil {
		o.stops[qp] = qp.work.Watch(w)
		(*linked)(qp).Parted()
	}
}

func (o *observer) remove(qp *QP) { delete(o.stops, qp) }

func (d *Device) qpList() []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.qps.Slice()
}

func (d *Device) contextList() []*Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	cs := make([]*Context, 0, len(d.contexts))
	for c := range d.contexts {
		cs = append(cs, c)
	}
	slices.SortFunc(cs, func(a, b *Context) int { return int(a.id) - int(b.id) })
	return cs
}

// owns reports whether a is an address of the device.
func (d *Device) owns(a netip.Addr) bool {
	for _, p := range d.cfg.Addrs {
		if p.Addr() == a.Unmap().WithZone("") {
			return true
		}
	}
	return false
}

// route returns the address of d that a connection to remote starts from.
func (d *Device) route(remote netip.Addr) (netip.Addr, error) {
	remote = remote.Unmap()
	if d.owns(remote) {
		return remote.WithZone(""), nil
	}
	if d.cfg.Route != nil {
		return d.cfg.Route(remote)
	}
	best := -1
	var from netip.Addr
	for _, p := range d.cfg.Addrs {
		if p.Bits() > best && p.Contains(remote.WithZone("")) {
			best, from = p.Bits(), p.Addr()
		}
	}
	if best < 0 {
		return netip.Addr{}, fmt.Errorf("no address of %s reaches %v: %w", d.cfg.Name, remote,
			syscall.ENETUNREACH)
	}
	return from, nil
}
