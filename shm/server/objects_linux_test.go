package server

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// refuse checks that each request is refused with the errno beside it.
func (c *rawClient) refuse(t *testing.T, op rpc.Op, want syscall.Errno, reqs ...rpc.Message) {
	t.Helper()
	for _, req := range reqs {
		if _, err := c.try(op, req, nil); !errors.Is(err, want) {
			t.Errorf("%v %+v: %v, want %v", op, req, err, want)
		}
	}
}

func (c *rawClient) newSRQ(pd, wr, sge uint32) (rpc.CreateSRQReply, *ring.ClientSRQ, []byte) {
	c.t.Helper()
	var r rpc.CreateSRQReply
	mem := c.mmap(c.do(rpc.OpCreateSRQ, &rpc.CreateSRQRequest{PD: pd, MaxWR: wr, MaxSGE: sge}, &r)[0])
	m, err := ring.OpenClientSRQ(mem)
	if err != nil {
		c.t.Fatal(err)
	}
	return r, m, mem
}

// An SRQ has a ring and a bell of its own, and it stays while a QP uses it; what a client may ask
// of it has limits, and its memory is given back when it goes.
func TestSRQ(t *testing.T) {
	ts := newServer(t, "srqs=2", "depth=64")
	c := ts.client()
	q := c.newQP()
	r, m, mem := c.newSRQ(q.pd, 5, 3)
	if r.MaxWR != 8 || r.MaxSGE != 3 || m.Layout.RQSize != 8 || m.Handle != r.SRQ || r.Bell == q.bell {
		t.Fatalf("%+v, layout %+v", r, m.Layout)
	}
	srq := ts.srq(0)
	if err := m.RQ.Put(&abi.RecvWQE{WRID: 7, Cookie: 9, NumSGE: 3}); err != nil || m.RQ.Commit() {
		t.Fatalf("%v, or a bell that nobody wants", err)
	}
	if err := q.ringer.Ring(r.Bell); err != nil {
		t.Fatal(err)
	}
	ts.want("the SRQ's bell is heard", func() bool { return srq.bells.Load() == 1 })
	var w abi.RecvWQE
	if ok, err := srq.rings.RQ.Next(&w); !ok || err != nil || w.WRID != 7 || w.Cookie != 9 ||
		srq.rings.Handle != r.SRQ {
		t.Fatalf("%v, %v, %+v", ok, err, w)
	}

	c.do(rpc.OpModifySRQ, &rpc.ModifySRQRequest{SRQ: r.SRQ, Mask: rpc.ModifySRQLimit, Limit: 5}, nil)
	c.do(rpc.OpModifySRQ, &rpc.ModifySRQRequest{SRQ: r.SRQ}, nil)
	var info rpc.QuerySRQReply
	c.do(rpc.OpQuerySRQ, &rpc.HandleRequest{Handle: r.SRQ}, &info)
	if info != (rpc.QuerySRQReply{MaxWR: 8, MaxSGE: 3, Limit: 5}) {
		t.Errorf("%+v", info)
	}
	// What lies above may say other sizes, for which the ring has room.
	odd, om, _ := c.newSRQ(q.pd, oddSRQ, 3)
	c.do(rpc.OpQuerySRQ, &rpc.HandleRequest{Handle: odd.SRQ}, &info)
	if odd.MaxWR != 15 || odd.MaxSGE != 4 || info != (rpc.QuerySRQReply{MaxWR: 15, MaxSGE: 4}) ||
		om.Layout.RQSize != 16 || om.Layout.RQMaxSGE() < 4 {
		t.Errorf("%+v, %+v of %+v", odd, info, om.Layout)
	}
	c.do(rpc.OpDestroySRQ, &rpc.HandleRequest{Handle: odd.SRQ}, nil)
	c.refuse(t, rpc.OpModifySRQ, syscall.EOPNOTSUPP, &rpc.ModifySRQRequest{SRQ: r.SRQ,
		Mask: rpc.ModifySRQMaxWR, MaxWR: 16})
	c.refuse(t, rpc.OpModifySRQ, syscall.EINVAL, &rpc.ModifySRQRequest{SRQ: r.SRQ, Mask: 4},
		&rpc.ModifySRQRequest{SRQ: r.SRQ, Limit: 1},
		&rpc.ModifySRQRequest{SRQ: r.SRQ, Mask: rpc.ModifySRQLimit, Limit: 9}, &rpc.ModifySRQRequest{
			SRQ: r.SRQ, Mask: rpc.ModifySRQLimit, MaxWR: 8})
	c.refuse(t, rpc.OpCreateSRQ, syscall.EINVAL, &rpc.CreateSRQRequest{PD: q.pd, MaxWR: 65},
		&rpc.CreateSRQRequest{PD: q.pd, MaxWR: 1 << 31},
		&rpc.CreateSRQRequest{PD: q.pd, MaxSGE: abi.MaxSGE + 1})
	c.refuse(t, rpc.OpCreateSRQ, syscall.ENOENT, &rpc.CreateSRQRequest{PD: 99})

	// A QP that uses it, of the same PD only, has no receive queue.
	var pd rpc.AllocPDReply
	c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: q.ctx}, &pd)
	req := rpc.CreateQPRequest{PD: pd.PD, SendCQ: q.cq, RecvCQ: q.cq, SRQ: r.SRQ, Caps: rpc.QPCaps{
		MaxRecvWR: 9, MaxRecvSGE: 2, TxSlab: 100, RxSlab: 100}}
	c.refuse(t, rpc.OpCreateQP, syscall.EINVAL, &req)
	for _, inline := range []uint32{abi.MaxInline + 1, 1<<32 - 256} { // no handler reckons with it
		c.refuse(t, rpc.OpCreateQP, syscall.EINVAL, &rpc.CreateQPRequest{PD: pd.PD, SendCQ: q.cq,
			RecvCQ: q.cq, Caps: rpc.QPCaps{MaxSendWR: 1, MaxSendSGE: 1, MaxInline: inline}})
	}
	inline := rpc.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq, Caps: rpc.QPCaps{MaxSendWR: 1,
		MaxSendSGE: 1, MaxInline: oddInline}}
	var told rpc.CreateQPReply
	im, err := ring.OpenClientQP(c.mmap(c.do(rpc.OpCreateQP, &inline, &told)[0]))
	if err != nil || told.Caps.MaxInline != oddInline+4 || im.Layout.MaxInline < oddInline+4 {
		t.Errorf("%v: %+v of %+v", err, told.Caps, im.Layout)
	}
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: told.QP}, nil)
	req.PD, req.SRQ = q.pd, 99
	c.refuse(t, rpc.OpCreateQP, syscall.ENOENT, &req)
	req.SRQ = r.SRQ
	var qp rpc.CreateQPReply
	qm, err := ring.OpenClientQP(c.mmap(c.do(rpc.OpCreateQP, &req, &qp)[0]))
	if err != nil || qp.Caps.MaxRecvWR+qp.Caps.MaxRecvSGE+qp.Caps.RxSlab != 0 ||
		qp.Caps.TxSlab != 128 || qm.Layout.RQSize != 0 {
		t.Fatalf("%v, %+v", err, qp.Caps)
	}
	if err := qm.RQ.Put(&abi.RecvWQE{}); err == nil {
		t.Error("a receive went into a queue that is not there")
	}
	c.refuse(t, rpc.OpDestroySRQ, syscall.EBUSY, &rpc.HandleRequest{Handle: r.SRQ})
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: qp.QP}, nil)
	ts.f.busySRQ.Store(true)
	c.refuse(t, rpc.OpDestroySRQ, syscall.EBUSY, &rpc.HandleRequest{Handle: r.SRQ})
	ts.f.busySRQ.Store(false)
	if err := q.ringer.Ring(r.Bell); err != nil {
		t.Fatal(err)
	}
	ts.want("it still works", func() bool { return srq.bells.Load() == 2 })
	c.refuse(t, rpc.OpDeallocPD, syscall.EBUSY, &rpc.HandleRequest{Handle: q.pd})

	// Its events are counted, and dropped, as a QP's are.
	srq.h.queue.Push(rpc.AsyncEvent{Type: 15, Kind: rpc.ObjSRQ, Handle: r.SRQ})
	srq.h.queue.Push(rpc.AsyncEvent{Type: 15, Kind: rpc.ObjSRQ, Handle: r.SRQ})
	var ev rpc.AsyncEvent
	c.do(rpc.OpGetAsyncEvent, &rpc.HandleRequest{Handle: q.ctx}, &ev)
	var gone rpc.DestroyReply
	c.do(rpc.OpDestroySRQ, &rpc.HandleRequest{Handle: r.SRQ}, &gone)
	if gone != (rpc.DestroyReply{Reported: 1, Tokens: 1}) {
		t.Errorf("%+v", gone)
	}
	if slices.ContainsFunc(mem, func(b byte) bool { return b != 0 }) {
		t.Error("pages of the ring are still there")
	}
	for _, op := range []rpc.Op{rpc.OpQuerySRQ, rpc.OpDestroySRQ} {
		c.refuse(t, op, syscall.ENOENT, &rpc.HandleRequest{Handle: r.SRQ})
	}
	q.roundTrip(t, 1) // a stale bell of the SRQ's harms nobody
	for range 2 {
		c.newSRQ(q.pd, 1, 1)
	}
	c.refuse(t, rpc.OpCreateSRQ, syscall.ENOMEM, &rpc.CreateSRQRequest{PD: q.pd})
	if row := ts.srv.Clients()[0]; row.SRQs != 2 {
		t.Errorf("%+v", row)
	}
}

