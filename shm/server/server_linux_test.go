package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

func TestServerRoundTrip(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	for i := range uint64(100) {
		q.roundTrip(t, i)
	}
	var r rpc.QueryQPReply
	c.do(rpc.OpQueryQP, &rpc.HandleRequest{Handle: q.qp}, &r)
	if r.State != abi.StateRTS || r.QPN != q.qpn {
		t.Errorf("%+v", r)
	}
	c.do(rpc.OpModifyQP, &rpc.ModifyQPRequest{QP: q.qp}, nil)
	c.do(rpc.OpModifyQP, &rpc.ModifyQPRequest{QP: q.qp, Mask: rpc.ModifyQPState, State: abi.StateErr},
		nil)
	if q.m.State() != abi.StateErr {
		t.Errorf("state %d", q.m.State())
	}
	c.close()
	ts.want("the session ends in order", func() bool {
		return slices.Equal(ts.f.causes(), []error{nil})
	})
	ts.want("its place is free", func() bool { return ts.srv.Stats().Sessions == 0 })
}

// A bell that is rung costs one call per share: two QPs take turns.
func TestFairShare(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q1, q2 := c.newQP(), c.newQP()
	ts.f.mu.Lock()
	ts.f.slow = make(chan struct{})
	ts.f.mu.Unlock()
	for _, q := range []*rawQP{q1, q2} {
		for i := range uint64(3) {
			q.m.SQ.Put(&abi.SendWQE{WRID: i})
		}
		q.m.SQ.Commit()
	}
	q1.ringer.Ring(q1.bell)
	ts.want("the first share", func() bool {
		ts.f.mu.Lock()
		defer ts.f.mu.Unlock()
		return len(ts.f.order) == 1
	})
	q2.ringer.Ring(q2.bell)
	close(ts.f.slow)
	ts.want("all shares", func() bool {
		ts.f.mu.Lock()
		defer ts.f.mu.Unlock()
		return len(ts.f.order) == 6
	})
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	if got, want := ts.f.order, []uint32{1, 1, 2, 1, 2, 2}; !slices.Equal(got, want) {
		t.Errorf("turns %v, want %v", got, want)
	}
}

func TestHelloVersion(t *testing.T) {
	ts := newServer(t)
	c := rawConnect(t, ts.path)
	req := goodHello()
	req.Major = abi.Major + 1
	var rep rpc.HelloReply
	fds, err := c.try(rpc.OpHello, req, &rep)
	if !errors.Is(err, syscall.EPROTONOSUPPORT) || rep.Major != abi.Major || rep.Minor != abi.Minor ||
		rep.Magic != abi.MagicHello || len(fds) != 0 {
		t.Errorf("other major: %v, %+v, %d descriptors", err, rep, len(fds))
	}
	if _, _, _, ended := c.recv(); !ended {
		t.Error("the session goes on")
	}
	c = rawConnect(t, ts.path)
	req = goodHello()
	req.Minor = 900
	c.do(rpc.OpHello, req, &rep)
	if rep.Minor != abi.Minor {
		t.Errorf("minor %d of 900 and %d", rep.Minor, abi.Minor)
	}
	if len(ts.f.causes()) > 1 || ts.srv.Stats().Violations != 0 {
		t.Error("a version is no violation")
	}
}

// docs/abi.md#session: 5 s from connect to HELLO.
func TestHelloTimeout(t *testing.T) {
	ts := newServer(t)
	slow := rawConnect(t, ts.path)
	quick := ts.client()
	ts.want("both timers were set", func() bool {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		return len(ts.timer) == 2
	})
	if n := ts.expire(5 * time.Second); n != 1 {
		t.Errorf("%d timers ran", n)
	}
	if _, _, _, ended := slow.recv(); !ended {
		t.Error("a client that never said HELLO is kept")
	}
	quick.newQP()
	ts.want("it was counted", func() bool { return ts.srv.Stats().Refused == 1 })
}

