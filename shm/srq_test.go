package shm_test

import (
	"errors"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
)

// sharedNodes makes two nodes on one SRQ of dev's, and a peer for each on other's.
func (h *host) sharedNodes(dev, other *shm.Device, depth int) (srq rdma.SRQ, peers,
	nodes [2]*node) {
	h.t.Helper()
	first := newNode(h.t, dev, depth)
	srq = must(first.pd.CreateSRQ(rdma.SRQConfig{MaxWR: depth, MaxSGE: 2}))(h.t)
	for i := range nodes {
		n := *first
		n.qp = must(n.pd.CreateQP(rdma.QPConfig{SendCQ: n.scq, RecvCQ: n.rcq, MaxSendWR: depth,
			SRQ: srq}))(h.t)
		nodes[i], peers[i] = &n, newNode(h.t, other, depth)
		connect(h.t, peers[i], nodes[i])
	}
	check(h.t, first.qp.Close())
	return srq, peers, nodes
}

func (n *node) sendInline(id uint64, b string) {
	n.t.Helper()
	check(n.t, n.qp.PostSend(&rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline,
		Inline: []byte(b)}))
}

// An SRQ's receives go to whoever has a message, in order; places come back when they are polled;
// QPs that wait all wake; everything is closed in the right order only.
func TestClientSRQ(t *testing.T) {
	h := newHost(t)
	dev, other := h.open("loop0"), h.open("loop1")
	srq, peers, nodes := h.sharedNodes(dev, other, 8)
	if cfg := nodes[0].qp.Config(); cfg.MaxRecvWR != 0 || cfg.MaxRecvSGE != 0 || cfg.SRQ != srq {
		t.Errorf("%+v", cfg)
	}
	post := func(id uint64) error {
		return srq.PostRecv(&rdma.RecvWR{ID: id, SGEs: []rdma.SGE{nodes[0].sge(int(id)*8, 8)}})
	}
	for round := range 10 { // more receives than places
		for i := range uint64(8) {
			check(t, post(i))
		}
		if err := post(8); !errors.Is(err, rdma.ErrQueueFull) {
			t.Fatalf("round %d: %v", round, err)
		}
		for i := range uint64(8) {
			from := int(i) * 3 % 2
			peers[from].sendInline(i, "message")
			if wc := next(t, nodes[0].rcq); wc.ID != i || wc.QPN != nodes[from].qp.Num() || wc.ByteLen != 7 {
				t.Fatalf("round %d: %+v, want receive %d of QP %d", round, wc, i, nodes[from].qp.Num())
			}
			next(t, peers[from].scq)
		}
	}
	for i, p := range peers {
		p.sendInline(1, []string{"a", "bc"}[i])
	}
	check(t, post(1))
	check(t, post(2))
	got := map[uint32]uint32{}
	for range peers {
		wc := next(t, nodes[0].rcq)
		got[wc.QPN] = wc.ByteLen
	}
	if got[nodes[0].qp.Num()] != 1 || got[nodes[1].qp.Num()] != 2 {
		t.Errorf("octets by QP: %v", got)
	}
	if err := nodes[0].pd.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("PD with an SRQ: %v", err)
	}
	if err := srq.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("SRQ with QPs: %v", err)
	}
	check(t, post(3)) // it goes on
	for _, n := range nodes {
		check(t, n.qp.Close())
	}
	check(t, srq.Close())
	if err := post(4); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a post to a closed SRQ: %v", err)
	}
	if _, err := nodes[0].pd.CreateQP(rdma.QPConfig{SendCQ: nodes[0].scq, RecvCQ: nodes[0].rcq,
		SRQ: srq}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a QP on a closed SRQ: %v", err)
	}
	mine := must(peers[0].pd.CreateSRQ(rdma.SRQConfig{}))(t)
	if _, err := nodes[0].pd.CreateQP(rdma.QPConfig{SendCQ: nodes[0].scq, RecvCQ: nodes[0].rcq,
		SRQ: mine}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a QP on another device's SRQ: %v", err)
	}
	for _, cfg := range []rdma.SRQConfig{{MaxWR: -1}, {MaxSGE: -1}, {MaxWR: abi.MaxDepth + 1},
		{MaxSGE: abi.MaxSGE + 1}} {
		if _, err := nodes[0].pd.CreateSRQ(cfg); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// What a closed QP had completed and nobody polled is free again, and nothing else is.
func TestClientSRQOutlivesQP(t *testing.T) {
	h := newHost(t)
	srq, peers, nodes := h.sharedNodes(h.open("loop0"), h.open("loop1"), 4)
	for i := range uint64(4) {
		check(t, srq.PostRecv(&rdma.RecvWR{ID: i, SGEs: []rdma.SGE{nodes[0].sge(0, 8)}}))
	}
	for i, from := range []int{0, 1, 0} {
		peers[from].sendInline(uint64(i), "x")
		next(t, peers[from].scq) // the Loop completes the receive before it
	}
	check(t, nodes[0].qp.Close())
	for i := range uint64(3) {
		err := srq.PostRecv(&rdma.RecvWR{ID: 10 + i})
		if i < 2 {
			check(t, err)
		} else if !errors.Is(err, rdma.ErrQueueFull) {
			t.Errorf("a third place for two: %v", err)
		}
	}
	if wc := next(t, nodes[1].rcq); wc.ID != 1 || wc.QPN != nodes[1].qp.Num() {
		t.Errorf("%+v", wc)
	}
	check(t, srq.PostRecv(&rdma.RecvWR{ID: 20}))
}

// On a dead session an SRQ's receives belong to no QP: they are not made up as flushed, posts fail,
// and all can be closed.
func TestClientSRQDeath(t *testing.T) {
	h := newHost(t)
	srq, peers, nodes := h.sharedNodes(h.open("loop0"), h.open("loop1"), 4)
	check(t, srq.PostRecv(&rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{nodes[0].sge(0, 8)}}))
	peers[1].sendInline(2, "x")
	next(t, peers[1].scq)
	h.srv.Close()
	<-nodes[0].dev.Client().Done()
	for range 2 {
		if err := srq.PostRecv(&rdma.RecvWR{}); !errors.Is(err, rdma.ErrDeviceGone) {
			t.Errorf("post: %v", err)
		}
	}
	if _, err := srq.Limit(); !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("limit: %v", err)
	}
	wc := make([]rdma.WC, 4)
	for {
		n, err := nodes[0].rcq.Poll(wc)
		for _, w := range wc[:n] {
			if w.ID != 1 || w.Op != rdma.WCRecv {
				t.Errorf("made up: %+v", w)
			}
		}
		if err != nil {
			break
		}
	}
	check(t, nodes[0].qp.Close())
	check(t, nodes[1].qp.Close())
	check(t, srq.Close())
}