// Windows and regions without memory count against their quotas, and keep their PD.
func TestKeyObjects(t *testing.T) {
	ts := newServer(t, "mws=2", "mrs=2")
	c := ts.client()
	q := c.newQP()
	var mw rpc.AllocMWReply
	c.do(rpc.OpAllocMW, &rpc.AllocMWRequest{PD: q.pd, Type: 2}, &mw)
	if mw.RKey != 0x200 {
		t.Errorf("%+v", mw)
	}
	c.do(rpc.OpAllocMW, &rpc.AllocMWRequest{PD: q.pd, Type: 1}, nil)
	c.refuse(t, rpc.OpAllocMW, syscall.ENOMEM, &rpc.AllocMWRequest{PD: q.pd, Type: 1})
	c.do(rpc.OpDeallocMW, &rpc.HandleRequest{Handle: mw.MW}, nil)
	c.refuse(t, rpc.OpDeallocMW, syscall.ENOENT, &rpc.HandleRequest{Handle: mw.MW})
	c.refuse(t, rpc.OpAllocMW, syscall.EINVAL, &rpc.AllocMWRequest{PD: q.pd, Type: 3})
	c.refuse(t, rpc.OpAllocMW, syscall.ENOENT, &rpc.AllocMWRequest{PD: 99, Type: 1})

	var mr rpc.RegMRReply
	c.do(rpc.OpAllocMR, &rpc.AllocMRRequest{PD: q.pd, MaxLen: 500}, &mr)
	if mr.LKey != 500 || mr.RKey != 1500 {
		t.Errorf("%+v", mr)
	}
	c.refuse(t, rpc.OpAllocMR, syscall.EINVAL, &rpc.AllocMRRequest{PD: q.pd}, &rpc.AllocMRRequest{
		PD: q.pd, MaxLen: 1<<46 + 1}, &rpc.AllocMRRequest{PD: q.pd, Pad: 1, MaxLen: 1})
	c.refuse(t, rpc.OpAllocMR, syscall.ENOENT, &rpc.AllocMRRequest{PD: 99, MaxLen: 1})
	// it has no memory
	c.refuse(t, rpc.OpReregMR, syscall.EINVAL, &rpc.ReregMRRequest{MR: mr.MR, Flags: rpc.ReregAccess})
	c.do(rpc.OpAllocMR, &rpc.AllocMRRequest{PD: q.pd, MaxLen: 1}, nil)
	c.refuse(t, rpc.OpAllocMR, syscall.ENOMEM, &rpc.AllocMRRequest{PD: q.pd, MaxLen: 1})
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	c.do(rpc.OpDeregMR, &rpc.HandleRequest{Handle: mr.MR}, nil)
	c.refuse(t, rpc.OpDeallocPD, syscall.EBUSY, &rpc.HandleRequest{Handle: q.pd})
	if row := ts.srv.Clients()[0]; row.MWs != 1 || row.MRs != 1 {
		t.Errorf("%+v", row)
	}
}