// The rules of docs/abi.md#evolution.
func TestEvolutionOnTheSocket(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	msg := func(h rpc.Header, body ...byte) (int32, bool) {
		t.Helper()
		h.Len = uint32(len(body))
		if err := c.sendRaw(append(rpc.AppendMessage(nil, h, &rpc.Empty{})[:12],
			append([]byte{byte(len(body)), byte(len(body) >> 8), 0, 0}, body...)...)); err != nil {
			t.Fatal(err)
		}
		r, _, _, ended := c.recv()
		return r.Status, ended
	}
	for _, tt := range []struct {
		name string
		h    rpc.Header
		body []byte
		want syscall.Errno
	}{
		{"unknown op", rpc.Header{Op: 999}, nil, syscall.EOPNOTSUPP},
		{"call that is gone", rpc.Header{Op: 52}, nil, syscall.EOPNOTSUPP},
		{"another one", rpc.Header{Op: 130}, nil, syscall.EOPNOTSUPP},
		{"unknown header flag", rpc.Header{Op: rpc.OpCtxOpen, Flags: 1}, nil, syscall.EINVAL},
		{"status in a request", rpc.Header{Op: rpc.OpCtxOpen, Status: -1}, nil, syscall.EINVAL},
		{"shorter: zero filled", rpc.Header{Op: rpc.OpCtxOpen}, nil, 0},
		{"longer, zero", rpc.Header{Op: rpc.OpCtxOpen}, make([]byte, 100), 0},
		{"longer, not zero", rpc.Header{Op: rpc.OpCtxOpen}, append(make([]byte, 99), 1), syscall.E2BIG},
		{"padding not zero", rpc.Header{Op: rpc.OpCtxOpen}, []byte{0, 0, 0, 0, 1, 0, 0, 0},
			syscall.EINVAL},
		{"nothing there", rpc.Header{Op: rpc.OpDestroyQP}, []byte{1, 0, 0, 0}, syscall.ENOENT},
		{"error without errno", rpc.Header{Op: rpc.OpQueryGID}, nil, syscall.EIO},
		{"no such device", rpc.Header{Op: rpc.OpQueryDevice}, []byte{9, 0, 0, 0}, syscall.ENODEV},
	} {
		if st, ended := msg(tt.h, tt.body...); ended || st != -int32(tt.want) {
			t.Errorf("%s: status %d, ended %v; want %d", tt.name, st, ended, -int32(tt.want))
		}
	}
}

// V7: what is in use stays.
func TestBusy(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	mem := c.memfd(8192, unix.F_SEAL_SHRINK)
	var m rpc.AddMemReply
	c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &m, mem)
	var mr rpc.RegMRReply
	c.do(rpc.OpRegMR, &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeShared, Mem: m.Mem, Length: 8192}, &mr)
	busy := func(op rpc.Op, h uint32) {
		t.Helper()
		if _, err := c.try(op, &rpc.HandleRequest{Handle: h}, nil); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%v in use: %v", op, err)
		}
	}
	busy(rpc.OpCtxClose, q.ctx)
	busy(rpc.OpDeallocPD, q.pd)
	busy(rpc.OpDestroyChan, q.chanl)
	busy(rpc.OpDestroyCQ, q.cq)
	busy(rpc.OpDelMem, m.Mem)
	ts.f.busyQP.Store(true)
	busy(rpc.OpDestroyQP, q.qp)
	ts.f.busyQP.Store(false)
	q.roundTrip(t, 1) // it still works
	for _, x := range []struct {
		op rpc.Op
		h  uint32
	}{{rpc.OpDestroyQP, q.qp}, {rpc.OpDestroyCQ, q.cq}, {rpc.OpDestroyChan, q.chanl},
		{rpc.OpDeregMR, mr.MR}, {rpc.OpDelMem, m.Mem}, {rpc.OpDeallocPD, q.pd}, {rpc.OpCtxClose, q.ctx}} {
		c.do(x.op, &rpc.HandleRequest{Handle: x.h}, nil)
		if _, err := c.try(x.op, &rpc.HandleRequest{Handle: x.h}, nil); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%v a second time: %v", x.op, err)
		}
	}
	row := ts.srv.Clients()[0]
	if row.Rings != int64(osmem.PageSize) || row.MemSize != 0 ||
		row.QPs+row.CQs+row.MRs+row.PDs+row.Mems != 0 {
		t.Errorf("left: %+v", row)
	}
}

