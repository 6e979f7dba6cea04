package shm_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
)

func addrPort(n *node, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(n.dev.Attr().Addrs[0].Addr(), port)
}

func TestClientConnectFails(t *testing.T) {
	h := newHost(t)
	a, b := newNode(t, h.open("loop0"), 4), newNode(t, h.open("loop1"), 4)
	ctx := testContext(t)
	dial := func(port uint16) error {
		_, err := a.dev.Connect(ctx, a.qp, addrPort(b, port), rdma.ConnParam{})
		return err
	}
	var ce interface{ Unwrap() []error }
	if err := dial(5); !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &ce) {
		t.Errorf("nothing listens: %v", err)
	}
	if err := dial(2); !errors.Is(err, syscall.ETIMEDOUT) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody answers: %v", err)
	}
	if err := dial(0); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("port 0: %v", err)
	}
	if _, err := a.dev.Connect(ctx, b.qp, addrPort(b, 5), rdma.ConnParam{}); !errors.Is(err,
		rdma.ErrInvalid) {
		t.Errorf("QP of another device: %v", err)
	}
	if _, err := a.dev.Connect(ctx, a.qp, addrPort(b, 5), rdma.ConnParam{
		PrivateData: make([]byte, 600)}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("600 octets of private data: %v", err)
	}
	if _, err := a.dev.Connect(ctx, a.qp, addrPort(b, 5), rdma.ConnParam{
		Protocol: rdma.ROI + 1}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("an unknown protocol: %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	errs := make(chan error)
	l := must(b.dev.Listen(addrPort(b, 0), 0))(t)
	go func() {
		_, err := a.dev.Connect(short, a.qp, l.Addr(), rdma.ConnParam{})
		errs <- err
	}()
	r := must(l.Next(ctx))(t)
	objects := h.loop.Objects()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled connect: %v", err)
	}
	// It does not wait for the daemon, which hears of it and of the accept from two clients.
	needtest.Eventually(t, "its id is gone", func() bool { return h.loop.Objects() < objects })
	if _, err := r.Accept(ctx, b.qp, rdma.ConnParam{}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("accept of a connect that was given up: %v", err)
	}
	// The program at the other end says no.
	go func() { errs <- dial(l.Addr().Port()) }()
	r = must(l.Next(ctx))(t)
	if r.LocalAddr() != l.Addr() || r.RemoteAddr().Addr() != a.dev.Attr().Addrs[0].Addr() {
		t.Errorf("request from %v to %v", r.RemoteAddr(), r.LocalAddr())
	}
	check(t, r.Reject([]byte("not you")))
	var rej *rdma.RejectedError
	if err := <-errs; !errors.As(err, &rej) || string(rej.PrivateData) != "not you" {
		t.Errorf("rejected: %v", err)
	}
	if err := r.Reject(nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("second answer: %v", err)
	}
	// A listener that closes refuses what waits.
	go func() { errs <- dial(l.Addr().Port()) }()
	needtest.Eventually(t, "a request waits", func() bool { return h.loop.Objects() >= 15 })
	check(t, l.Close())
	if err := <-errs; !errors.As(err, &rej) {
		t.Errorf("listener closed: %v", err)
	}
	if _, err := l.Next(ctx); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("next of a closed listener: %v", err)
	}
	// All that was for nothing: the QPs connect.
	connect(t, a, b)
}

func TestClientListen(t *testing.T) {
	h := newHost(t)
	d := h.open("loop0")
	ctx := testContext(t)
	l := must(d.Listen(netip.MustParseAddrPort("0.0.0.0:7174"), 3))(t)
	if l.Addr() != netip.MustParseAddrPort("0.0.0.0:7174") {
		t.Errorf("listens on %v", l.Addr())
	}
	if _, err := d.Listen(l.Addr(), 3); !errors.Is(err, rdma.ErrBusy) ||
		!errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
	for _, s := range []string{"10.9.0.2:1", "8.8.8.8:1"} { // loop1's, and nobody's
		if _, err := d.Listen(netip.MustParseAddrPort(s), 1); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("listen on %s: %v", s, err)
		}
	}
	if _, err := d.Listen(netip.AddrPort{}, 1); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("listen on nothing: %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	errs := make(chan error, 2)
	go func() { _, err := l.Next(short); errs <- err }()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("next, cancelled: %v", err)
	}
	go func() { _, err := l.Next(ctx); errs <- err }()
	check(t, d.Close())
	if err := <-errs; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("next on a closed device: %v", err)
	}
}

