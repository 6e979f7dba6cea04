package shm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/shm/shmtest"
)

func TestClientMovesData(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(16)
	if got := string(b.conn.Param().PrivateData) + "/" +
		string(a.conn.Param().PrivateData); got != "hello/welcome" {
		t.Errorf("private data %q", got)
	}
	if p := b.conn.Param(); p.IRD != 4 || p.ORD != rdma.NoReads {
		t.Errorf("IRD %d and ORD %d of the peer, want 4 and none", p.IRD, p.ORD)
	}
	if a.qp.State() != rdma.QPRTS || b.qp.State() != rdma.QPRTS {
		t.Errorf("states %v and %v", a.qp.State(), b.qp.State())
	}
	copy(a.buf.Bytes(), "over the ring")

	check(t, b.qp.PostRecv(&rdma.RecvWR{ID: 7, SGEs: []rdma.SGE{b.sge(0, 8), b.sge(100, 100)}}))
	check(t, a.qp.PostSend(&rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		a.sge(0, 5), a.sge(5, 8)}}))
	if wc := next(t, a.scq); wc != (rdma.WC{ID: 1, Op: rdma.WCSend, ByteLen: 13, QPN: a.qp.Num()}) {
		t.Errorf("send completed with %+v", wc)
	}
	if wc := next(t, b.rcq); wc != (rdma.WC{ID: 7, Op: rdma.WCRecv, ByteLen: 13, QPN: b.qp.Num()}) {
		t.Errorf("receive completed with %+v", wc)
	}
	if got := string(b.buf.Bytes()[:8]) + string(b.buf.Bytes()[100:105]); got != "over the ring" {
		t.Errorf("received %q", got)
	}

	check(t, a.qp.PostSend(&rdma.SendWR{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled | rdma.Inline,
		Inline:     []byte("written"),
		RemoteAddr: b.mr.Addr() + 1000, RKey: b.mr.RKey()}))
	if wc := next(t, a.scq); wc.ID != 2 || wc.Op != rdma.WCWrite || wc.Status != rdma.WCSuccess {
		t.Errorf("write completed with %+v", wc)
	}
	if !bytes.HasPrefix(b.buf.Bytes()[1000:], []byte("written\x00")) {
		t.Errorf("written %q", b.buf.Bytes()[1000:1010])
	}
	check(t, a.qp.PostSend(&rdma.SendWR{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		a.sge(2000, 7)},
		RemoteAddr: b.mr.Addr() + 1000, RKey: b.mr.RKey()}))
	if wc := next(t, a.scq); wc.ID != 3 || wc.Op != rdma.WCRead || wc.ByteLen != 7 {
		t.Errorf("read completed with %+v", wc)
	}
	if !bytes.HasPrefix(a.buf.Bytes()[2000:], []byte("written\x00")) {
		t.Errorf("read %q", a.buf.Bytes()[2000:2010])
	}
}

func TestClientObjects(t *testing.T) {
	h := newHost(t)
	c := h.dial()
	if got := c.Devices(); !slices.Equal(got, []string{"loop0", "loop1"}) {
		t.Errorf("devices %q", got)
	}
	if _, err := c.Open("nope"); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("open of no device: %v", err)
	}
	d := must(c.Open("loop1"))(t)
	a := d.Attr()
	if d.Name() != "loop1" || a.MTU != 1500 || a.MaxDepth != 16384 || a.MaxSGE < 16 ||
		len(a.Addrs) != 2 ||
		a.Addrs[1] != netip.MustParsePrefix("fd09::2/64") || a.MAC[5] != 1 || a.MaxIRD != 32 {
		t.Errorf("%q: %+v", d.Name(), a)
	}
	n := newNode(t, d, 5)
	if cfg := n.qp.Config(); cfg.MaxSendWR != 8 || cfg.MaxRecvWR != 8 || cfg.MaxInline < 64 ||
		cfg.MaxSendSGE < 2 || n.scq.Depth() != 8 {
		t.Errorf("asked for 5 entries, got %+v and a CQ of %d", cfg, n.scq.Depth())
	}
	if n.qp.State() != rdma.QPIdle {
		t.Errorf("new QP is %v", n.qp.State())
	}

	busy := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, rdma.ErrBusy) {
			t.Errorf("closing %s in use: %v", what, err)
		}
	}
	busy("buffer", n.buf.Close())
	busy("PD", n.pd.Close())
	busy("CQ", n.scq.Close())
	check(t, n.mr.Close())
	busy("PD", n.pd.Close())
	for range 2 { // a second Close does nothing
		check(t, n.mr.Close())
		check(t, n.qp.Close())
		check(t, n.pd.Close())
		check(t, n.buf.Close())
		check(t, n.scq.Close())
	}
	if n := h.loop.Objects(); n != 2 { // the context and the other CQ
		t.Errorf("%d objects are left", n)
	}
	closed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	_, err := n.scq.Poll(make([]rdma.WC, 1))
	closed("poll", err)
	closed("arm", n.scq.Arm(false))
	closed("wait", n.scq.Wait(testContext(t)))
	closed("post send", n.qp.PostSend(&rdma.SendWR{}))
	closed("post receive", n.qp.PostRecv(&rdma.RecvWR{}))
	_, err = n.pd.RegisterMemory(make([]byte, 1), 0)
	if !errors.Is(err, rdma.ErrInvalid) { // looked for first
		t.Errorf("register with a closed PD: %v", err)
	}
	_, err = n.pd.CreateQP(n.qp.Config())
	closed("create QP", err)

	check(t, d.Close())
	_, err = d.AllocPD()
	closed("alloc PD", err)
	_, err = d.NextAsyncEvent(testContext(t))
	closed("async event", err)
	check(t, c.Close())
	check(t, c.Close())
	if _, err := c.Open(""); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("open on a closed client: %v", err)
	}
	needtest.Eventually(t, "the session's objects are gone",
		func() bool { return h.loop.Objects() == 0 })
}