// A destroyed QP's memory is given back even if the client keeps the descriptor.
func TestDestroyedRingIsEmptied(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	q.roundTrip(t, 1)
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	if !bytes.Equal(q.mem, make([]byte, len(q.mem))) {
		t.Error("pages of the ring are still there")
	}
}

// Another session's handles name nothing.
func TestSessionsAreApart(t *testing.T) {
	ts := newServer(t)
	a, b := ts.client(), ts.client()
	qa := a.newQP()
	if _, err := b.try(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: qa.qp}, nil); !errors.Is(err,
		syscall.ENOENT) {
		t.Errorf("other session's QP: %v", err)
	}
	qb := b.newQP()
	var id rpc.CMCreateIDReply
	var ch rpc.CMCreateChanReply
	b.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
	b.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP}, &id)
	p := rpc.ConnParam{QPN: qa.qpn}
	if _, err := b.try(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: id.ID, PD: qb.pd, Param: p},
		nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("connect of the other session's QP: %v", err)
	}
	// Nor does a QP of one device go with another's CQs.
	var ctx rpc.CtxOpenReply
	a.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{Device: 1}, &ctx)
	var pd rpc.AllocPDReply
	a.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
	var own rpc.CreateCQReply
	a.do(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx.Ctx, CQE: 1}, &own)
	for _, cqs := range [][2]uint32{{qa.cq, own.CQ}, {own.CQ, qa.cq}} {
		if _, err := a.try(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: pd.PD, SendCQ: cqs[0],
			RecvCQ: cqs[1]}, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("CQ of another context: %v", err)
		}
	}
	if _, err := a.try(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx.Ctx, CQE: 1, Chan: qa.chanl},
		nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("channel of another context: %v", err)
	}
}

func TestAsyncEvents(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	var queue *AsyncQueue
	ts.f.mu.Lock()
	for h := range ts.f.sessions {
		queue = h.queue
	}
	ts.f.mu.Unlock()
	get := func(e *rpc.AsyncEvent) error {
		_, err := c.try(rpc.OpGetAsyncEvent, &rpc.HandleRequest{Handle: q.ctx}, e)
		return err
	}
	var e rpc.AsyncEvent
	if err := get(&e); !errors.Is(err, syscall.EAGAIN) || tokenThere(q.async) {
		t.Errorf("no event: %v", err)
	}
	queue.Push(rpc.AsyncEvent{Type: 1, Kind: rpc.ObjQP, Handle: q.qp, Cause: 5})
	queue.Push(rpc.AsyncEvent{Type: 0, Kind: rpc.ObjCQ, Handle: q.cq})
	queue.Push(rpc.AsyncEvent{Type: 2, Kind: rpc.ObjQP, Handle: q.qp})
	readToken(t, q.async)
	if err := get(&e); err != nil || e != (rpc.AsyncEvent{Type: 1, Kind: rpc.ObjQP, Handle: q.qp,
		Cause: 5}) {
		t.Errorf("%v, %+v", err, e)
	}
	var d rpc.DestroyReply
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, &d)
	if d != (rpc.DestroyReply{Reported: 1, Tokens: 1}) {
		t.Errorf("destroyed QP: %+v", d)
	}
	if err := get(&e); err != nil || e.Kind != rpc.ObjCQ {
		t.Errorf("the CQ's event: %v, %+v", err, e)
	}
	n := 2 * ts.srv.limits.QPs // a network is lost, and each QP has two
	for i := range n {
		queue.Push(rpc.AsyncEvent{Type: 1, Kind: rpc.ObjQP, Handle: uint32(1 + i/2)})
	}
	queue.mu.Lock()
	defer queue.mu.Unlock()
	if len(queue.q)-queue.gone != n {
		t.Errorf("%d events of %d wait", len(queue.q)-queue.gone, n)
	}
}