// REREG_MR: the handle stays, the keys too unless the octets are others, and the old registration
// ends only when the new one is there; if anything fails it is as it was.
func TestReregMR(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	var a, b rpc.AddMemReply
	c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &a, c.memfd(8192, unix.F_SEAL_SHRINK))
	c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &b, c.memfd(4096, unix.F_SEAL_SHRINK))
	var pd rpc.AllocPDReply
	c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: q.ctx}, &pd)
	var was, is rpc.RegMRReply
	c.do(rpc.OpRegMR, &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeShared, Mem: a.Mem, Offset: 4096,
		Length: 4096, IOVA: 5, Access: 1}, &was)
	lens := func() (n []uint64) {
		ts.f.mu.Lock()
		defer ts.f.mu.Unlock()
		for h := range ts.f.sessions {
			for _, m := range h.mrs {
				n = append(n, m.Len())
			}
		}
		return n
	}
	region := func() rpc.RegMRRequest {
		s := ts.session()
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mrs.m[was.MR].req
	}

	trans := rpc.RegMRRequest{Mode: rpc.ModeShared, Mem: b.Mem, Length: 100, IOVA: 9}
	c.refuse(t, rpc.OpReregMR, syscall.EINVAL,
		&rpc.ReregMRRequest{MR: was.MR}, &rpc.ReregMRRequest{MR: was.MR, Flags: 8, New: trans},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregTranslation, New: rpc.RegMRRequest{
			Mode: rpc.ModeShared, Mem: b.Mem, Length: 4097}},
		// no mem fd was lent
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregTranslation, New: rpc.RegMRRequest{
			Mode: rpc.ModeApp, Length: 1}},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregAccess, New: rpc.RegMRRequest{Access: 1 << 5}},
		// not asked for
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregAccess, New: rpc.RegMRRequest{Access: 1,
			Length: 1}},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregTranslation, New: rpc.RegMRRequest{PD: q.pd,
			Mode: rpc.ModeShared, Mem: b.Mem}},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregPD, New: rpc.RegMRRequest{PD: q.pd, Access: 1}})
	c.refuse(t, rpc.OpReregMR, syscall.ENOENT, &rpc.ReregMRRequest{MR: 99, Flags: rpc.ReregAccess},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregPD, New: rpc.RegMRRequest{PD: 99}},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregTranslation, New: rpc.RegMRRequest{
			Mode: rpc.ModeShared, Mem: 99}})
	var other rpc.CtxOpenReply
	c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{Device: 1}, &other)
	var far rpc.AllocPDReply
	c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: other.Ctx}, &far)
	c.refuse(t, rpc.OpReregMR, syscall.EINVAL, &rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregPD,
		New: rpc.RegMRRequest{PD: far.PD}})
	ts.f.busyMR.Store(was.LKey) // a window is bound to it
	c.refuse(t, rpc.OpReregMR, syscall.EBUSY, &rpc.ReregMRRequest{MR: was.MR,
		Flags: rpc.ReregTranslation, New: trans},
		&rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregAccess, New: rpc.RegMRRequest{Access: 7}})
	ts.f.busyMR.Store(0)

	c.do(rpc.OpReregMR, &rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregTranslation, New: trans}, &is)
	if is.MR != was.MR || is.LKey == was.LKey {
		t.Errorf("%+v became %+v", was, is)
	}
	trans.PD, trans.Access = q.pd, 1
	if got := region(); got != trans {
		t.Errorf("it is %+v, want %+v", got, trans)
	}
	c.do(rpc.OpDelMem, &rpc.HandleRequest{Handle: a.Mem}, nil) // nothing holds it any more
	c.refuse(t, rpc.OpDelMem, syscall.EBUSY, &rpc.HandleRequest{Handle: b.Mem})
	key := is.LKey
	c.do(rpc.OpReregMR, &rpc.ReregMRRequest{MR: was.MR, Flags: rpc.ReregPD | rpc.ReregAccess,
		New: rpc.RegMRRequest{PD: pd.PD, Access: 7}}, &is)
	if is.MR != was.MR || is.LKey != key {
		t.Errorf("with other rights key %#x became %+v", key, is)
	}
	trans.PD, trans.Access = pd.PD, 7
	if got := region(); got != trans {
		t.Errorf("it is %+v, want %+v", got, trans)
	}
	c.refuse(t, rpc.OpDeallocPD, syscall.EBUSY, &rpc.HandleRequest{Handle: pd.PD})
	c.do(rpc.OpDeregMR, &rpc.HandleRequest{Handle: was.MR}, nil)
	c.do(rpc.OpDelMem, &rpc.HandleRequest{Handle: b.Mem}, nil)
	c.do(rpc.OpDeallocPD, &rpc.HandleRequest{Handle: pd.PD}, nil)
	if n := lens(); len(n) != 0 {
		t.Errorf("regions of %v octets are left", n)
	}
}

