package vnic

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A Device is one virtual RNIC.
type Device struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	contexts map[*Context]struct{} // guarded by mu
	closed   bool                  // guarded by mu
	qps      table[*QP]            // guarded by mu; QPNs are the device's
	ports    portTable             // guarded by mu
	past     Counters              // guarded by mu; of QPs that are gone
	ctxCount uint32                // guarded by mu
	reaper   *time.Timer           // guarded by mu
	reaped   uint64                // guarded by mu: connections that were idle for too long

	assocMu sync.Mutex
	assocs  map[assocKey][]*association // guarded by assocMu: SCTP associations that connections can share
	// assocPeers counts, guarded by assocMu, the associations that each peer has set up.
	assocPeers map[peerKey]int

	stagMu   sync.Mutex
	stags    *stagSource         // guarded by stagMu
	prefixes map[uint32]struct{} // guarded by stagMu: those of key slots
	shards   [stagShards]stagShard

	admit admission // who may ask for connections
}

// STags are looked up for each segment: the map is split, so that QPs do not meet on one lock.
const stagShards = 64

type stagShard struct {
	mu sync.RWMutex
	m  map[uint32]*MR // guarded by mu
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
	s, err := newSTagSource()
	if err != nil {
		return nil, fmt.Errorf("vnic: %w", err)
	}
	d := &Device{cfg: cfg, log: cfg.Log.With("dev", cfg.Name), stags: s, contexts: make(map[*Context]struct{}), prefixes: make(map[uint32]struct{})}
	for i := range d.shards {
		d.shards[i].m = make(map[uint32]*MR)
	}
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
		touching: make(chan struct{}, stagedAtOnce),
		turns:    turns{most: positive(d.cfg.Timeouts.Turn)},
	}
	c.async.wake = make(chan struct{}, 1)
	c.later.ctx = c
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("open device %s: %w", d.cfg.Name, rdma.ErrClosed)
	}
	d.ctxCount++
	c.id = d.ctxCount
	d.contexts[c] = struct{}{}
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
	return nil
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
		return netip.Addr{}, fmt.Errorf("no address of %s reaches %v: %w", d.cfg.Name, remote, syscall.ENETUNREACH)
	}
	return from, nil
}

func (d *Device) shard(stag uint32) *stagShard { return &d.shards[stag%stagShards] }

// insertMR gives m an STag and makes it known.
func (d *Device) insertMR(m *MR) {
	d.stagMu.Lock()
	defer d.stagMu.Unlock()
	for {
		m.stag = d.stags.next()
		s := d.shard(m.stag)
		s.mu.Lock()
		_, taken := s.m[m.stag]
		if !taken {
			s.m[m.stag] = m
		}
		s.mu.Unlock()
		if !taken {
			return
		}
	}
}

// maxPrefixes bounds the prefixes in use, far below the 2^23 that there are.
const maxPrefixes = 1 << 22

// takePrefix takes a prefix that nobody has, unless most are in use, and returns a key with it.
func (d *Device) takePrefix(most int) (key uint32, err error) {
	d.stagMu.Lock()
	defer d.stagMu.Unlock()
	if len(d.prefixes) >= most {
		return 0, fmt.Errorf("%d windows and fast regions are on the device: %w", len(d.prefixes), rdma.ErrLimit)
	}
	for {
		key = d.stags.nextPrefix()
		if _, taken := d.prefixes[key>>8]; !taken {
			d.prefixes[key>>8] = struct{}{}
			return key, nil
		}
	}
}

func (d *Device) dropPrefix(key uint32) {
	d.stagMu.Lock()
	defer d.stagMu.Unlock()
	delete(d.prefixes, key>>8)
}

// insertBinding makes m known under its key, which is of a prefix of its own.
func (d *Device) insertBinding(m *MR) {
	s := d.shard(m.stag)
	s.mu.Lock()
	s.m[m.stag] = m
	s.mu.Unlock()
}

func (d *Device) removeMR(m *MR) {
	s := d.shard(m.stag)
	s.mu.Lock()
	if s.m[m.stag] == m {
		delete(s.m, m.stag)
	}
	s.mu.Unlock()
}

func (d *Device) lookupMR(stag uint32) *MR {
	s := d.shard(stag)
	s.mu.RLock()
	m := s.m[stag]
	s.mu.RUnlock()
	return m
}

// errno wraps a syscall.Errno with what was asked for.
func errno(e syscall.Errno, format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), e)
}

// status is the -errno of an rdma_cm event for err; other when err holds none.
func status(err error, other syscall.Errno) int32 {
	var e syscall.Errno
	if errors.As(err, &e) {
		return -int32(e)
	}
	return -int32(other)
}