func TestCM(t *testing.T) {
	ts := newServer(t, "cm-events=2", "cm-ids=5")
	c := ts.client()
	q := c.newQP()
	var ch rpc.CMCreateChanReply
	pipe := c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)[0]
	var id rpc.CMCreateIDReply
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP, UID: 77}, &id)
	ts.f.mu.Lock()
	f := ts.f.ids[0]
	ts.f.mu.Unlock()
	addr := netip.MustParseAddrPort("10.77.0.2:7174")
	last := func(want string) {
		t.Helper()
		if got := f.last.Load(); got != want {
			t.Errorf("handler got %q, want %q", got, want)
		}
	}
	c.do(rpc.OpCMBind, &rpc.CMBindRequest{ID: id.ID, Addr: rpc.MakeSockAddr(addr)}, nil)
	last("bind 10.77.0.2:7174")
	c.do(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: id.ID, TimeoutMS: 5,
		Dst: rpc.MakeSockAddr(addr)}, nil)
	last("resolve invalid AddrPort 10.77.0.2:7174 5")
	readToken(t, pipe)
	var e rpc.CMEvent
	c.do(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != rpc.EvAddrResolved || e.ID != id.ID || e.UID != 77 {
		t.Errorf("%+v", e)
	}
	p := rpc.ConnParam{QPN: q.qpn}
	p.SetPrivateData([]byte("hi"))
	c.do(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: id.ID, PD: q.pd, Param: p}, nil)
	last(`connect 1 "hi"`)
	var pd rpc.AllocPDReply
	c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: q.ctx}, &pd)
	if _, err := c.try(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: id.ID, PD: pd.PD, Param: p},
		nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("QP of another PD: %v", err)
	}
	p.PrivateLen = rpc.MaxPrivate + 1
	if _, err := c.try(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: id.ID, PD: q.pd, Param: p},
		nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("private data of %d octets: %v", p.PrivateLen, err)
	}
	for _, x := range []struct {
		op  rpc.Op
		req rpc.Message
	}{
		{rpc.OpCMReject, &rpc.CMRejectRequest{ID: id.ID, PrivateLen: rpc.MaxPrivate + 1}},
		{rpc.OpCMSetOption, &rpc.CMSetOptionRequest{ID: id.ID, Len: rpc.MaxOption + 1}},
		{rpc.OpCMBind, &rpc.CMBindRequest{ID: id.ID, Addr: rpc.SockAddr{Family: 99}}},
		{rpc.OpCMBind, &rpc.CMBindRequest{ID: id.ID}},
	} {
		if _, err := c.try(x.op, x.req, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", x.op, err)
		}
	}
	c.do(rpc.OpCMDisconnect, &rpc.HandleRequest{Handle: id.ID}, nil)
	last("disconnect")

	// Requests: a child does not exist for the client before it has been told of it.
	c.do(rpc.OpCMListen, &rpc.CMListenRequest{ID: id.ID, Backlog: 3}, nil)
	var kids []*fakeID
	request := func() error {
		return f.id.PushRequest(rpc.CMEvent{Src: rpc.MakeSockAddr(addr)}, func(child *CMID) IDHandler {
			k := &fakeID{h: f.h, id: child}
			kids = append(kids, k)
			return k
		})
	}
	if err := request(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.try(rpc.OpCMQuery, &rpc.HandleRequest{Handle: kids[0].id.Handle()},
		nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a child was used that the client was not told of: %v", err)
	}
	readToken(t, pipe)
	c.do(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != rpc.EvConnectRequest || e.ID != id.ID || e.Child != kids[0].id.Handle() ||
		e.Src.AddrPort() != addr {
		t.Errorf("%+v", e)
	}
	c.do(rpc.OpCMAccept, &rpc.CMConnectRequest{ID: e.Child, PD: q.pd, UID: 99, Param: rpc.ConnParam{
		QPN: q.qpn}}, nil)
	if kids[0].last.Load() != "accept 1" {
		t.Errorf("child got %q", kids[0].last.Load())
	}
	kids[0].id.Push(rpc.CMEvent{Type: rpc.EvEstablished})
	c.do(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != rpc.EvEstablished || e.UID != 99 {
		t.Errorf("%+v", e)
	}
	readToken(t, pipe)

	// 1024 queued events (here 2): further requests are refused, and so is what is over cm-ids.
	if err := errors.Join(request(), request()); err != nil {
		t.Fatal(err)
	}
	if err := request(); !errors.Is(err, syscall.ENOMEM) || !kids[3].closed.Load() {
		t.Errorf("third request on a queue of 2: %v", err)
	}
	if _, err := c.try(rpc.OpCMDestroyChan, &rpc.HandleRequest{Handle: ch.Chan}, nil); !errors.Is(err,
		syscall.EBUSY) {
		t.Errorf("channel with ids: %v", err)
	}
	var d rpc.CMDestroyIDReply
	c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: id.ID}, &d)
	if d != (rpc.CMDestroyIDReply{Reported: 2, Tokens: 2}) || !kids[1].closed.Load() ||
		!kids[2].closed.Load() || kids[0].closed.Load() {
		t.Errorf("%+v, closed %v %v %v", d, kids[0].closed.Load(), kids[1].closed.Load(),
			kids[2].closed.Load())
	}
	if err := request(); err == nil {
		t.Error("a destroyed listener took a request")
	}
	if err := f.id.Push(rpc.CMEvent{}); err == nil {
		t.Error("a destroyed id took an event")
	}
	for range 2 {
		readToken(t, pipe)
	}
	if tokenThere(pipe) {
		t.Error("a token is left without an event")
	}
	c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: kids[0].id.Handle()}, &d)
	c.do(rpc.OpCMDestroyChan, &rpc.HandleRequest{Handle: ch.Chan}, nil)
	if n := ts.srv.Clients()[0].IDs; n != 0 {
		t.Errorf("%d ids are left", n)
	}
	if _, err := c.try(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP},
		nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("id on a destroyed channel: %v", err)
	}
}

