package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
)

// --- a handler that is as simple as can be ---

// A fakeRNIC counts what its sessions have. Its QPs complete every send at once.
type fakeRNIC struct {
	listed   atomic.Int32 // lists that have ended, or been given up
	mu       sync.Mutex
	sessions map[*fakeHandler]struct{}
	closed   []error     // causes of sessions that ended
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
	return h, nil
}

func (f *fakeRNIC) causes() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]error(nil), f.closed...)
}

func (h *fakeHandler) Devices() []string { return []string{"fake0", "fake1"} }
func (h *fakeHandler) QueryDevice(d uint32) (*abi.QueryDeviceReply, error) {
	if d > 1 {
		return nil, syscall.ENODEV
	}
	return &abi.QueryDeviceReply{Name: abi.MakeDeviceName(h.Devices()[d]), MaxQP: 1 << 20,
		MaxCQ: 1 << 20, MaxSGE: 100, MaxPD: 7}, nil
}
func (h *fakeHandler) QueryPort(d, port uint32) (*abi.QueryPortReply, error) {
	return &abi.QueryPortReply{State: 4, LinkLayer: 2}, nil
}
func (h *fakeHandler) QueryGID(d, port, i uint32) (*abi.QueryGIDReply, error) {
	return nil, errors.New("no errno in here")
}
func (h *fakeHandler) LendMem() error { return nil }
func (h *fakeHandler) OpenContext(d uint32, ev *AsyncQueue) (ContextHandler, error) {
	if d > 1 {
		return nil, syscall.ENODEV
	}
	h.queue = ev
	return &fakeCtx{fakeObj{h}}, nil
}
func (h *fakeHandler) CreateID(_ *abi.CMCreateIDRequest, id *CMID) (IDHandler, error) {
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
		yield(strings.Repeat("x", abi.MaxMessage))
	}, nil
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
func (c *fakeCtx) CreateCQ(r *ring.CQProducer) (CQHandler, error) {
	return &fakeCQ{c.fakeObj, r},
		nil
}
func (p *fakePD) RegMR(req *abi.RegMRRequest, m *osmem.Memory, old MRHandler) (MRHandler, error) {
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
func (p *fakePD) CreateSRQ(_ *abi.CreateSRQRequest, r *ring.DaemonSRQ) (SRQHandler, error) {
	q := &fakeSRQ{fakeObj: p.fakeObj, rings: r}
	p.h.f.mu.Lock()
	defer p.h.f.mu.Unlock()
	p.h.f.srqs = append(p.h.f.srqs, q)
	return q, nil
}
func (q *fakeSRQ) SetLimit(n uint32) error { q.limit = n; return nil }
func (q *fakeSRQ) Limit() (uint32, error)  { return q.limit, nil }
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
func (p *fakePD) CreateQP(parts *QPParts) (QPHandler, error) {
	p.h.f.mu.Lock()
	defer p.h.f.mu.Unlock()
	p.h.f.qpn++
	return &fakeQP{fakeObj: p.fakeObj, num: p.h.f.qpn, rings: parts.Rings, cq: parts.SendCQ.(*fakeCQ)},
		nil
}
func (q *fakeQP) Num() uint32 { return q.num }

// await waits as for a neighbour that does not answer, if a test wants that and a has lostGID.
func (o fakeObj) await(a *abi.AHAttr) error {
	if o.h.f.lost == nil || a.GIDIndex != lostGID {
		return nil
	}
	o.h.f.lost <- struct{}{}
	<-o.h.s.Context().Done()
	return syscall.ETIMEDOUT
}

const lostGID = 77

func (q *fakeQP) Modify(r *abi.ModifyQPRequest) error {
	if err := q.await(&r.Attr.Path); err != nil {
		return err
	}
	q.rings.SetState(r.State)
	return nil
}
func (q *fakeQP) Query(r *abi.QueryQPReply) {
	r.State, r.Attr = abi.StateRTS, abi.QPAttr{Port: 1, DestQPN: 0x123456}
}
func (q *fakeQP) Attach(g [16]byte) error {
	if g[0] != 0xff {
		return syscall.EINVAL
	}
	return nil
}
func (q *fakeQP) Detach([16]byte) error { return nil }
func (c *fakeCQ) Resize(int) error      { return nil }
func (p *fakePD) CreateAH(a *abi.AHAttr) (AHHandler, error) {
	if a.Flags != abi.AHGlobal {
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
}

func (i *fakeID) note(format string, args ...any) error {
	i.last.Store(fmt.Sprintf(format, args...))
	return nil
}
func (i *fakeID) Bind(a netip.AddrPort) error { return i.note("bind %v", a) }
func (i *fakeID) ResolveAddr(src, dst netip.AddrPort, ms uint32) error {
	i.id.Push(abi.CMEvent{Type: abi.EvAddrResolved})
	return i.note("resolve %v %v %d", src, dst, ms)
}
func (i *fakeID) ResolveRoute(uint32) error { return i.note("route") }
func (i *fakeID) Listen(n uint32) error     { return i.note("listen %d", n) }
func (i *fakeID) Connect(q QPHandler, p *abi.ConnParam) error {
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
func (i *fakeID) Accept(q QPHandler, _ *abi.ConnParam) error {
	return i.note("accept %d", numOf(q))
}

// notJoined is a group that the network cannot join.
var notJoined = netip.MustParseAddr("224.0.0.77")

func (i *fakeID) Join(a netip.Addr, group uint64) error {
	if a == netip.MustParseAddr("224.0.0.66") {
		return syscall.ENODEV
	}
	if a == notJoined {
		return i.id.Push(abi.CMEvent{Type: abi.EvMulticastError, Group: group})
	}
	i.id.Push(abi.CMEvent{Type: abi.EvMulticastJoin, Group: group, Path: abi.AHAttr{
		GID: a.As16(), Flags: abi.AHGlobal}})
	return i.note("join %v %d", a, group)
}
func (i *fakeID) Leave(a netip.Addr) error {
	if a == notJoined {
		return syscall.EADDRNOTAVAIL
	}
	return i.note("leave %v", a)
}
func (i *fakeID) Reject(b []byte) error { return i.note("reject %q", b) }
func (i *fakeID) Disconnect() error     { return i.note("disconnect") }
func (i *fakeID) Establish() error      { return i.note("establish") }
func (i *fakeID) Notify() error         { return i.note("notify") }
func (i *fakeID) SetOption(l, n uint32, v []byte) error {
	return i.note("option %d %d %v", l, n, v)
}
func (i *fakeID) Query() abi.CMQueryReply { return abi.CMQueryReply{Device: abi.NoDevice} }
func (i *fakeID) InitQPAttr(state uint32) (abi.CMInitQPAttrReply, error) {
	if state != abi.StateInit {
		return abi.CMInitQPAttrReply{}, syscall.EINVAL
	}
	return abi.CMInitQPAttrReply{Mask: abi.QPAttrState, State: state}, nil
}
func (i *fakeID) Close() error {
	i.closed.Store(true)
	return nil
}

// --- a server for a test ---

type testServer struct {
	strangers atomic.Bool // nobody is privileged; set before there are clients
	t         testing.TB
	srv       *Server
	f         *fakeRNIC
	path      string
	log       *lockedBuffer

	mu    sync.Mutex
	now   time.Time
	timer []*fakeTimer
}

type fakeTimer struct {
	d       time.Duration
	f       func()
	stopped bool
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newServer starts a server with a clock of its own; at the end of the test everything must be as
// before. limits are NAME=N.
func newServer(t testing.TB, limits ...string) *testServer {
	t.Helper()
	proctest.NoLeaks(t)
	ts := &testServer{t: t, f: &fakeRNIC{}, path: filepath.Join(t.TempDir(), "s"),
		log: &lockedBuffer{}, now: time.Unix(1000, 0)}
	l := DefaultLimits()
	for _, s := range limits {
		if err := l.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	ts.srv, err = Listen(ts.path, Config{NewSession: ts.f.newSession, Limits: &l,
		Log:        slog.New(slog.NewTextHandler(ts.log, nil)),
		Privileged: func(osmem.Peer) bool { return !ts.strangers.Load() },
		AfterFunc:  ts.afterFunc, Now: func() time.Time {
			ts.mu.Lock()
			defer ts.mu.Unlock()
			return ts.now
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ts.srv.Close() })
	return ts
}

func (ts *testServer) afterFunc(d time.Duration, f func()) func() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	x := &fakeTimer{d: d, f: f}
	ts.timer = append(ts.timer, x)
	return func() bool {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		was := !x.stopped
		x.stopped = true
		return was
	}
}

// expire fires all timers of a length.
func (ts *testServer) expire(d time.Duration) (n int) {
	ts.mu.Lock()
	due := ts.timer
	ts.mu.Unlock()
	for _, x := range due {
		ts.mu.Lock()
		fire := x.d == d && !x.stopped
		x.stopped = x.stopped || fire
		ts.mu.Unlock()
		if fire {
			n++
			x.f()
		}
	}
	return n
}

// id and srq are what the fake has made, in order.
func (ts *testServer) id(i int) *fakeID {
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	return ts.f.ids[i]
}

func (ts *testServer) srq(i int) *fakeSRQ {
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	return ts.f.srqs[i]
}

func (ts *testServer) want(what string, ok func() bool) {
	ts.t.Helper()
	proctest.Want(ts.t, what, ok)
}

// --- a scripted client ---

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// A rawClient sends what it is told to, right or wrong.
type rawClient struct {
	t    failer
	fd   int
	seq  uint32
	page []byte
	bell int
	own  []int
	maps [][]byte
}

func rawConnect(t failer, path string) *rawClient {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, fd: fd, bell: -1}
	if tb, ok := t.(testing.TB); ok {
		tb.Cleanup(c.close)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal("connect:", err)
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	return c
}

func (c *rawClient) close() {
	for _, m := range c.maps {
		unix.Munmap(m)
	}
	for _, fd := range append(c.own, c.fd, c.bell) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	c.maps, c.own, c.fd, c.bell = nil, nil, -1, -1
}

// sendRaw sends octets with descriptors; an error is returned, as the server may have closed.
func (c *rawClient) sendRaw(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		if err := unix.Sendmsg(c.fd, b, oob, nil, unix.MSG_NOSIGNAL); err != unix.EINTR {
			return err
		}
	}
}

// recv returns the next reply. ended: the server has closed.
func (c *rawClient) recv() (h abi.Header, body []byte, fds []int, ended bool) {
	c.t.Helper()
	buf, oob := make([]byte, abi.MaxMessage+1), make([]byte, 256)
	n, oobn, _, _, err := unix.Recvmsg(c.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR { // with a receive timeout the kernel does not restart it
		n, oobn, _, _, err = unix.Recvmsg(c.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if n == 0 && err == nil || err == unix.ECONNRESET || err == unix.EPIPE {
		return h, nil, nil, true
	}
	if err != nil {
		c.t.Fatal("recv:", err)
	}
	h, body, err = abi.ParseMessage(buf[:n])
	if err != nil {
		c.t.Fatal(err)
	}
	if oobn > 0 {
		if fds, err = seqpacket.ReceivedFDs(oob[:oobn]); err != nil {
			c.t.Fatal(err)
		}
		c.own = append(c.own, fds...)
	}
	return h, body, fds, false
}

// try does a request and returns the reply's status as an error, or errEnded.
func (c *rawClient) try(op abi.Op, req, rep abi.Message, fds ...int) ([]int, error) {
	c.t.Helper()
	c.seq++
	if err := c.sendRaw(abi.AppendMessage(nil, abi.Header{Op: op, Seq: c.seq}, req),
		fds...); err != nil {
		return nil, errEnded
	}
	h, body, got, ended := c.recv()
	if ended {
		return nil, errEnded
	}
	if h.Op != op || h.Seq != c.seq {
		c.t.Fatalf("reply %+v to %v, seq %d", h, op, c.seq)
	}
	if rep != nil {
		if err := abi.Decode(body, rep); err != nil {
			c.t.Fatal(err)
		}
	}
	return got, abi.Errno(h.Status)
}

var errEnded = errors.New("the server has ended the session")

func (c *rawClient) do(op abi.Op, req, rep abi.Message, fds ...int) []int {
	c.t.Helper()
	got, err := c.try(op, req, rep, fds...)
	if err != nil {
		c.t.Fatalf("%v: %v", op, err)
	}
	return got
}

func (c *rawClient) mmap(fd int) []byte {
	c.t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		c.t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.t.Fatal("mmap:", err)
	}
	c.maps = append(c.maps, b)
	return b
}

func goodHello() *abi.HelloRequest {
	return &abi.HelloRequest{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor, Comm: [16]byte{
		't', 'e', 's', 't'}}
}

// hello shakes hands.
func (c *rawClient) hello() *rawClient {
	c.t.Helper()
	var rep abi.HelloReply
	fds := c.do(abi.OpHello, goodHello(), &rep)
	if len(fds) != 2 || rep.Magic != abi.MagicHello || rep.NumDevices != 2 ||
		rep.Devices[1].String() != "fake1" {
		c.t.Fatalf("HELLO gave %d descriptors, %+v", len(fds), rep)
	}
	c.page, c.bell = c.mmap(fds[0]), fds[1]
	c.own = c.own[:len(c.own)-1] // bell is closed by itself
	return c
}

func (ts *testServer) client() *rawClient {
	ts.t.Helper()
	return rawConnect(ts.t, ts.path).hello()
}

// Ring makes rawClient a Doorbell.
func (c *rawClient) Ring() error {
	_, err := unix.Write(c.bell, binary.NativeEndian.AppendUint64(nil, 1))
	return err
}
func (c *rawClient) Wait() error { panic("not the client's") }

// A rawQP is a QP with all that it needs.
type rawQP struct {
	ctx, pd, chanl, cq, qp, qpn, bell uint32
	m                                 *ring.ClientQP
	c                                 *ring.CQConsumer
	ch                                *ring.ChannelConsumer
	ringer                            *ring.BellRinger
	pipe, async                       int
	mem, cqMem                        []byte
}

func (c *rawClient) newQP() *rawQP {
	c.t.Helper()
	q := &rawQP{}
	var ctx abi.CtxOpenReply
	q.async = c.do(abi.OpCtxOpen, &abi.CtxOpenRequest{}, &ctx)[0]
	var pd abi.AllocPDReply
	c.do(abi.OpAllocPD, &abi.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
	var ch abi.CreateChanReply
	fds := c.do(abi.OpCreateChan, &abi.CreateChanRequest{Ctx: ctx.Ctx}, &ch)
	var err error
	q.pipe = fds[0]
	if q.ch, err = ring.OpenChannelConsumer(c.mmap(fds[1])); err != nil {
		c.t.Fatal(err)
	}
	var cq abi.CreateCQReply
	fds = c.do(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: ctx.Ctx, CQE: 60, Chan: ch.Chan}, &cq)
	q.cqMem = c.mmap(fds[0])
	if q.c, err = ring.OpenCQConsumer(q.cqMem); err != nil || cq.CQE != 64 || q.c.Handle() != cq.CQ {
		c.t.Fatalf("%v, %+v", err, cq)
	}
	var qp abi.CreateQPReply
	fds = c.do(abi.OpCreateQP, &abi.CreateQPRequest{PD: pd.PD, SendCQ: cq.CQ, RecvCQ: cq.CQ,
		Caps: abi.QPCaps{MaxSendWR: 10, MaxRecvWR: 10}}, &qp)
	q.mem = c.mmap(fds[0])
	if q.m, err = ring.OpenClientQP(q.mem); err != nil || q.m.QPN != qp.QPN ||
		qp.Caps.MaxSendWR != 16 {
		c.t.Fatalf("%v, %+v", err, qp)
	}
	if q.ringer, err = ring.OpenBellRinger(c.page, c); err != nil {
		c.t.Fatal(err)
	}
	q.ctx, q.pd, q.chanl, q.cq, q.qp, q.qpn, q.bell = ctx.Ctx, pd.PD, ch.Chan, cq.CQ, qp.QP,
		qp.QPN, qp.Bell
	return q
}

// roundTrip posts a request and waits for its event and completion.
func (q *rawQP) roundTrip(t failer, id uint64) {
	t.Helper()
	q.c.Arm(false)
	if err := q.m.SQ.Put(&abi.SendWQE{WRID: id, Op: 2, Flags: abi.SQSignaled}); err != nil {
		t.Fatal(err)
	}
	q.m.SQ.Commit()
	if err := q.ringer.Ring(q.bell); err != nil {
		t.Fatal(err)
	}
	q.wantEvent(t)
	var e abi.CQE
	if ok, err := q.c.Poll(&e); !ok || err != nil || e.WRID != id || e.QPN != q.qpn {
		t.Fatalf("completion %v, %v, %+v; want wr_id %d", ok, err, e, id)
	}
}

func (q *rawQP) wantEvent(t failer) {
	t.Helper()
	readToken(t, q.pipe)
	if h, ok, err := q.ch.Pop(); !ok || err != nil || h != q.cq {
		t.Fatalf("event %d, %v, %v; want CQ %d", h, ok, err, q.cq)
	}
	q.c.TakeEvent()
}

// readToken waits up to 10 s.
func readToken(t failer, pipe int) {
	t.Helper()
	pfd := []unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(pfd, 10000)
		if err == unix.EINTR {
			continue
		}
		if n == 0 || err != nil {
			t.Fatalf("no event: %v", err)
		}
		break
	}
	var b [1]byte
	if n, err := unix.Read(pipe, b[:]); n != 1 || err != nil {
		t.Fatalf("token: %d, %v", n, err)
	}
}

func tokenThere(pipe int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}, 0)
	return n == 1
}

// memfd makes memory to lend; seals 0: none.
func (c *rawClient) memfd(size int64, seals int) int {
	c.t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		c.t.Fatal(err)
	}
	c.own = append(c.own, fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		c.t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			c.t.Fatal(err)
		}
	}
	return fd
}

// openFile opens a file to lend.
func (c *rawClient) openFile(path string, flags int) int {
	c.t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	c.own = append(c.own, fd)
	return fd
}

// nonceAddr is where this process has mapped the nonce.
func (c *rawClient) nonceAddr() uint64 {
	return uint64(uintptr(unsafe.Pointer(&c.page[abi.SessNonce])))
}

func (c *rawClient) openMem() int {
	c.t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	c.own = append(c.own, fd)
	return fd
}

func uintptrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// unmapTail leaves a hole behind the first page of a mapping of two pages that was made with mmap.
func unmapTail(b []byte) {
	unix.RawSyscall(unix.SYS_MUNMAP, uintptrOf(b)+uintptr(os.Getpagesize()), uintptr(os.Getpagesize()),
		0)
}
