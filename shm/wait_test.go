package shm_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// send makes one message go from a to b.
func send(t testing.TB, a, b *node, flags rdma.SendFlags) {
	t.Helper()
	check(t, b.qp.PostRecv(&rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{b.sge(0, 8)}}))
	check(t, a.qp.PostSend(&rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: flags | rdma.Inline,
		Inline: []byte("x")}))
}

func TestClientArmWait(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(16)
	ctx := testContext(t)

	// Armed, then completed.
	check(t, b.rcq.Arm(false))
	waited := make(chan error, 1)
	go func() { waited <- b.rcq.Wait(ctx) }()
	send(t, a, b, 0)
	check(t, <-waited)
	next(t, b.rcq)

	// Completed while nobody waits: the event is kept.
	check(t, b.rcq.Arm(false))
	send(t, a, b, 0)
	next(t, b.rcq)
	check(t, b.rcq.Wait(ctx))

	// Not armed: no event, however many completions there are.
	send(t, a, b, 0)
	next(t, b.rcq)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := b.rcq.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait without an event: %v", err)
	}

	// Solicited only.
	check(t, b.rcq.Arm(true))
	send(t, a, b, 0)
	next(t, b.rcq)
	short2, cancel2 := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel2()
	if err := b.rcq.Wait(short2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a plain message raised a solicited event: %v", err)
	}
	send(t, a, b, rdma.Solicited)
	check(t, b.rcq.Wait(ctx))
	next(t, b.rcq)

	// One event per Arm, again and again, also with several rounds between two polls.
	for range 200 {
		check(t, b.rcq.Arm(false))
		send(t, a, b, 0)
		check(t, b.rcq.Wait(ctx))
		next(t, b.rcq)
	}
}

func TestClientWaitEnds(t *testing.T) {
	h := newHost(t)
	n := newNode(t, h.open(""), 4)
	ctx, cancel := context.WithCancel(testContext(t))
	const waiters = 8
	errs := make(chan error, waiters)
	for range waiters {
		go func() { errs <- n.scq.Wait(ctx) }()
	}
	cancel()
	for range waiters {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled wait: %v", err)
		}
	}
	if err := n.scq.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with a cancelled context: %v", err)
	}
	for range waiters {
		go func() { errs <- n.scq.Wait(context.Background()) }()
	}
	check(t, n.qp.Close())
	check(t, n.scq.Close())
	for range waiters {
		if err := <-errs; !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("wait on a CQ that was closed: %v", err)
		}
	}
	for range waiters {
		go func() { errs <- n.rcq.Wait(context.Background()) }()
	}
	check(t, n.dev.Close())
	for range waiters {
		if err := <-errs; !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("wait on a device that was closed: %v", err)
		}
	}
}

// More CQs than a session may have channels: waits still find their own events.
func TestClientSharedChannels(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(64)
	const more = 100
	var cqs []rdma.CQ
	for range more {
		cqs = append(cqs, must(b.dev.CreateCQ(4))(t))
	}
	// Two nodes whose receive CQs share a channel: the first and the last of those made late.
	mk := func(rcq rdma.CQ) (*node, *node) {
		x, y := &node{}, &node{}
		*x, *y = *a, *b
		x.qp = must(a.pd.CreateQP(rdma.QPConfig{SendCQ: a.scq, RecvCQ: a.rcq, MaxSendWR: 16, MaxRecvWR: 4,
			MaxInline: 8}))(t)
		y.qp = must(b.pd.CreateQP(rdma.QPConfig{SendCQ: b.scq, RecvCQ: rcq, MaxSendWR: 4, MaxRecvWR: 4}))(
			t)
		y.rcq = rcq
		connect(t, x, y)
		return x, y
	}
	var wg sync.WaitGroup
	for i := 40; i < more; i += 6 {
		x, y := mk(cqs[i])
		wg.Add(2)
		start := make(chan struct{})
		go func() { // the one that waits
			defer wg.Done()
			for range 20 {
				if err := y.rcq.Arm(false); err != nil {
					t.Error(err)
					return
				}
				start <- struct{}{}
				if err := y.rcq.Wait(testContext(t)); err != nil {
					t.Errorf("wait: %v", err)
					return
				}
				next(t, y.rcq)
			}
		}()
		go func() {
			defer wg.Done()
			for range 20 {
				<-start
				send(t, x, y, 0)
			}
		}()
	}
	wg.Wait()
	// CQs with an event that nobody took go, and their channel's other CQs work on.
	x, y := mk(cqs[39])
	check(t, y.rcq.Arm(false))
	send(t, x, y, 0)
	next(t, y.rcq)
	check(t, y.qp.Close())
	check(t, y.rcq.Close())
	for _, cq := range cqs[:39] {
		check(t, cq.Close())
	}
}