func TestListPages(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	var all []map[string]any
	long := 0
	var rep rpc.ListReply
	for cur, pages := uint64(0), 0; cur != 0 || pages == 0; pages++ {
		rep = rpc.ListReply{}
		c.do(rpc.OpList, &rpc.ListRequest{Kind: rpc.ListQP, Cursor: cur}, &rep)
		for _, line := range bytes.Split(bytes.TrimSuffix(rep.Data[:rep.Len], []byte("\n")),
			[]byte("\n")) {
			var row map[string]any
			if err := json.Unmarshal(line, &row); err != nil {
				t.Fatalf("row %q: %v", line, err)
			}
			if row["error"] != nil {
				long++
			} else {
				all = append(all, row)
			}
		}
		if cur = rep.Next; pages > 100 {
			t.Fatal("no end")
		}
	}
	if len(all) != 500 || long != 1 || all[499]["i"] != 499.0 || all[0]["all"] != true {
		t.Errorf("%d rows, %d too long", len(all), long)
	}
	if _, err := c.try(rpc.OpList, &rpc.ListRequest{Kind: rpc.ListQP, Cursor: 3}, nil); !errors.Is(err,
		syscall.EINVAL) {
		t.Errorf("cursor of nothing: %v", err)
	}
	if _, err := c.try(rpc.OpList, &rpc.ListRequest{Kind: 99}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("unknown kind: %v", err)
	}
	c.do(rpc.OpStat, &rpc.ListRequest{}, &rep)
	if rep.Len != 0 || rep.Next != 0 {
		t.Errorf("no rows: %d octets, next %d", rep.Len, rep.Next)
	}
	other := ts.client()
	rep = rpc.ListReply{}
	other.do(rpc.OpList, &rpc.ListRequest{Kind: rpc.ListClient}, &rep)
	if n := strings.Count(string(rep.Data[:rep.Len]), "\n"); n != 2 ||
		!strings.Contains(string(rep.Data[:]), `"comm":"test"`) {
		t.Errorf("clients: %s", rep.Data[:rep.Len])
	}
	// Others see their own only.
	rows := slices.Collect(ts.srv.clients(&Session{id: ts.srv.Clients()[1].Session}, false))
	if len(rows) != 1 || !rows[0].(ClientRow).Me {
		t.Errorf("rows of one: %v", rows)
	}
	// A list that is not read to its end is given up by the next, and with the session.
	given := ts.f.listed.Load()
	for i := range int32(3) {
		if n := ts.f.listed.Load() - given; n != max(i-1, 0) {
			t.Errorf("%d lists have ended when %d have begun", n, i)
		}
		c.do(rpc.OpList, &rpc.ListRequest{Kind: rpc.ListQP}, nil)
	}
	c.close()
	ts.want("all lists have ended", func() bool { return ts.f.listed.Load()-given == 3 })
}

