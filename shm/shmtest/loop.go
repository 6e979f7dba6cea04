package shmtest

import (
	"iter"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// A Loop is an RNIC without a network behind any number of sessions. Its devices are loop0 with
// 10.9.0.1/24 and fd09::1/64, and loop1 with 10.9.0.2/24 and fd09::2/64.
type Loop struct {
	mu       sync.Mutex // guards everything below and in the objects
	nextQPN  uint32     // +checklocks:mu
	nextKey  uint32
	nextPort uint16
	ctxs     map[*loopCtx]struct{} // +checklocks:mu
	mrs      map[uint32]*loopMR    // regions, and windows and fast registrations while they are valid
	// windows and regions of AllocMR, by the upper 24 bits of their keys
	keyed     map[uint32]*loopKey
	listeners map[netip.AddrPort]*loopID
	open      int  // objects of all kinds that have not been closed
	closed    bool // no program exchanges messages without the Loop
	direct    atomic.Uint64
	bells     atomic.Uint64
	sleepers  atomic.Uint64
}

// NewLoop makes a Loop.
func NewLoop() *Loop {
	return &Loop{
		nextQPN: 16, nextKey: 0x100, nextPort: 40000, ctxs: make(map[*loopCtx]struct{}),
		mrs: make(map[uint32]*loopMR), keyed: make(map[uint32]*loopKey),
		listeners: make(map[netip.AddrPort]*loopID),
	}
}

// NewSession is a server.Config's.
func (l *Loop) NewSession(s *server.Session) (server.Handler, error) {
	return &loopSession{l: l, s: s, qps: make(map[*loopQP]struct{}), ids: make(map[*loopID]struct{})},
		nil
}

// Objects is how many contexts, PDs, MRs, windows, CQs, SRQs, QPs and ids there are.
func (l *Loop) Objects() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// qps are all that have not been closed.
//
// +checklocks:l.mu
func (l *Loop) qps() (all []*loopQP) {
	for c := range l.ctxs {
		for q := range c.sess.qps {
			all = append(all, q)
		}
	}
	return all
}

// Async sends ev to every open device.
func (l *Loop) Async(ev rpc.AsyncEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.ctxs {
		c.events.Push(ev)
	}
}

// Terminate ends the connection of the QP with number qpn as a Terminate of the peer's with this
// cause (layer<<12 | type<<8 | code) would.
func (l *Loop) Terminate(qpn, cause uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.ctxs {
		for q := range c.sess.qps {
			if q.num == qpn {
				q.fail(abi.ErrorValid | abi.ErrorRemote | cause)
				return
			}
		}
	}
}

var loopAddrs = [][]netip.Prefix{
	{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd09::1/64")},
	{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd09::2/64")},
}

// deviceOf is the number of the device with address a, or -1.
func deviceOf(a netip.Addr) int {
	return slices.IndexFunc(loopAddrs, func(ps []netip.Prefix) bool {
		return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// A loopSession implements server.Handler.
type loopSession struct {
	l    *Loop
	s    *server.Session
	qps  map[*loopQP]struct{}
	ids  map[*loopID]struct{}
	ctxs []*loopCtx
	open int // its part of Loop.open
}

// count notes objects made (n > 0) or closed: l.mu is held.
func (h *loopSession) count(n int) {
	h.open += n
	h.l.open += n
}

func (h *loopSession) Devices() []string { return []string{"loop0", "loop1"} }

func (h *loopSession) QueryDevice(device uint32) (*rpc.QueryDeviceReply, error) {
	if int(device) >= len(loopAddrs) {
		return nil, syscall.ENODEV
	}
	r := &rpc.QueryDeviceReply{
		Name: rpc.MakeDeviceName(h.Devices()[device]), MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0,
			byte(device)},
		MaxQP: 1024, MaxQPWR: 16384, MaxSGE: 16, MaxInline: 256, MaxCQ: 4096, MaxCQE: 16384, MaxMR: 65536,
		MaxPD:  256,
		MaxIRD: 32, MaxORD: 32, MaxMRLen: 1 << 32, MaxMW: 1 << 20, MaxSRQ: 1 << 20, MaxSRQWR: 16384,
		MaxSRQSGE: 16, NumAddrs: uint16(len(loopAddrs[device])),
	}
	for i, p := range loopAddrs[device] {
		r.Addrs[i] = rpc.MakePrefix(p)
	}
	return r, nil
}

func (h *loopSession) QueryPort(device, port uint32) (*rpc.QueryPortReply, error) {
	if int(device) >= len(loopAddrs) || port != 1 {
		return nil, syscall.ENODEV
	}
	return &rpc.QueryPortReply{State: 4, LinkLayer: 2, GIDs: 1}, nil
}

func (h *loopSession) QueryGID(device, port, index uint32) (*rpc.QueryGIDReply, error) {
	return &rpc.QueryGIDReply{}, nil
}

func (h *loopSession) LendMem() error { return nil }

// MemGone implements server.Handler.
func (h *loopSession) MemGone() {}

func (h *loopSession) OpenContext(device uint32, events *server.AsyncQueue) (server.ContextHandler,
	error) {
	if int(device) >= len(loopAddrs) {
		return nil, syscall.ENODEV
	}
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	c := &loopCtx{sess: h, events: events}
	h.l.ctxs[c] = struct{}{}
	h.ctxs = append(h.ctxs, c)
	h.count(1)
	return c, nil
}

// List gives rows enough to need several pages.
func (h *loopSession) List(kind uint32, _ bool) (iter.Seq[any], error) {
	return func(yield func(any) bool) {
		for i := range 300 {
			row := struct {
				Kind uint32 `json:"kind"`
				Row  int    `json:"row"`
				Text string `json:"text"`
			}{kind, i, "some words to fill the page"}
			if !yield(row) {
				return
			}
		}
	}, nil
}

func (h *loopSession) Stat(bool) iter.Seq[any] {
	return func(yield func(any) bool) { yield(map[string]int{"stat": 1}) }
}

// Control implements server.Handler: there is nothing to change.
func (s *loopSession) Control(*rpc.ControlRequest, int) (bool, error) {
	return false, syscall.EOPNOTSUPP
}

// Close implements server.Handler.
func (h *loopSession) Close(error) {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	for q := range h.qps {
		q.fail(0)
		q.closed = true
		q.leavePair()
	}
	for id := range h.ids {
		id.end()
	}
	for key, mr := range h.l.mrs {
		if mr.pd.c.sess == h {
			delete(h.l.mrs, key)
		}
	}
	for key, k := range h.l.keyed {
		if k.pd.c.sess == h {
			delete(h.l.keyed, key)
		}
	}
	for _, c := range h.ctxs {
		delete(h.l.ctxs, c)
	}
	h.count(-h.open)
}

// A loopCtx implements shm.ContextHandler.
type loopCtx struct {
	sess   *loopSession
	events *server.AsyncQueue
}

func (c *loopCtx) AllocPD() (server.PDHandler, error) {
	c.sess.l.mu.Lock()
	defer c.sess.l.mu.Unlock()
	c.sess.count(1)
	return &loopPD{c: c}, nil
}

func (c *loopCtx) CQDepth(uint32) uint32 { return 0 }

func (c *loopCtx) CreateCQ(ring *ring.CQProducer, _ uint32) (server.CQHandler, error) {
	c.sess.l.mu.Lock()
	defer c.sess.l.mu.Unlock()
	c.sess.count(1)
	return &loopCQ{c: c, ring: ring}, nil
}

func (c *loopCtx) Close() error {
	c.sess.l.mu.Lock()
	defer c.sess.l.mu.Unlock()
	delete(c.sess.l.ctxs, c)
	c.sess.count(-1)
	return nil
}

// A loopCQ implements shm.CQHandler.
type loopCQ struct {
	c    *loopCtx
	ring *ring.CQProducer
	qps  int
}

func (q *loopCQ) Close() error {
	q.c.sess.l.mu.Lock()
	defer q.c.sess.l.mu.Unlock()
	if q.qps != 0 {
		return syscall.EBUSY
	}
	q.c.sess.count(-1)
	return nil
}