// Many goroutines post to one QP, poll one CQ and wait for it, and nothing is lost.
func TestClientManyGoroutines(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(64)
	const posters, each = 6, 300
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var posting, rest sync.WaitGroup
	for i := range posters {
		posting.Add(1)
		go func() {
			defer posting.Done()
			for j := 0; j < each; {
				err := a.qp.PostSend(&rdma.SendWR{ID: uint64(i*each + j), Op: rdma.OpSend,
					Flags: rdma.Signaled | rdma.Inline, Inline: []byte("abc")})
				switch {
				case err == nil:
					j++
				case errors.Is(err, rdma.ErrQueueFull):
					time.Sleep(50 * time.Microsecond) // until there is room
				default:
					t.Error(err)
					return
				}
			}
		}()
	}
	for range 2 {
		rest.Add(1)
		go func() { // posts receives whenever there is room
			defer rest.Done()
			for ctx.Err() == nil {
				if err := b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 8)}}); err != nil {
					if !errors.Is(err, rdma.ErrQueueFull) {
						t.Error(err)
						return
					}
					time.Sleep(50 * time.Microsecond) // until there is room
				}
			}
		}()
	}
	count := func(cq rdma.CQ, done func(rdma.WC) bool) {
		rest.Add(1)
		go func() {
			defer rest.Done()
			wc := make([]rdma.WC, 16)
			for {
				n, err := cq.Poll(wc)
				if err != nil {
					t.Error(err)
					return
				}
				for _, w := range wc[:n] {
					if w.Status != rdma.WCSuccess {
						t.Errorf("%+v", w)
					}
					if done(w) {
						return
					}
				}
				if n != 0 {
					continue
				}
				if err := cq.Arm(false); err != nil {
					t.Error(err)
					return
				}
				if n, _ := cq.Poll(wc[:1]); n == 1 {
					if done(wc[0]) {
						return
					}
					continue
				}
				if err := cq.Wait(ctx); err != nil {
					t.Errorf("wait: %v", err)
					return
				}
			}
		}()
	}
	seen := make(map[uint64]bool)
	sendsDone, recvsDone := make(chan struct{}), make(chan struct{})
	count(a.scq, func(w rdma.WC) bool {
		if seen[w.ID] {
			t.Errorf("send %d completed twice", w.ID)
		}
		seen[w.ID] = true
		if len(seen) == posters*each {
			close(sendsDone)
			return true
		}
		return false
	})
	recvs := 0
	count(b.rcq, func(rdma.WC) bool {
		if recvs++; recvs == posters*each {
			close(recvsDone)
			return true
		}
		return false
	})
	posting.Wait()
	for _, c := range []chan struct{}{sendsDone, recvsDone} {
		select {
		case <-c:
		case <-ctx.Done():
			t.Fatal("completions are missing")
		}
	}
	cancel()
	rest.Wait()
}

func TestClientAllocations(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(64)
	// The Loop runs in this process and allocates: only what happens here while it has nothing to
	// do is counted. A post to a QP in the error state with its bell unanswered is such a thing.
	wr := &rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Inline | rdma.Signaled, Inline: []byte("abc")}
	rr := &rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 8)}}
	bind := &rdma.SendWR{Op: rdma.OpBindMW}
	wc := make([]rdma.WC, 16)
	srq := must(b.pd.CreateSRQ(rdma.SRQConfig{MaxWR: 64}))(t)
	hold := h.loop.Hold()
	defer func() { hold() }()
	for name, f := range map[string]func(){
		"PostSend": func() { check(t, a.qp.PostSend(wr)) },
		"PostRecv": func() { check(t, b.qp.PostRecv(rr)) },
		"BindMW":   func() { check(t, a.qp.PostSend(bind)) },
		"SRQ":      func() { check(t, srq.PostRecv(rr)) },
		"Poll":     func() { a.scq.Poll(wc) },
		"Arm":      func() { a.scq.Arm(false) },
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	hold()
	next(t, a.scq)
	hold = h.loop.Hold()
	if n := testing.AllocsPerRun(5, func() { // with completions in the queue
		if n, err := a.scq.Poll(wc[:1]); n != 1 || err != nil {
			t.Fatalf("poll: %d, %v", n, err)
		}
	}); n != 0 {
		t.Errorf("Poll with completions allocates %v times", n)
	}
}

// One wait after another with the same context does not allocate, also if each blocks. The Loop
// may: what counts is the difference to waits with a context that never ends.
func TestClientWaitAllocations(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(16)
	ctx := testContext(t)
	wr := &rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Inline, Inline: []byte("x")}
	rr := &rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 8)}}
	wc := make([]rdma.WC, 1)
	post := make(chan struct{})
	defer close(post)
	go func() {
		for range post {
			time.Sleep(time.Millisecond) // most likely the other has blocked meanwhile
			if err := a.qp.PostSend(wr); err != nil {
				t.Error(err)
			}
		}
	}()
	allocs := func(ctx context.Context) float64 {
		return testing.AllocsPerRun(50, func() {
			check(t, b.qp.PostRecv(rr))
			check(t, b.rcq.Arm(false))
			post <- struct{}{}
			check(t, b.rcq.Wait(ctx))
			if n, err := b.rcq.Poll(wc); n != 1 || err != nil {
				t.Fatalf("poll: %d, %v", n, err)
			}
		})
	}
	never := allocs(context.Background())
	if n := allocs(ctx); n > never+1 {
		t.Errorf("a wait with a context allocates %v times, without %v", n, never)
	}
}