// session is the only session.
func (ts *testServer) session() *Session {
	ts.srv.mu.Lock()
	defer ts.srv.mu.Unlock()
	for s := range ts.srv.sessions {
		return s
	}
	return nil
}

// An id migrates with its events, which come on the new channel with tokens of their own, and with
// the ids of the requests among them; others stay.
func TestMigrate(t *testing.T) {
	ts := newServer(t, "cm-events=8")
	c := ts.client()
	var chs [2]rpc.CMCreateChanReply
	var pipes [2]int
	for i := range chs {
		pipes[i] = c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &chs[i])[0]
	}
	var ids [2]rpc.CMCreateIDReply
	for i := range ids {
		c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: chs[0].Chan, PS: rpc.PSTCP,
			UID: uint64(i + 10)}, &ids[i])
	}
	f, stays := ts.id(0), ts.id(1)
	kid := &fakeID{h: f.h}
	push := func(id *fakeID, typ uint32) {
		t.Helper()
		if err := id.id.Push(rpc.CMEvent{Type: typ}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(ch int) (e rpc.CMEvent, err error) {
		_, err = c.try(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: chs[ch].Chan}, &e)
		return e, err
	}
	push(f, rpc.EvAddrResolved)
	readToken(t, pipes[0])
	if _, err := get(0); err != nil {
		t.Fatal(err)
	}
	push(f, rpc.EvRouteResolved)
	push(stays, rpc.EvAddrResolved)
	if err := f.id.PushRequest(rpc.CMEvent{},
		func(child *CMID) IDHandler { kid.id = child; return kid }); err != nil {
		t.Fatal(err)
	}
	kid.id.Push(rpc.CMEvent{Type: rpc.EvDisconnected}) // it ends before anybody has taken the request

	var r rpc.CMMigrateReply
	c.do(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ids[0].ID, Chan: chs[1].Chan}, &r)
	if r != (rpc.CMMigrateReply{Reported: 1, Tokens: 2}) {
		t.Errorf("%+v", r)
	}
	c.do(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ids[0].ID, Chan: chs[1].Chan}, &r) // where it is
	if r != (rpc.CMMigrateReply{Reported: 1}) {
		t.Errorf("%+v", r)
	}
	for i, typ := range []uint32{rpc.EvRouteResolved, rpc.EvConnectRequest} {
		readToken(t, pipes[1])
		if e, err := get(1); err != nil || e.Type != typ || e.ID != ids[0].ID || e.UID != 10 {
			t.Errorf("event %d: %+v, %v", i, e, err)
		}
	}
	push(kid, rpc.EvTimewaitExit) // the child is here now
	readToken(t, pipes[1])
	if e, err := get(1); err != nil || e.ID != kid.id.Handle() {
		t.Errorf("%+v, %v", e, err)
	}
	// What stayed: the event of the other id, and the child's own, which was not the listener's.
	for _, want := range []uint32{ids[1].ID, kid.id.Handle()} {
		if e, err := get(0); err != nil || e.ID != want {
			t.Errorf("%+v, %v; want one of id %d", e, err, want)
		}
	}
	for i := range chs {
		if _, err := get(i); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("channel %d: %v", i, err)
		}
	}
	c.refuse(t, rpc.OpCMDestroyChan, syscall.EBUSY, &rpc.HandleRequest{Handle: chs[0].Chan},
		&rpc.HandleRequest{Handle: chs[1].Chan})
	c.refuse(t, rpc.OpCMMigrate, syscall.ENOENT, &rpc.CMMigrateRequest{ID: 99, Chan: chs[0].Chan},
		&rpc.CMMigrateRequest{ID: ids[0].ID, Chan: 99})
	c.do(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ids[1].ID, Chan: chs[1].Chan}, nil)
	c.do(rpc.OpCMDestroyChan, &rpc.HandleRequest{Handle: chs[0].Chan}, nil) // nobody is there any more
	push(f, rpc.EvEstablished)
	if e, err := get(1); err != nil || e.Type != rpc.EvEstablished {
		t.Errorf("%+v, %v", e, err)
	}

	// The listener goes while the id of a request is being made: that goes after it.
	var back rpc.CMCreateChanReply
	c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &back)
	late := &fakeID{h: f.h}
	err := f.id.PushRequest(rpc.CMEvent{}, func(child *CMID) IDHandler {
		c.do(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ids[0].ID, Chan: back.Chan}, nil)
		late.id = child
		return late
	})
	if err != nil || late.id.ch.Load().handle != back.Chan {
		t.Errorf("%v; the request's id is on channel %d, its listener on %d", err,
			late.id.ch.Load().handle, back.Chan)
	}

	var attr rpc.CMInitQPAttrReply
	c.do(rpc.OpCMInitQPAttr, &rpc.CMInitQPAttrRequest{ID: ids[0].ID, State: abi.StateInit}, &attr)
	if attr.Mask != rpc.QPAttrState || attr.State != abi.StateInit {
		t.Errorf("%+v", attr)
	}
	c.refuse(t, rpc.OpCMInitQPAttr, syscall.EINVAL, &rpc.CMInitQPAttrRequest{ID: ids[0].ID, State: 9})
	c.refuse(t, rpc.OpCMInitQPAttr, syscall.ENOENT, &rpc.CMInitQPAttrRequest{
		ID: 99, State: abi.StateInit})
}