func TestClientRegister(t *testing.T) {
	h := newHost(t)
	d := h.open("")
	pd := must(d.AllocPD())(t)
	buf := must(d.AllocBuffer(10000))(t)
	other := must(d.AllocBuffer(1))(t)
	if len(buf.Bytes()) != 10000 || len(other.Bytes()) != 1 || bytes.ContainsAny(buf.Bytes(), "\x01") {
		t.Errorf("buffers of %d and %d octets", len(buf.Bytes()), len(other.Bytes()))
	}
	part := must(pd.RegisterMemory(buf.Bytes()[100:200], allRights))(t)
	whole := must(pd.RegisterMemory(buf.Bytes(), allRights))(t)
	if part.Addr() != whole.Addr()+100 || len(part.Bytes()) != 100 || part.LKey() == whole.LKey() {
		t.Errorf("part at %#x of whole at %#x", part.Addr(), whole.Addr())
	}
	for name, b := range map[string][]byte{
		"the heap": make([]byte, 100), "nothing": nil, "an empty part": buf.Bytes()[:0],
	} {
		if _, err := pd.RegisterMemory(b, 0); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("registering %s: %v", name, err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := d.AllocBuffer(n); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("buffer of %d octets: %v", n, err)
		}
	}
	if _, err := d.AllocBuffer(1 << 40); !errors.Is(err, rdma.ErrLimit) {
		t.Errorf("buffer over the quota: %v", err)
	}
}

