package server

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A fakeRNIC counts what its sessions have. Its QPs complete every send at once.
type fakeRNIC struct {
	listed   atomic.Int32 // lists that have ended, or been given up
	mu       sync.Mutex
	sessions map[*fakeHandler]struct{}
	closed   []error // causes of sessions that ended
	changes  []string
	began    int         // how many there were
	busyQP   atomic.Bool // QPs refuse to close
	closing  sync.Map    // of chan struct{}, by QP number: the QP closes when it is closed
	busySRQ  atomic.Bool
	busyMR   atomic.Uint32 // the key of one that refuses to close
	srqs     []*fakeSRQ
	qpn, key uint32
	ids      []*fakeID
	order    []uint32 // bells as they came
	slow     chan struct{}
	lost     chan struct{} // by who waits for a way that there is not, until the session ends
}

type fakeHandler struct {
	f     *fakeRNIC
	s     *Session
	mrs   map[uint32]*osmem.Memory
	queue *AsyncQueue
}

func (f *fakeRNIC) newSession(s *Session) (Handler, error) {
	h := &fakeHandler{f: f, s: s, mrs: map[uint32]*osmem.Memory{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions == nil {
		f.sessions = map[*fakeHandler]struct{}{}
	}
	f.sessions[h] = struct{}{}
	f.began++
	return h, nil
}

func (f *fakeRNIC) causes() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]error(nil), f.closed...)
}

func (h *fakeHandler) Devices() []string { return []string{"fake0", "fake1"} }
func (h *fakeHandler) QueryDevice(d uint32) (*rpc.QueryDeviceReply, error) {
	if d > 1 {
		return nil, syscall.ENODEV
	}
	return &rpc.QueryDeviceReply{Name: rpc.MakeDeviceName(h.Devices()[d]), MaxQP: 1 << 20,
		MaxCQ: 1 << 20, MaxSGE: 100, MaxPD: 7}, nil
}
func (h *fakeHandler) QueryPort(d, port uint32) (*rpc.QueryPortReply, error) {
	return &rpc.QueryPortReply{State: 4, LinkLayer: 2}, nil
}
func (h *fakeHandler) QueryGID(d, port, i uint32) (*rpc.QueryGIDReply, error) {
	return nil, errors.New("no errno in here")
}
func (h *fakeHandler) LendMem() error { return nil }

func (h *fakeHandler) MemGone() {}
func (h *fakeHandler) OpenContext(d uint32, ev *AsyncQueue) (ContextHandler, error) {
	if d > 1 {
		return nil, syscall.ENODEV
	}
	h.queue = ev
	return &fakeCtx{fakeObj{h}}, nil
}
func (h *fakeHandler) CreateID(_ *rpc.CMCreateIDRequest, id *CMID) (IDHandler, error) {
	i := &fakeID{h: h, id: id}
	h.f.mu.Lock()
	h.f.ids = append(h.f.ids, i)
	h.f.mu.Unlock()
	return i, nil
}
func (h *fakeHandler) List(kind uint32, all bool) (iter.Seq[any], error) {
	return func(yield func(any) bool) {
		defer h.f.listed.Add(1)
		for i := range 500 {
			if !yield(map[string]any{"i": i, "kind": kind, "all": all,
				"pad": "0123456789012345678901234567890123456789"}) {
				return
			}
		}
		yield(strings.Repeat("x", rpc.MaxMessage))
	}, nil
}
func (h *fakeHandler) Control(req *rpc.ControlRequest, fd int) (bool, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.f.changes = append(h.f.changes, rpc.CString(req.Value[:]))
	return false, nil
}
func (h *fakeHandler) Stat(bool) iter.Seq[any] { return func(func(any) bool) {} }
func (h *fakeHandler) Close(cause error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.f.closed = append(h.f.closed, cause)
	delete(h.f.sessions, h)
}

type fakeObj struct{ h *fakeHandler }