// Requests that come while their listener goes to and fro are lost nowhere, and each child is on
// its listener's channel when the client hears of it.
func TestMigrateUnderRequests(t *testing.T) {
	const requests = 200
	ts := newServer(t, "cm-events=1000", "cm-ids=1000")
	c := ts.client()
	var chs [2]rpc.CMCreateChanReply
	for i := range chs {
		c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &chs[i])
	}
	var id rpc.CMCreateIDReply
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: chs[0].Chan, PS: rpc.PSTCP}, &id)
	f := ts.id(0)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range requests {
			err := f.id.PushRequest(rpc.CMEvent{}, func(child *CMID) IDHandler {
				return &fakeID{h: f.h, id: child}
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	seen := 0
	take := func(ch uint32) {
		for {
			var e rpc.CMEvent
			if _, err := c.try(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch}, &e); err != nil {
				return
			}
			seen++
			s := ts.session()
			s.mu.Lock()
			child := s.ids.m[e.Child]
			s.mu.Unlock()
			if at := child.ch.Load().handle; at != ch {
				t.Errorf("child %d is on channel %d, its request came on %d", e.Child, at, ch)
			}
			if err := child.Push(rpc.CMEvent{Type: rpc.EvTimewaitExit}); err != nil {
				t.Error(err)
			}
			c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: e.Child}, nil)
		}
	}
	for i := range 300 {
		c.do(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: id.ID, Chan: chs[i%2].Chan}, nil)
		take(chs[i%2].Chan)
	}
	wg.Wait()
	take(chs[0].Chan)
	take(chs[1].Chan)
	if seen != requests {
		t.Errorf("%d of %d requests came", seen, requests)
	}
	c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: id.ID}, nil)
	for i := range chs {
		// EBUSY if a count of ids is wrong
		c.do(rpc.OpCMDestroyChan, &rpc.HandleRequest{Handle: chs[i].Chan}, nil)
	}
}