// DISCONNECTED comes once per side, also for the one that asked, and what was posted has been
// flushed when it comes (V12).
func TestClientDisconnect(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(8)
	for i := range 3 {
		check(t, a.qp.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{a.sge(0, 8)}}))
		check(t, b.qp.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{b.sge(0, 8)}}))
	}
	if a.conn.Err() != nil {
		t.Errorf("Err of a live connection: %v", a.conn.Err())
	}
	check(t, a.conn.Disconnect())
	wc := make([]rdma.WC, 8)
	for _, n := range []*node{a, b} {
		select {
		case <-n.conn.Done():
		case <-testContext(t).Done():
			t.Fatal("never done")
		}
		if n.conn.Err() != nil {
			t.Errorf("graceful end: %v", n.conn.Err())
		}
		got := must(n.rcq.Poll(wc))(t)
		if got != 3 || wc[2].ID != 2 || wc[2].Status != rdma.WCFlush || wc[2].QPN != n.qp.Num() {
			t.Errorf("%d completions: %+v", got, wc[:got])
		}
		if n.qp.State() != rdma.QPError {
			t.Errorf("QP is %v", n.qp.State())
		}
		check(t, n.conn.Disconnect()) // does nothing
		// What is posted now is taken and flushed.
		check(t, n.qp.PostSend(&rdma.SendWR{ID: 5, Op: rdma.OpSend, Flags: rdma.Inline,
			Inline: []byte{1}}))
		if wc := next(t, n.scq); wc.ID != 5 || wc.Status != rdma.WCFlush {
			t.Errorf("post on a QP in Error: %+v", wc)
		}
		check(t, n.qp.PostRecv(&rdma.RecvWR{ID: 6}))
		if wc := next(t, n.rcq); wc.ID != 6 || wc.Status != rdma.WCFlush {
			t.Errorf("receive on a QP in Error: %+v", wc)
		}
	}
	needtest.Eventually(t, "ids are given back", func() bool { return h.loop.Objects() == 2*6 })
}

func TestClientEndsOfConnections(t *testing.T) {
	h := newHost(t)
	done := func(what string, n *node) error {
		t.Helper()
		select {
		case <-n.conn.Done():
			return n.conn.Err()
		case <-testContext(t).Done():
			t.Fatalf("%s: the connection never ended", what)
			return nil
		}
	}
	a, b := h.pair(4)
	h.loop.Terminate(a.qp.Num(), 0x1100)
	var te *rdma.TerminateError
	if err := done("terminate", a); !errors.As(err, &te) || !te.Remote || te.VendorErr() != 0x1100 ||
		te.Text != "invalid STag" {
		t.Errorf("terminated: %v", err)
	}
	done("terminate", b)

	a, b = h.pair(4)
	check(t, a.qp.Abort())
	done("abort", a)
	done("abort", b)
	if a.qp.State() != rdma.QPError {
		t.Errorf("aborted QP is %v", a.qp.State())
	}

	a, b = h.pair(4)
	check(t, a.qp.Close())
	if err := done("close QP", a); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("QP closed: %v", err)
	}
	if err := done("close QP", b); err != nil {
		t.Errorf("peer of a closed QP: %v", err)
	}

	a, b = h.pair(4)
	check(t, a.dev.Close())
	if err := done("close device", a); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("device closed: %v", err)
	}
	done("close device", b)

	a, b = h.pair(4)
	check(t, a.dev.Client().Close())
	if err := done("close client", a); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("client closed: %v", err)
	}
	done("close client", b)
	b.dev.Close()

	// Both ends in one session.
	d := h.open("loop0")
	a, b = h.pairOf(d, must(d.Client().Open("loop1"))(t), 4)
	send(t, a, b, rdma.Signaled)
	next(t, b.rcq)
	check(t, b.conn.Disconnect())
	done("one session", a)
	done("one session", b)
}