func (o fakeObj) Close() error { return nil }

type (
	fakeCtx struct{ fakeObj }
	fakePD  struct{ fakeObj }
	fakeMR  struct {
		fakeObj
		key uint32
	}
	fakeAH struct {
		fakeObj
		key uint32
	}
	fakeMW struct {
		fakeObj
		key uint32
	}
	fakeSRQ struct {
		fakeObj
		rings *ring.DaemonSRQ
		limit uint32
		bells atomic.Int32
	}
	fakeCQ struct {
		fakeObj
		ring *ring.CQProducer
	}
	fakeQP struct {
		fakeObj
		num   uint32
		rings *ring.DaemonQP
		cq    *fakeCQ
		w     abi.SendWQE
	}
)

func (c *fakeCtx) AllocPD() (PDHandler, error) { return &fakePD{c.fakeObj}, nil }
func (c *fakeCtx) CQDepth(uint32) uint32       { return 0 }

func (c *fakeCtx) CreateCQ(r *ring.CQProducer, _ uint32) (CQHandler, error) {
	return &fakeCQ{c.fakeObj, r},
		nil
}
func (p *fakePD) RegMR(req *rpc.RegMRRequest, m *osmem.Memory, old MRHandler) (MRHandler, error) {
	p.h.f.mu.Lock()
	defer p.h.f.mu.Unlock()
	p.h.f.key++
	key := p.h.f.key
	if old != nil {
		key = old.(*fakeMR).key
		if p.h.f.busyMR.Load() == key {
			return nil, syscall.EBUSY
		}
	}
	p.h.mrs[key] = m
	return &fakeMR{p.fakeObj, key}, nil
}
func (m *fakeMR) Keys() (l, r uint32) { return m.key, m.key + 1000 }
func (m *fakeMR) Close() error {
	if m.h.f.busyMR.Load() == m.key {
		return syscall.EBUSY
	}
	m.h.f.mu.Lock()
	defer m.h.f.mu.Unlock()
	delete(m.h.mrs, m.key)
	return nil
}
func (p *fakePD) AllocMR(n uint64) (MRHandler, error) { return &fakeMR{p.fakeObj, uint32(n)}, nil }
func (p *fakePD) AllocMW(typ uint32) (MWHandler, error) {
	if typ != 1 && typ != 2 {
		return nil, syscall.EINVAL
	}
	return &fakeMW{p.fakeObj, 0x100 * typ}, nil
}
func (m *fakeMW) RKey() uint32 { return m.key }
func (p *fakePD) CreateSRQ(_ *rpc.CreateSRQRequest, r *ring.DaemonSRQ) (SRQHandler, error) {
	q := &fakeSRQ{fakeObj: p.fakeObj, rings: r}
	p.h.f.mu.Lock()
	defer p.h.f.mu.Unlock()
	p.h.f.srqs = append(p.h.f.srqs, q)
	return q, nil
}
func (q *fakeSRQ) SetLimit(n uint32) error { q.limit = n; return nil }

func (q *fakeSRQ) Query(r *rpc.QuerySRQReply) error {
	r.Limit = q.limit
	return nil
}

// SRQSize rounds an SRQ of oddSRQ receives up.
func (p *fakePD) SRQSize(maxWR, maxSGE uint32) (wr, sge uint32) {
	if maxWR > abi.MaxDepth || maxSGE > abi.MaxSGE {
		panic("sizes that nobody has checked")
	}
	if maxWR == oddSRQ {
		return oddSRQ + 2, maxSGE + 1
	}
	return 0, 0
}

const oddSRQ = 13

func (q *fakeSRQ) Bell(func() bool) bool {
	q.bells.Add(1)
	return false
}
func (q *fakeSRQ) Close() error {
	if q.h.f.busySRQ.Load() {
		return syscall.EBUSY
	}
	return nil
}
func (p *fakePD) QPSize(c rpc.QPCaps, _ uint32) (size QPSize) {
	if _, ok := c.Round(abi.MaxDepth, false); !ok {
		panic("capabilities that nobody has checked")
	}
	if c.MaxInline == oddInline {
		size.Inline = oddInline + 4
	}
	return size
}