// There is a bell for each QP and each SRQ that a session may have, and destroyed ones give theirs
// back.
func TestBellsSuffice(t *testing.T) {
	ts := newServer(t, "qps=1", "srqs=1")
	c := ts.client()
	q := c.newQP()
	for range 3 {
		r, _, _ := c.newSRQ(q.pd, 1, 1)
		if r.Bell == q.bell {
			t.Errorf("bell %d twice", r.Bell)
		}
		c.do(rpc.OpDestroySRQ, &rpc.HandleRequest{Handle: r.SRQ}, nil)
	}
	q.roundTrip(t, 1)
}

// Requests that come together are answered in their order, whether or not descriptors go with the
// replies; what was answered before a violation is heard, too.
func TestRequestsUnderWay(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	ask := func(op rpc.Op, req rpc.Message) {
		t.Helper()
		c.seq++
		if err := c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: c.seq}, req)); err != nil {
			t.Fatal(err)
		}
	}
	const many = 2*seqpacket.MaxOutstanding + 3
	first := c.seq + 1
	for i := range many {
		if i%5 == 3 {
			ask(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: q.ctx})
		} else {
			ask(rpc.OpQueryQP, &rpc.HandleRequest{Handle: q.qp})
		}
	}
	for i := range uint32(many) {
		want := 0
		if i%5 == 3 {
			want = 2
		}
		if h, _, fds, ended := c.recv(); ended || h.Seq != first+i || h.Status != 0 || len(fds) != want {
			t.Fatalf("reply %d: %+v with %d descriptors, ended %v", i, h, len(fds), ended)
		}
	}
	ask(rpc.OpQueryQP, &rpc.HandleRequest{Handle: q.qp})
	ask(rpc.OpHello, &rpc.HelloRequest{})
	if h, _, _, ended := c.recv(); ended || h.Seq != c.seq-1 || h.Status != 0 {
		t.Fatalf("%+v, ended %v", h, ended)
	}
	if h, _, _, ended := c.recv(); !ended {
		t.Fatalf("a second HELLO is answered with %+v", h)
	}
}

// A request that takes long does not hold the replies to those before it.
func TestSlowRequest(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	var qps [3]*rawQP
	for i := range qps {
		qps[i] = c.newQP()
	}
	ask := func(op rpc.Op, h uint32) uint32 {
		t.Helper()
		c.seq++
		if err := c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: c.seq}, &rpc.HandleRequest{
			Handle: h})); err != nil {
			t.Fatal(err)
		}
		return c.seq
	}
	answered := func(seq uint32) {
		t.Helper()
		if h, _, _, ended := c.recv(); ended || h.Seq != seq || h.Status != 0 {
			t.Fatalf("reply to %d: %+v, ended %v", seq, h, ended)
		}
	}
	first, second := make(chan struct{}), make(chan struct{})
	ts.f.closing.Store(qps[0].qpn, first)
	ts.f.closing.Store(qps[1].qpn, second)
	a := ask(rpc.OpDestroyQP, qps[0].qp)
	// both are there when that has been done
	b, d := ask(rpc.OpQueryQP, qps[2].qp), ask(rpc.OpDestroyQP, qps[1].qp)
	close(first)
	answered(a)
	answered(b)
	close(second)
	answered(d)
}