func TestClientPostErrors(t *testing.T) {
	h := newHost(t)
	idle := newNode(t, h.open(""), 4)
	if err := idle.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend}); !errors.Is(err, rdma.ErrNotConnected) {
		t.Errorf("send on an idle QP: %v", err)
	}
	check(t, idle.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{idle.sge(0, 1)}}))

	a, b := h.pair(4)
	many := make([]rdma.SGE, a.qp.Config().MaxSendSGE+1)
	huge := rdma.SGE{Length: 1<<32 - 1}
	for name, wr := range map[string]*rdma.SendWR{
		"nil":            nil,
		"opcode 200":     {Op: 200},
		"bind with SGEs": {Op: rdma.OpBindMW, SGEs: []rdma.SGE{a.sge(0, 8)}},
		"masks and SGEs": {Op: rdma.OpMaskedFetchAdd, SGEs: []rdma.SGE{a.sge(0, 4), a.sge(4, 4)}},
		"inline atomic":  {Op: rdma.OpFetchAdd, Flags: rdma.Inline, Inline: make([]byte, 8)},
		"short atomic":   {Op: rdma.OpCompareSwap, SGEs: []rdma.SGE{a.sge(0, 4)}},
		"SEND_WITH_IMM":  {Op: rdma.OpSendImm, Flags: rdma.Inline, Inline: make([]byte, 1)},
		"unknown flag":   {Op: rdma.OpSend, Flags: 0x80},
		"SGEs":           {Op: rdma.OpSend, SGEs: many},
		"inline": {Op: rdma.OpSend, Flags: rdma.Inline,
			Inline: make([]byte, a.qp.Config().MaxInline+1)},
		"inline read":    {Op: rdma.OpRead, Flags: rdma.Inline, Inline: make([]byte, 1)},
		"too much":       {Op: rdma.OpSend, SGEs: []rdma.SGE{huge, huge}},
		"inline invalid": {Op: rdma.OpLocalInv, Flags: rdma.Inline, Inline: make([]byte, 1)},
	} {
		if err := a.qp.PostSend(wr); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.qp.PostRecv(&rdma.RecvWR{
		SGEs: make([]rdma.SGE, a.qp.Config().MaxRecvSGE+1)}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("receive with too many SGEs: %v", err)
	}

	// A queue is full until completions are polled, so that CQs as deep as it cannot overrun.
	wrs := make([]rdma.SendWR, 6)
	recvs := make([]rdma.RecvWR, 6)
	for i := range wrs {
		wrs[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline,
			Inline: []byte{1}}
		recvs[i] = rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{b.sge(0, 1)}}
	}
	n, err := b.qp.PostRecvs(recvs)
	if n != 4 || !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("%d of 6 receives posted: %v", n, err)
	}
	n, err = a.qp.PostSends(wrs)
	if n != 4 || !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("%d of 6 sends posted: %v", n, err)
	}
	for i := range 4 {
		if wc := next(t, b.rcq); wc.ID != uint64(i) {
			t.Errorf("receive %d completed as %d", wc.ID, i)
		}
		if i < 3 {
			continue
		}
		// All sends are done, but none has been polled.
		if err := a.qp.PostSend(&wrs[0]); !errors.Is(err, rdma.ErrQueueFull) {
			t.Errorf("post before polling: %v", err)
		}
	}
	next(t, a.scq)
	check(t, b.qp.PostRecv(&recvs[0]))
	check(t, a.qp.PostSend(&wrs[4]))
}

// Requests that complete without a completion leave room by themselves.
func TestClientUnsignaled(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(4)
	wr := rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Inline, Inline: []byte{1}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()}
	for i := range 100 {
		needtest.Eventually(t, "room in the queue", func() bool {
			err := a.qp.PostSend(&wr)
			if err != nil && !errors.Is(err, rdma.ErrQueueFull) {
				t.Fatalf("post %d: %v", i, err)
			}
			return err == nil
		})
	}
	wr.Flags |= rdma.Signaled
	wr.ID = 9
	needtest.Eventually(t, "room for the last", func() bool { return a.qp.PostSend(&wr) == nil })
	if wc := next(t, a.scq); wc.ID != 9 || wc.Status != rdma.WCSuccess {
		t.Errorf("%+v", wc)
	}
}

func TestClientList(t *testing.T) {
	h := newHost(t)
	c := h.dial()
	rows := must(c.List("qp"))(t)
	if len(rows) != 300 {
		t.Fatalf("%d rows, want 300", len(rows))
	}
	for i, r := range rows {
		var v struct{ Kind, Row int }
		check(t, json.Unmarshal(r, &v))
		if v.Row != i || v.Kind != rpc.ListQP {
			t.Fatalf("row %d: %s", i, r)
		}
	}
	if rows := must(c.Stat())(t); len(rows) != 1 || string(rows[0]) != `{"stat":1}` {
		t.Errorf("stat: %s", rows)
	}
	if rows := must(c.List("client"))(t); len(rows) != 1 {
		t.Errorf("clients: %s", rows)
	}
	if _, err := c.List("hat"); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("list of hats: %v", err)
	}
}