const oddInline = 97

// fakeQPMemory is what a QP is said to take.
const fakeQPMemory = 600

func (p *fakePD) QPMemory(rpc.QPCaps) int64 { return fakeQPMemory }

func (p *fakePD) CreateQP(parts *QPParts) (QPHandler, error) {
	p.h.f.mu.Lock()
	defer p.h.f.mu.Unlock()
	p.h.f.qpn++
	return &fakeQP{fakeObj: p.fakeObj, num: p.h.f.qpn, rings: parts.Rings, cq: parts.SendCQ.(*fakeCQ)},
		nil
}
func (q *fakeQP) Num() uint32              { return q.num }
func (q *fakeQP) DirectKeys() (int, error) { return -1, syscall.EAGAIN }

func (q *fakeQP) DirectMem(uint32) (int, error) { return -1, syscall.EAGAIN }
func (q *fakeQP) DirectSleep() (int, error)     { return -1, syscall.EAGAIN }
func (q *fakeQP) DirectWake() (int, error)      { return -1, syscall.EAGAIN }
func (q *fakeQP) DirectBits() (int, error)      { return -1, syscall.EAGAIN }

func (q *fakeQP) Direct(func(int) (*osmem.Region, int, func(), error), *rpc.DirectReply) (int,
	error) {
	return -1, syscall.EAGAIN
}

// await waits as for a neighbour that does not answer, if a test wants that and a has lostGID.
func (o fakeObj) await(a *rpc.AHAttr) error {
	if o.h.f.lost == nil || a.GIDIndex != lostGID {
		return nil
	}
	o.h.f.lost <- struct{}{}
	<-o.h.s.Context().Done()
	return syscall.ETIMEDOUT
}

const lostGID = 77

func (q *fakeQP) Modify(r *rpc.ModifyQPRequest) error {
	if err := q.await(&r.Attr.Path); err != nil {
		return err
	}
	q.rings.SetState(r.State)
	return nil
}
func (q *fakeQP) Query(r *rpc.QueryQPReply) {
	r.State, r.Attr = abi.StateRTS, rpc.QPAttr{Port: 1, DestQPN: 0x123456}
}
func (q *fakeQP) Attach(g [16]byte) error {
	if g[0] != 0xff {
		return syscall.EINVAL
	}
	return nil
}
func (q *fakeQP) Detach([16]byte) error { return nil }
func (c *fakeCQ) Resize(int) error      { return nil }

// keptSize is how many completions no CQ can be made to hold.
const keptSize = 1<<32 - 7

func (c *fakeCQ) CheckResize(n uint32) error {
	if n == keptSize {
		return syscall.EOPNOTSUPP
	}
	return nil
}

func (p *fakePD) CreateAH(a *rpc.AHAttr) (AHHandler, error) {
	if a.Flags != rpc.AHGlobal {
		return nil, syscall.EINVAL
	}
	if err := p.await(a); err != nil {
		return nil, err
	}
	return &fakeAH{p.fakeObj, 0x900 + uint32(a.GIDIndex)}, nil
}
func (a *fakeAH) Key() uint32 { return a.key }
func (q *fakeQP) Close() error {
	if q.h.f.busyQP.Load() {
		return syscall.EBUSY
	}
	if c, ok := q.h.f.closing.Load(q.num); ok {
		<-c.(chan struct{})
	}
	return nil
}