// A device that is closed takes SRQs, windows and regions without memory with it; nothing is left
// in the daemon, in whatever order they depend on each other.
func TestClientCloseDevice(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(8)
	mr := must(a.pd.RegisterMemory(a.buf.Bytes(), allRights|rdma.MWBind))(t)
	mw := must(a.pd.AllocMW(rdma.MWType2))(t)
	fast := must(a.pd.AllocMR(64))(t)
	must(a.pd.CreateSRQ(rdma.SRQConfig{}))(t)
	for _, wr := range []rdma.SendWR{
		{Op: rdma.OpBindMW, RKey: rdma.NextKey(mw.RKey()), Range: rdma.MemRange{Addr: mr.Addr(),
			Length: 8, LKey: mr.LKey(), Access: rdma.RemoteRead}},
		{Op: rdma.OpRegMR, RKey: rdma.NextKey(fast.RKey()), Range: rdma.MemRange{Addr: mr.Addr(),
			Length: 8, LKey: mr.LKey(), Access: rdma.RemoteRead}},
	} {
		wr.Flags = rdma.Signaled
		check(t, a.qp.PostSend(&wr))
		if wc := next(t, a.scq); wc.Status != rdma.WCSuccess {
			t.Fatalf("%+v", wc)
		}
	}
	if err := mr.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("a region with a window: %v", err)
	}
	if err := a.pd.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("a PD with all that: %v", err)
	}
	check(t, a.dev.Close())
	check(t, b.dev.Close())
	needtest.Eventually(t, "nothing is left", func() bool { return h.loop.Objects() == 0 })
}

// A request that is accepted when its device has been closed is refused, and the client's other
// device does not notice.
func TestClientAcceptOnClosedDevice(t *testing.T) {
	h := newHost(t)
	c := h.dial()
	a, stays, b := newNode(t, must(c.Open("loop0"))(t), 4), newNode(t, must(c.Open("loop0"))(t), 4),
		newNode(t, h.open("loop1"), 4)
	ctx := testContext(t)
	l := must(a.dev.Listen(addrPort(a, 0), 1))(t)
	errs := make(chan error)
	go func() { _, err := b.dev.Connect(ctx, b.qp, l.Addr(), rdma.ConnParam{}); errs <- err }()
	r := must(l.Next(ctx))(t)
	check(t, a.dev.Close())
	if _, err := r.Accept(ctx, a.qp, rdma.ConnParam{}); err == nil {
		t.Error("accepted")
	}
	if err := <-errs; err == nil {
		t.Error("connected")
	}
	connect(t, stays, newNode(t, b.dev, 4))
}