func TestClientAsyncEvents(t *testing.T) {
	h := newHost(t)
	a, _ := h.pair(4)
	ctx, cancel := context.WithCancel(testContext(t))
	got := make(chan error, 1)
	go func() {
		_, err := a.dev.NextAsyncEvent(ctx)
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	h.loop.Async(rpc.AsyncEvent{Type: uint32(rdma.EventQPFatal), Kind: rpc.ObjQP, Handle: 1,
		Cause: abi.ErrorValid | abi.ErrorRemote | 0x1202})
	h.loop.Async(rpc.AsyncEvent{Type: uint32(rdma.EventPortActive)})
	ev := must(a.dev.NextAsyncEvent(testContext(t)))(t)
	if ev.Type != rdma.EventQPFatal || ev.Object != a.qp.Num() || ev.Cause == nil ||
		!ev.Cause.Remote || ev.Cause.VendorErr() != 0x1202 || ev.Cause.Text != "no receive buffer" {
		t.Errorf("%+v (%v)", ev, ev.Cause)
	}
	if ev := must(a.dev.NextAsyncEvent(testContext(t)))(t); ev.Type != rdma.EventPortActive ||
		ev.Cause != nil {
		t.Errorf("%+v", ev)
	}
}

// The error of a call over a limit names the limit, and what raises it.
func TestClientOverLimit(t *testing.T) {
	checkLeaks(t)
	limits := server.DefaultLimits()
	for _, s := range []string{"pds=1", "cq-depth=64", "sessions-per-uid=1"} {
		check(t, limits.Set(s))
	}
	path := filepath.Join(t.TempDir(), "vrnic.sock")
	srv, err := server.Listen(path, server.Config{NewSession: shmtest.NewLoop().NewSession,
		Limits: &limits, Privileged: func(osmem.Peer) bool { return false }})
	check(t, err)
	defer srv.Close()
	d := must(dialAt(t, path).Open(""))(t)
	must(d.AllocPD())(t)
	for _, tt := range []struct {
		call func() error
		is   error
		want string
	}{
		{func() error { _, err := d.AllocPD(); return err }, rdma.ErrLimit,
			"shm: allocate PD: over the " +
				`limit of 1 protection domains of a session (` +
				`"vrnic up --limit pds=N" sets the limit)`},
		{func() error { _, err := d.CreateCQ(65); return err }, rdma.ErrInvalid, "shm: create CQ: over " +
			`the limit of 64 entries of one completion queue (` +
			`"vrnic up --limit cq-depth=N" sets the limit)`},
		{func() error { _, err := shm.Dial(path); return err }, rdma.ErrLimit,
			fmt.Sprintf("vrnic daemon "+
				"at %s: shm: HELLO: uid %d has 1 sessions, as many as one user may "+
				`("vrnic up --limit sessions-per-uid=N" sets the limit)`, path, os.Getuid())},
	} {
		if err := tt.call(); !errors.Is(err, tt.is) || err.Error() != tt.want {
			t.Errorf("%v\nwant %s", err, tt.want)
		}
	}
}

// A list has no bound, and is not kept: who takes rows one by one may stop, or be stopped.
func TestClientRows(t *testing.T) {
	const rows = 1<<14 + 100 // more pages than a list could have once
	path := lie(t, func(l *liar, h rpc.Header, body []byte) ([]byte, []int) {
		if h.Op != rpc.OpList {
			return goodHello(l, h)
		}
		var req rpc.ListRequest
		check(t, rpc.Decode(body, &req))
		rep := &rpc.ListReply{Next: req.Cursor + 1}
		rep.Len = uint32(copy(rep.Data[:], fmt.Sprintf("{\"row\":%d}\n", req.Cursor)))
		if rep.Next == rows {
			rep.Next = 0
		}
		return reply(h, 0, rep), nil
	})
	c := dialAt(t, path)
	n := 0
	for row, err := range c.Rows(t.Context(), "mr") {
		if err != nil || string(row) != fmt.Sprintf(`{"row":%d}`, n) {
			t.Fatalf("row %d: %s, %v", n, row, err)
		}
		n++
	}
	if n != rows {
		t.Errorf("%d rows of %d", n, rows)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range c.Rows(ctx, "mr") {
		if n++; n == rows+10 {
			cancel()
		}
		if n > rows+10 && !errors.Is(err, context.Canceled) {
			t.Errorf("a row after the end of the context: %v", err)
		}
	}
	if n != rows+11 {
		t.Errorf("%d rows, and the end of the context", n-rows)
	}
}

// A list that does not get on is nonsense.
func TestClientRowsStandStill(t *testing.T) {
	for _, rep := range []rpc.ListReply{{Next: 1}, {Next: 1, Len: 3}} {
		copy(rep.Data[:], "{}\n")
		c := dialAt(t, lie(t, func(l *liar, h rpc.Header, body []byte) ([]byte, []int) {
			if h.Op != rpc.OpList {
				return goodHello(l, h)
			}
			return reply(h, 0, &rep), nil
		}))
		n, last := 0, error(nil)
		for _, err := range c.Rows(testContext(t), "mr") {
			last = err
			n++
		}
		// The first page with a row in it is one that a list may have, the second of it not.
		if n != 1+int(rep.Len)/3 || last == nil || !strings.Contains(last.Error(), "does not get on") {
			t.Errorf("%d rows, and then %v", n, last)
		}
	}
}