func TestSocketFile(t *testing.T) {
	proctest.NoLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "sock")
	cfg := Config{NewSession: (&fakeRNIC{}).newSession}
	stale := func() { // what a killed daemon leaves
		fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	stale()
	s, err := Listen(path, cfg)
	if err != nil {
		t.Fatal("stale socket:", err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, err := Listen(path, cfg); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second daemon: %v", err)
	}
	if _, err := Listen(filepath.Join(dir, "none", "sock"), cfg); !errors.Is(err, syscall.ENOENT) ||
		!strings.Contains(err.Error(), "another path") {
		t.Errorf("no directory for it: %v", err)
	}
	rawConnect(t, path).hello() // the first is not disturbed
	s.Close()
	if es, _ := os.ReadDir(dir); len(es) != 0 {
		t.Errorf("left in the directory: %v", es)
	}

	// Somebody listens without our lock.
	fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}),
		unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, cfg); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("somebody listens: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error("its socket was removed")
	}
	os.Remove(path)

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, cfg); err == nil {
		t.Error("a file was replaced")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("a file was destroyed")
	}
	os.Remove(path)

	cfg.Mode = 0o660
	cfg.Group = "65534"
	if os.Geteuid() != 0 {
		cfg.Group = ""
	}
	if s, err = Listen(path, cfg); err != nil {
		t.Fatal(err)
	}
	var ust unix.Stat_t
	unix.Lstat(path, &ust)
	if ust.Mode&0o777 != 0o660 || cfg.Group != "" && ust.Gid != 65534 {
		t.Errorf("mode %o, group %d", ust.Mode, ust.Gid)
	}
	s.Close()
	cfg.Group = "no-such-group-here"
	if _, err := Listen(path, cfg); err == nil {
		t.Error("unknown group")
	}
	if es, _ := os.ReadDir(dir); len(es) != 0 {
		t.Errorf("left in the directory: %v", es)
	}
}

func TestServerCloseEndsSessions(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	ts.srv.Close()
	if _, _, _, ended := c.recv(); !ended {
		t.Error("the socket is open")
	}
	var b [1]byte
	for _, fd := range []int{q.pipe, q.async} {
		if n, err := unix.Read(fd, b[:]); n != 0 || err != nil {
			t.Errorf("event pipe gives %d, %v; want the end", n, err)
		}
	}
	if cs := ts.f.causes(); len(cs) != 1 || !errors.Is(cs[0], ErrServerClosed) {
		t.Errorf("causes %v", cs)
	}
}

