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
)

func TestServerRoundTrip(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	for i := range uint64(100) {
		q.roundTrip(t, i)
	}
	var r abi.QueryQPReply
	c.do(abi.OpQueryQP, &abi.HandleRequest{Handle: q.qp}, &r)
	if r.State != abi.StateRTS || r.QPN != q.qpn {
		t.Errorf("%+v", r)
	}
	c.do(abi.OpModifyQP, &abi.ModifyQPRequest{QP: q.qp}, nil)
	c.do(abi.OpModifyQP, &abi.ModifyQPRequest{QP: q.qp, Mask: abi.ModifyQPState, State: abi.StateErr},
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
	var rep abi.HelloReply
	fds, err := c.try(abi.OpHello, req, &rep)
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
	c.do(abi.OpHello, req, &rep)
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
	msg := func(h abi.Header, body ...byte) (int32, bool) {
		t.Helper()
		h.Len = uint32(len(body))
		if err := c.sendRaw(append(abi.AppendMessage(nil, h, &abi.Empty{})[:12],
			append([]byte{byte(len(body)), byte(len(body) >> 8), 0, 0}, body...)...)); err != nil {
			t.Fatal(err)
		}
		r, _, _, ended := c.recv()
		return r.Status, ended
	}
	for _, tt := range []struct {
		name string
		h    abi.Header
		body []byte
		want syscall.Errno
	}{
		{"unknown op", abi.Header{Op: 999}, nil, syscall.EOPNOTSUPP},
		{"call that is gone", abi.Header{Op: 52}, nil, syscall.EOPNOTSUPP},
		{"another one", abi.Header{Op: 130}, nil, syscall.EOPNOTSUPP},
		{"unknown header flag", abi.Header{Op: abi.OpCtxOpen, Flags: 1}, nil, syscall.EINVAL},
		{"status in a request", abi.Header{Op: abi.OpCtxOpen, Status: -1}, nil, syscall.EINVAL},
		{"shorter: zero filled", abi.Header{Op: abi.OpCtxOpen}, nil, 0},
		{"longer, zero", abi.Header{Op: abi.OpCtxOpen}, make([]byte, 100), 0},
		{"longer, not zero", abi.Header{Op: abi.OpCtxOpen}, append(make([]byte, 99), 1), syscall.E2BIG},
		{"padding not zero", abi.Header{Op: abi.OpCtxOpen}, []byte{0, 0, 0, 0, 1, 0, 0, 0},
			syscall.EINVAL},
		{"nothing there", abi.Header{Op: abi.OpDestroyQP}, []byte{1, 0, 0, 0}, syscall.ENOENT},
		{"error without errno", abi.Header{Op: abi.OpQueryGID}, nil, syscall.EIO},
		{"no such device", abi.Header{Op: abi.OpQueryDevice}, []byte{9, 0, 0, 0}, syscall.ENODEV},
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
	var m abi.AddMemReply
	c.do(abi.OpAddMem, &abi.AddMemRequest{}, &m, mem)
	var mr abi.RegMRReply
	c.do(abi.OpRegMR, &abi.RegMRRequest{PD: q.pd, Mode: abi.ModeShared, Mem: m.Mem, Length: 8192}, &mr)
	busy := func(op abi.Op, h uint32) {
		t.Helper()
		if _, err := c.try(op, &abi.HandleRequest{Handle: h}, nil); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%v in use: %v", op, err)
		}
	}
	busy(abi.OpCtxClose, q.ctx)
	busy(abi.OpDeallocPD, q.pd)
	busy(abi.OpDestroyChan, q.chanl)
	busy(abi.OpDestroyCQ, q.cq)
	busy(abi.OpDelMem, m.Mem)
	ts.f.busyQP.Store(true)
	busy(abi.OpDestroyQP, q.qp)
	ts.f.busyQP.Store(false)
	q.roundTrip(t, 1) // it still works
	for _, x := range []struct {
		op abi.Op
		h  uint32
	}{{abi.OpDestroyQP, q.qp}, {abi.OpDestroyCQ, q.cq}, {abi.OpDestroyChan, q.chanl},
		{abi.OpDeregMR, mr.MR}, {abi.OpDelMem, m.Mem}, {abi.OpDeallocPD, q.pd}, {abi.OpCtxClose, q.ctx}} {
		c.do(x.op, &abi.HandleRequest{Handle: x.h}, nil)
		if _, err := c.try(x.op, &abi.HandleRequest{Handle: x.h}, nil); !errors.Is(err, syscall.ENOENT) {
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
	c.do(abi.OpDestroyQP, &abi.HandleRequest{Handle: q.qp}, nil)
	if !bytes.Equal(q.mem, make([]byte, len(q.mem))) {
		t.Error("pages of the ring are still there")
	}
}

// Another session's handles name nothing.
func TestSessionsAreApart(t *testing.T) {
	ts := newServer(t)
	a, b := ts.client(), ts.client()
	qa := a.newQP()
	if _, err := b.try(abi.OpDestroyQP, &abi.HandleRequest{Handle: qa.qp}, nil); !errors.Is(err,
		syscall.ENOENT) {
		t.Errorf("other session's QP: %v", err)
	}
	qb := b.newQP()
	var id abi.CMCreateIDReply
	var ch abi.CMCreateChanReply
	b.do(abi.OpCMCreateChan, &abi.Empty{}, &ch)
	b.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: abi.PSTCP}, &id)
	p := abi.ConnParam{QPN: qa.qpn}
	if _, err := b.try(abi.OpCMConnect, &abi.CMConnectRequest{ID: id.ID, PD: qb.pd, Param: p},
		nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("connect of the other session's QP: %v", err)
	}
	// Nor does a QP of one device go with another's CQs.
	var ctx abi.CtxOpenReply
	a.do(abi.OpCtxOpen, &abi.CtxOpenRequest{Device: 1}, &ctx)
	var pd abi.AllocPDReply
	a.do(abi.OpAllocPD, &abi.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
	var own abi.CreateCQReply
	a.do(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: ctx.Ctx, CQE: 1}, &own)
	for _, cqs := range [][2]uint32{{qa.cq, own.CQ}, {own.CQ, qa.cq}} {
		if _, err := a.try(abi.OpCreateQP, &abi.CreateQPRequest{PD: pd.PD, SendCQ: cqs[0],
			RecvCQ: cqs[1]}, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("CQ of another context: %v", err)
		}
	}
	if _, err := a.try(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: ctx.Ctx, CQE: 1, Chan: qa.chanl},
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
	get := func(e *abi.AsyncEvent) error {
		_, err := c.try(abi.OpGetAsyncEvent, &abi.HandleRequest{Handle: q.ctx}, e)
		return err
	}
	var e abi.AsyncEvent
	if err := get(&e); !errors.Is(err, syscall.EAGAIN) || tokenThere(q.async) {
		t.Errorf("no event: %v", err)
	}
	queue.Push(abi.AsyncEvent{Type: 1, Kind: abi.ObjQP, Handle: q.qp, Cause: 5})
	queue.Push(abi.AsyncEvent{Type: 0, Kind: abi.ObjCQ, Handle: q.cq})
	queue.Push(abi.AsyncEvent{Type: 2, Kind: abi.ObjQP, Handle: q.qp})
	readToken(t, q.async)
	if err := get(&e); err != nil || e != (abi.AsyncEvent{Type: 1, Kind: abi.ObjQP, Handle: q.qp,
		Cause: 5}) {
		t.Errorf("%v, %+v", err, e)
	}
	var d abi.DestroyReply
	c.do(abi.OpDestroyQP, &abi.HandleRequest{Handle: q.qp}, &d)
	if d != (abi.DestroyReply{Reported: 1, Tokens: 1}) {
		t.Errorf("destroyed QP: %+v", d)
	}
	if err := get(&e); err != nil || e.Kind != abi.ObjCQ {
		t.Errorf("the CQ's event: %v, %+v", err, e)
	}
	n := 2 * ts.srv.limits.QPs // a network is lost, and each QP has two
	for i := range n {
		queue.Push(abi.AsyncEvent{Type: 1, Kind: abi.ObjQP, Handle: uint32(1 + i/2)})
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
	var ch abi.CMCreateChanReply
	pipe := c.do(abi.OpCMCreateChan, &abi.Empty{}, &ch)[0]
	var id abi.CMCreateIDReply
	c.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: abi.PSTCP, UID: 77}, &id)
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
	c.do(abi.OpCMBind, &abi.CMBindRequest{ID: id.ID, Addr: abi.MakeSockAddr(addr)}, nil)
	last("bind 10.77.0.2:7174")
	c.do(abi.OpCMResolveAddr, &abi.CMResolveAddrRequest{ID: id.ID, TimeoutMS: 5,
		Dst: abi.MakeSockAddr(addr)}, nil)
	last("resolve invalid AddrPort 10.77.0.2:7174 5")
	readToken(t, pipe)
	var e abi.CMEvent
	c.do(abi.OpCMGetEvent, &abi.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != abi.EvAddrResolved || e.ID != id.ID || e.UID != 77 {
		t.Errorf("%+v", e)
	}
	p := abi.ConnParam{QPN: q.qpn}
	p.SetPrivateData([]byte("hi"))
	c.do(abi.OpCMConnect, &abi.CMConnectRequest{ID: id.ID, PD: q.pd, Param: p}, nil)
	last(`connect 1 "hi"`)
	var pd abi.AllocPDReply
	c.do(abi.OpAllocPD, &abi.AllocPDRequest{Ctx: q.ctx}, &pd)
	if _, err := c.try(abi.OpCMConnect, &abi.CMConnectRequest{ID: id.ID, PD: pd.PD, Param: p},
		nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("QP of another PD: %v", err)
	}
	p.PrivateLen = abi.MaxPrivate + 1
	if _, err := c.try(abi.OpCMConnect, &abi.CMConnectRequest{ID: id.ID, PD: q.pd, Param: p},
		nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("private data of %d octets: %v", p.PrivateLen, err)
	}
	for _, x := range []struct {
		op  abi.Op
		req abi.Message
	}{
		{abi.OpCMReject, &abi.CMRejectRequest{ID: id.ID, PrivateLen: abi.MaxPrivate + 1}},
		{abi.OpCMSetOption, &abi.CMSetOptionRequest{ID: id.ID, Len: abi.MaxOption + 1}},
		{abi.OpCMBind, &abi.CMBindRequest{ID: id.ID, Addr: abi.SockAddr{Family: 99}}},
		{abi.OpCMBind, &abi.CMBindRequest{ID: id.ID}},
	} {
		if _, err := c.try(x.op, x.req, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", x.op, err)
		}
	}
	c.do(abi.OpCMDisconnect, &abi.HandleRequest{Handle: id.ID}, nil)
	last("disconnect")

	// Requests: a child does not exist for the client before it has been told of it.
	c.do(abi.OpCMListen, &abi.CMListenRequest{ID: id.ID, Backlog: 3}, nil)
	var kids []*fakeID
	request := func() error {
		return f.id.PushRequest(abi.CMEvent{Src: abi.MakeSockAddr(addr)}, func(child *CMID) IDHandler {
			k := &fakeID{h: f.h, id: child}
			kids = append(kids, k)
			return k
		})
	}
	if err := request(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.try(abi.OpCMQuery, &abi.HandleRequest{Handle: kids[0].id.Handle()},
		nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a child was used that the client was not told of: %v", err)
	}
	readToken(t, pipe)
	c.do(abi.OpCMGetEvent, &abi.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != abi.EvConnectRequest || e.ID != id.ID || e.Child != kids[0].id.Handle() ||
		e.Src.AddrPort() != addr {
		t.Errorf("%+v", e)
	}
	c.do(abi.OpCMAccept, &abi.CMConnectRequest{ID: e.Child, PD: q.pd, UID: 99, Param: abi.ConnParam{
		QPN: q.qpn}}, nil)
	if kids[0].last.Load() != "accept 1" {
		t.Errorf("child got %q", kids[0].last.Load())
	}
	kids[0].id.Push(abi.CMEvent{Type: abi.EvEstablished})
	c.do(abi.OpCMGetEvent, &abi.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != abi.EvEstablished || e.UID != 99 {
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
	if _, err := c.try(abi.OpCMDestroyChan, &abi.HandleRequest{Handle: ch.Chan}, nil); !errors.Is(err,
		syscall.EBUSY) {
		t.Errorf("channel with ids: %v", err)
	}
	var d abi.CMDestroyIDReply
	c.do(abi.OpCMDestroyID, &abi.HandleRequest{Handle: id.ID}, &d)
	if d != (abi.CMDestroyIDReply{Reported: 2, Tokens: 2}) || !kids[1].closed.Load() ||
		!kids[2].closed.Load() || kids[0].closed.Load() {
		t.Errorf("%+v, closed %v %v %v", d, kids[0].closed.Load(), kids[1].closed.Load(),
			kids[2].closed.Load())
	}
	if err := request(); err == nil {
		t.Error("a destroyed listener took a request")
	}
	if err := f.id.Push(abi.CMEvent{}); err == nil {
		t.Error("a destroyed id took an event")
	}
	for range 2 {
		readToken(t, pipe)
	}
	if tokenThere(pipe) {
		t.Error("a token is left without an event")
	}
	c.do(abi.OpCMDestroyID, &abi.HandleRequest{Handle: kids[0].id.Handle()}, &d)
	c.do(abi.OpCMDestroyChan, &abi.HandleRequest{Handle: ch.Chan}, nil)
	if n := ts.srv.Clients()[0].IDs; n != 0 {
		t.Errorf("%d ids are left", n)
	}
	if _, err := c.try(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: abi.PSTCP},
		nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("id on a destroyed channel: %v", err)
	}
}

func TestListPages(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	var all []map[string]any
	long := 0
	var rep abi.ListReply
	for cur, pages := uint64(0), 0; cur != 0 || pages == 0; pages++ {
		rep = abi.ListReply{}
		c.do(abi.OpList, &abi.ListRequest{Kind: abi.ListQP, Cursor: cur}, &rep)
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
	if _, err := c.try(abi.OpList, &abi.ListRequest{Kind: abi.ListQP, Cursor: 3}, nil); !errors.Is(err,
		syscall.EINVAL) {
		t.Errorf("cursor of nothing: %v", err)
	}
	if _, err := c.try(abi.OpList, &abi.ListRequest{Kind: 99}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("unknown kind: %v", err)
	}
	c.do(abi.OpStat, &abi.ListRequest{}, &rep)
	if rep.Len != 0 || rep.Next != 0 {
		t.Errorf("no rows: %d octets, next %d", rep.Len, rep.Next)
	}
	other := ts.client()
	rep = abi.ListReply{}
	other.do(abi.OpList, &abi.ListRequest{Kind: abi.ListClient}, &rep)
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
		c.do(abi.OpList, &abi.ListRequest{Kind: abi.ListQP}, nil)
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
	if _, err := over.try(abi.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("third session of two: %v", err)
	}
	a.close()
	ts.want("a place is free again", func() bool { return ts.srv.Stats().Sessions == 1 })
	ts.client()

	ts = newServer(t, "sessions=1")
	ts.strangers.Store(true)
	ts.client()
	over = rawConnect(t, ts.path)
	if _, err := over.try(abi.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
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
		op    abi.Op
		req   func(c *rawClient, q *rawQP) abi.Message
		fd    bool
	}{
		{"contexts=1", abi.OpCtxOpen,
			func(*rawClient, *rawQP) abi.Message { return &abi.CtxOpenRequest{} }, false},
		{"pds=1", abi.OpAllocPD, func(_ *rawClient, q *rawQP) abi.Message {
			return &abi.AllocPDRequest{Ctx: q.ctx}
		}, false},
		{"channels=1", abi.OpCreateChan,
			func(_ *rawClient, q *rawQP) abi.Message { return &abi.CreateChanRequest{Ctx: q.ctx} }, false},
		{"cqs=1", abi.OpCreateCQ, func(_ *rawClient, q *rawQP) abi.Message {
			return &abi.CreateCQRequest{Ctx: q.ctx, CQE: 1}
		}, false},
		{"qps=1", abi.OpCreateQP, func(_ *rawClient, q *rawQP) abi.Message {
			return &abi.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq}
		}, false},
		{"ring-bytes=100000", abi.OpCreateCQ, func(_ *rawClient, q *rawQP) abi.Message {
			return &abi.CreateCQRequest{Ctx: q.ctx, CQE: 4096}
		}, false},
		{"mappings=4", abi.OpCreateCQ, func(_ *rawClient, q *rawQP) abi.Message {
			return &abi.CreateCQRequest{Ctx: q.ctx, CQE: 1}
		}, false},
		{"pipes=2", abi.OpCreateChan,
			func(_ *rawClient, q *rawQP) abi.Message { return &abi.CreateChanRequest{Ctx: q.ctx} }, false},
		{"pipes=2", abi.OpCMCreateChan, func(*rawClient, *rawQP) abi.Message { return &abi.Empty{} },
			false},
		{"mappings=4", abi.OpAddMem, func(*rawClient, *rawQP) abi.Message { return &abi.AddMemRequest{} },
			true},
		{"mem-bytes=8191", abi.OpAddMem,
			func(*rawClient, *rawQP) abi.Message { return &abi.AddMemRequest{} }, true},
		{"cm-channels=1", abi.OpCMCreateChan, func(c *rawClient, _ *rawQP) abi.Message {
			c.do(abi.OpCMCreateChan, &abi.Empty{}, nil)
			return &abi.Empty{}
		}, false},
		{"cm-ids=1", abi.OpCMCreateID, func(c *rawClient, _ *rawQP) abi.Message {
			var r abi.CMCreateChanReply
			c.do(abi.OpCMCreateChan, &abi.Empty{}, &r)
			c.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: r.Chan, PS: abi.PSTCP}, nil)
			return &abi.CMCreateIDRequest{Chan: r.Chan, PS: abi.PSTCP}
		}, false},
		{"ids=1", abi.OpAllocPD, func(_ *rawClient, q *rawQP) abi.Message {
			return &abi.AllocPDRequest{Ctx: q.ctx}
		}, false},
		{"ids=2", abi.OpCMCreateID, func(c *rawClient, q *rawQP) abi.Message {
			c.do(abi.OpAllocPD, &abi.AllocPDRequest{Ctx: q.ctx}, nil)
			var r abi.CMCreateChanReply
			osmem.CloseFDs(c.do(abi.OpCMCreateChan, &abi.Empty{}, &r))
			return &abi.CMCreateIDRequest{Chan: r.Chan, PS: abi.PSTCP}
		}, false},
		{"mems=1", abi.OpAddMem, func(c *rawClient, _ *rawQP) abi.Message {
			c.do(abi.OpAddMem, &abi.AddMemRequest{}, nil, c.memfd(4096, unix.F_SEAL_SHRINK))
			return &abi.AddMemRequest{}
		}, true},
		{"mrs=1", abi.OpRegMR, func(c *rawClient, q *rawQP) abi.Message {
			var r abi.AddMemReply
			c.do(abi.OpAddMem, &abi.AddMemRequest{}, &r, c.memfd(4096, unix.F_SEAL_SHRINK))
			req := &abi.RegMRRequest{PD: q.pd, Mode: abi.ModeShared, Mem: r.Mem, Length: 4096}
			c.do(abi.OpRegMR, req, nil)
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
		var chn abi.CMCreateChanReply
		var id abi.CMCreateIDReply
		c := ids.client()
		osmem.CloseFDs(c.do(abi.OpCMCreateChan, &abi.Empty{}, &chn))
		req := &abi.CMCreateIDRequest{Chan: chn.Chan, PS: abi.PSTCP}
		for range 2 {
			c.do(abi.OpCMCreateID, req, &id)
			if _, err := c.try(abi.OpCMCreateID, req, nil); !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("a second id where there is one: %v", err)
			}
			c.do(abi.OpCMDestroyID, &abi.HandleRequest{Handle: id.ID}, nil)
		}
		c.do(abi.OpCMCreateID, req, &id)
		c.close()
		ids.want("the session's ids", func() bool { return ids.srv.ids.count() == 0 })
	}
	pipes := newServer(t, "pipes=1") // they come back with their channel, and with the session
	for range 2 {
		var r abi.CMCreateChanReply
		c := pipes.client()
		for range 2 {
			osmem.CloseFDs(c.do(abi.OpCMCreateChan, &abi.Empty{}, &r))
			c.do(abi.OpCMDestroyChan, &abi.HandleRequest{Handle: r.Chan}, nil)
		}
		osmem.CloseFDs(c.do(abi.OpCMCreateChan, &abi.Empty{}, &r))
		c.close()
		pipes.want("the session's pipes", func() bool { return pipes.srv.pipes.count() == 0 })
	}
	ts := newServer(t, "qps=5", "depth=64", "cq-depth=128", "pds=3")
	c := ts.client()
	var r abi.QueryDeviceReply
	c.do(abi.OpQueryDevice, &abi.QueryDeviceRequest{}, &r)
	if r.MaxQP != 5 || r.MaxSGE != abi.MaxSGE || r.MaxPD != 3 || r.Name.String() != "fake0" {
		t.Errorf("the limits are not advertised: %+v", r)
	}
	q := c.newQP()
	if _, err := c.try(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: q.ctx, CQE: 129}, nil); !errors.Is(
		err, syscall.EINVAL) {
		t.Errorf("CQ deeper than 128: %v", err)
	}
	if _, err := c.try(abi.OpCreateQP, &abi.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq,
		Caps: abi.QPCaps{MaxSendWR: 65}}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("QP deeper than 64: %v", err)
	}
}

// Every call of the table but HELLO, which comes before them, has a handler, and no other.
func TestEveryCallHasAHandler(t *testing.T) {
	n := 1
	for _, o := range abi.Ops() {
		if operations[o] != nil && cmOperations[o] != nil {
			t.Errorf("%v has two handlers", o)
		}
		if operations[o] != nil || cmOperations[o] != nil {
			n++
		} else if o != abi.OpHello {
			t.Errorf("%v has no handler", o)
		}
	}
	if len(operations)+len(cmOperations)+1 != n {
		t.Errorf("%d handlers for %d calls", len(operations)+len(cmOperations), n)
	}
}