// Bell takes one request: what is left comes up again.
func (q *fakeQP) Bell(func() bool) bool {
	q.h.f.mu.Lock()
	q.h.f.order = append(q.h.f.order, q.num)
	slow := q.h.f.slow
	q.h.f.mu.Unlock()
	if slow != nil {
		<-slow
	}
	ok, err := q.rings.SQ.Next(&q.w)
	if !ok || err != nil {
		return false
	}
	q.cq.ring.Push(&abi.CQE{WRID: q.w.WRID, QPN: q.num, SQDone: q.rings.SQ.Retire(1),
		SlabOff: abi.NoSlab, Timestamp: osmem.MonotonicNS()}, false)
	return q.rings.SQ.Pending()
}

type fakeID struct {
	h      *fakeHandler
	id     *CMID
	closed atomic.Bool
	last   atomic.Value
	udp    atomic.Pointer[osmem.Packets]
}

func (i *fakeID) note(format string, args ...any) error {
	i.last.Store(fmt.Sprintf(format, args...))
	return nil
}
func (i *fakeID) Bind(a netip.AddrPort) error { return i.note("bind %v", a) }
func (i *fakeID) ResolveAddr(src, dst netip.AddrPort, ms uint32) error {
	i.id.Push(rpc.CMEvent{Type: rpc.EvAddrResolved})
	return i.note("resolve %v %v %d", src, dst, ms)
}
func (i *fakeID) ResolveRoute(uint32) error { return i.note("route") }
func (i *fakeID) Listen(n uint32) error     { return i.note("listen %d", n) }
func (i *fakeID) Connect(q QPHandler, p *rpc.ConnParam) error {
	b, _ := p.PrivateData()
	return i.note("connect %d %q", numOf(q), b)
}

// numOf is the number of q, 0 without one.
func numOf(q QPHandler) uint32 {
	if q == nil {
		return 0
	}
	return q.Num()
}
func (i *fakeID) Accept(q QPHandler, _ *rpc.ConnParam) error {
	return i.note("accept %d", numOf(q))
}

// notJoined is a group that the network cannot join.
var notJoined = netip.MustParseAddr("224.0.0.77")

func (i *fakeID) Join(a netip.Addr, group uint64) error {
	if a == netip.MustParseAddr("224.0.0.66") {
		return syscall.ENODEV
	}
	if a == notJoined {
		return i.id.Push(rpc.CMEvent{Type: rpc.EvMulticastError, Group: group})
	}
	i.id.Push(rpc.CMEvent{Type: rpc.EvMulticastJoin, Group: group, Path: rpc.AHAttr{
		GID: a.As16(), Flags: rpc.AHGlobal}})
	return i.note("join %v %d", a, group)
}
func (i *fakeID) Leave(a netip.Addr) error {
	if a == notJoined {
		return syscall.EADDRNOTAVAIL
	}
	return i.note("leave %v", a)
}
func (i *fakeID) OpenUDP(p *osmem.Packets) error {
	if !i.udp.CompareAndSwap(nil, p) {
		return syscall.EBUSY
	}
	return nil
}
func (i *fakeID) Reject(b []byte) error { return i.note("reject %q", b) }
func (i *fakeID) Disconnect() error     { return i.note("disconnect") }
func (i *fakeID) Establish() error      { return i.note("establish") }
func (i *fakeID) Notify() error         { return i.note("notify") }
func (i *fakeID) SetOption(l, n uint32, v []byte) error {
	return i.note("option %d %d %v", l, n, v)
}
func (i *fakeID) Query() rpc.CMQueryReply { return rpc.CMQueryReply{Device: rpc.NoDevice} }
func (i *fakeID) InitQPAttr(state uint32) (rpc.CMInitQPAttrReply, error) {
	if state != abi.StateInit {
		return rpc.CMInitQPAttrReply{}, syscall.EINVAL
	}
	return rpc.CMInitQPAttrReply{Mask: rpc.QPAttrState, State: state}, nil
}
func (i *fakeID) Close() error {
	if p := i.udp.Load(); p != nil {
		p.Close()
	}
	i.closed.Store(true)
	return nil
}