func TestSessionQuotas(t *testing.T) {
	ts := newServer(t, "sessions-per-uid=2")
	ts.strangers.Store(true)
	a := ts.client()
	ts.client()
	over := rawConnect(t, ts.path)
	if _, err := over.try(rpc.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("third session of two: %v", err)
	}
	a.close()
	ts.want("a place is free again", func() bool { return ts.srv.Stats().Sessions == 1 })
	ts.client()

	ts = newServer(t, "sessions=1")
	ts.strangers.Store(true)
	ts.client()
	over = rawConnect(t, ts.path)
	if _, err := over.try(rpc.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("second session of one: %v", err)
	}
	// Those that wait to be refused are few, and not for ever.
	refusals := func() int { ts.srv.mu.Lock(); defer ts.srv.mu.Unlock(); return len(ts.srv.refusals) }
	ts.want("the one refused is gone", func() bool { return refusals() == 0 })
	var wait []*rawClient
	for range maxRefusals + 1 {
		wait = append(wait, rawConnect(t, ts.path))
	}
	if _, _, _, ended := wait[maxRefusals].recv(); !ended {
		t.Error("one too many waits")
	}
	ts.want("all timers are set", func() bool {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		return len(ts.timer) == 2+maxRefusals
	})
	if n := ts.expire(5 * time.Second); n != maxRefusals {
		t.Errorf("%d timers ran", n)
	}
	if _, _, _, ended := wait[0].recv(); !ended {
		t.Error("a silent client over the limit is kept")
	}
}

func TestObjectQuotas(t *testing.T) {
	for _, tt := range []struct {
		limit string
		op    rpc.Op
		req   func(c *rawClient, q *rawQP) rpc.Message
		fd    bool
	}{
		{"contexts=1", rpc.OpCtxOpen,
			func(*rawClient, *rawQP) rpc.Message { return &rpc.CtxOpenRequest{} }, false},
		{"pds=1", rpc.OpAllocPD, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.AllocPDRequest{Ctx: q.ctx}
		}, false},
		{"channels=1", rpc.OpCreateChan,
			func(_ *rawClient, q *rawQP) rpc.Message { return &rpc.CreateChanRequest{Ctx: q.ctx} }, false},
		{"cqs=1", rpc.OpCreateCQ, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.CreateCQRequest{Ctx: q.ctx, CQE: 1}
		}, false},
		{"qps=1", rpc.OpCreateQP, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq}
		}, false},
		{"queue-bytes=1000", rpc.OpCreateQP, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq}
		}, false},
		{"ring-bytes=100000", rpc.OpCreateCQ, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.CreateCQRequest{Ctx: q.ctx, CQE: 4096}
		}, false},
		{"mappings=4", rpc.OpCreateCQ, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.CreateCQRequest{Ctx: q.ctx, CQE: 1}
		}, false},
		{"pipes=2", rpc.OpCreateChan,
			func(_ *rawClient, q *rawQP) rpc.Message { return &rpc.CreateChanRequest{Ctx: q.ctx} }, false},
		{"pipes=2", rpc.OpCMCreateChan, func(*rawClient, *rawQP) rpc.Message { return &rpc.Empty{} },
			false},
		{"mappings=4", rpc.OpAddMem, func(*rawClient, *rawQP) rpc.Message { return &rpc.AddMemRequest{} },
			true},
		{"mem-bytes=8191", rpc.OpAddMem,
			func(*rawClient, *rawQP) rpc.Message { return &rpc.AddMemRequest{} }, true},
		{"cm-channels=1", rpc.OpCMCreateChan, func(c *rawClient, _ *rawQP) rpc.Message {
			c.do(rpc.OpCMCreateChan, &rpc.Empty{}, nil)
			return &rpc.Empty{}
		}, false},
		{"cm-ids=1", rpc.OpCMCreateID, func(c *rawClient, _ *rawQP) rpc.Message {
			var r rpc.CMCreateChanReply
			c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &r)
			c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: r.Chan, PS: rpc.PSTCP}, nil)
			return &rpc.CMCreateIDRequest{Chan: r.Chan, PS: rpc.PSTCP}
		}, false},
		{"ids=1", rpc.OpAllocPD, func(_ *rawClient, q *rawQP) rpc.Message {
			return &rpc.AllocPDRequest{Ctx: q.ctx}
		}, false},
		{"ids=2", rpc.OpCMCreateID, func(c *rawClient, q *rawQP) rpc.Message {
			c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: q.ctx}, nil)
			var r rpc.CMCreateChanReply
			osmem.CloseFDs(c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &r))
			return &rpc.CMCreateIDRequest{Chan: r.Chan, PS: rpc.PSTCP}
		}, false},
		{"mems=1", rpc.OpAddMem, func(c *rawClient, _ *rawQP) rpc.Message {
			c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, nil, c.memfd(4096, unix.F_SEAL_SHRINK))
			return &rpc.AddMemRequest{}
		}, true},
		{"mrs=1", rpc.OpRegMR, func(c *rawClient, q *rawQP) rpc.Message {
			var r rpc.AddMemReply
			c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &r, c.memfd(4096, unix.F_SEAL_SHRINK))
			req := &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeShared, Mem: r.Mem, Length: 4096}
			c.do(rpc.OpRegMR, req, nil)
			return req
		}, false},
	} {
		t.Run(tt.limit, func(t *testing.T) {
			ts := newServer(t, tt.limit)
			c := ts.client()
			req := tt.req(c, c.newQP())
			var fds []int
			if tt.fd {
				fds = append(fds, c.memfd(8192, unix.F_SEAL_SHRINK))
			}
			if got, err := c.try(tt.op, req, nil, fds...); !errors.Is(err, syscall.ENOMEM) || len(got) != 0 {
				t.Errorf("%v over the limit: %v, %d descriptors", tt.op, err, len(got))
			}
		})
	}
	ids := newServer(t, "ids=1") // they come back, too
	for range 2 {
		var chn rpc.CMCreateChanReply
		var id rpc.CMCreateIDReply
		c := ids.client()
		osmem.CloseFDs(c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &chn))
		req := &rpc.CMCreateIDRequest{Chan: chn.Chan, PS: rpc.PSTCP}
		for range 2 {
			c.do(rpc.OpCMCreateID, req, &id)
			if _, err := c.try(rpc.OpCMCreateID, req, nil); !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("a second id where there is one: %v", err)
			}
			c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: id.ID}, nil)
		}
		c.do(rpc.OpCMCreateID, req, &id)
		c.close()
		ids.want("the session's ids", func() bool { return ids.srv.ids.count() == 0 })
	}
	pipes := newServer(t, "pipes=1") // they come back with their channel, and with the session
	for range 2 {
		var r rpc.CMCreateChanReply
		c := pipes.client()
		for range 2 {
			osmem.CloseFDs(c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &r))
			c.do(rpc.OpCMDestroyChan, &rpc.HandleRequest{Handle: r.Chan}, nil)
		}
		osmem.CloseFDs(c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &r))
		c.close()
		pipes.want("the session's pipes", func() bool { return pipes.srv.pipes.count() == 0 })
	}
	ts := newServer(t, "qps=5", "depth=64", "cq-depth=128", "pds=3")
	c := ts.client()
	var r rpc.QueryDeviceReply
	c.do(rpc.OpQueryDevice, &rpc.QueryDeviceRequest{}, &r)
	if r.MaxQP != 5 || r.MaxSGE != abi.MaxSGE || r.MaxPD != 3 || r.Name.String() != "fake0" {
		t.Errorf("the limits are not advertised: %+v", r)
	}
	q := c.newQP()
	if _, err := c.try(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: q.ctx, CQE: 129}, nil); !errors.Is(
		err, syscall.EINVAL) {
		t.Errorf("CQ deeper than 128: %v", err)
	}
	if _, err := c.try(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq,
		Caps: rpc.QPCaps{MaxSendWR: 65}}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("QP deeper than 64: %v", err)
	}
}

// Every call of the table but HELLO, which comes before them, has a handler, and no other.
func TestEveryCallHasAHandler(t *testing.T) {
	n := 1
	for _, o := range rpc.Ops() {
		if operations[o] != nil && cmOperations[o] != nil {
			t.Errorf("%v has two handlers", o)
		}
		if operations[o] != nil || cmOperations[o] != nil {
			n++
		} else if o != rpc.OpHello {
			t.Errorf("%v has no handler", o)
		}
	}
	if len(operations)+len(cmOperations)+1 != n {
		t.Errorf("%d handlers for %d calls", len(operations)+len(cmOperations), n)
	}
}
