package server

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// asleep waits until the doorbell's thread has announced itself to sleep.
func (c *rawClient) asleep(ts *testServer) {
	ts.t.Helper()
	ts.want("the doorbell's thread sleeps",
		func() bool { return abi.Word(c.page, abi.SessSleeping).Load() == 1 })
}

// postQuietly posts n requests from id on and sets their bell, but does not wake who sleeps.
func (q *rawQP) postQuietly(t *testing.T, c *rawClient, id uint64, n int) {
	t.Helper()
	for i := range n {
		if err := q.m.SQ.Put(&abi.SendWQE{WRID: id + uint64(i), Op: 2, Flags: abi.SQSignaled}); err !=
			nil {
			t.Fatal(err)
		}
	}
	q.m.SQ.Commit()
	abi.Word(c.page, abi.SessHeaderLen+4*(q.bell>>5)).Or(1 << (q.bell & 31))
}

// wantCompletions takes n, from id on, in their order.
func (q *rawQP) wantCompletions(ts *testServer, id uint64, n int) {
	ts.t.Helper()
	for i := range n {
		var e abi.CQE
		ts.want("a completion", func() bool {
			ok, err := q.c.Poll(&e)
			if err != nil {
				ts.t.Fatal(err)
			}
			return ok
		})
		if e.WRID != id+uint64(i) {
			ts.t.Fatalf("completion of %d, want %d", e.WRID, id+uint64(i))
		}
	}
}

// lingering is a session with a QP, for which somebody may linger.
func lingering(t *testing.T) (*testServer, *rawClient, *rawQP, *Session) {
	ts := newServer(t)
	c := ts.client()
	return ts, c, c.newQP(), ts.session()
}

// bring is what one who brings something does; it reports whether it has lingered.
func bring(s *Session, more func() bool, cqs ...*ring.CQProducer) bool {
	if !s.Expect(cqs...) {
		return false
	}
	s.Linger(more)
	return true
}

// docs/abi.md#waiting: who lingers deals with bells that nobody was woken for, all of what is
// behind them, and the thread that sleeps is woken as before afterwards.
func TestLinger(t *testing.T) {
	ts, c, q, s := lingering(t)
	for id := uint64(10); id < 100; id += 10 {
		c.asleep(ts)
		q.postQuietly(t, c, id, 3) // the fake takes one at a time, so that two are left over
		// The thread may find the bell as it looks for the last time before it sleeps: then the next few
		// do not linger.
		for i := 0; i < 1<<lingerFails && !bring(s, nil); i++ {
		}
		q.wantCompletions(ts, id, 3)
		q.roundTrip(t, id+5)
	}
}

// docs/abi.md#waiting: from Expect on nobody is woken for a bell, and Linger finds it.
func TestLingerExpects(t *testing.T) {
	ts, c, q, s := lingering(t)
	c.asleep(ts)
	if !s.Expect() {
		t.Fatal("it does not linger")
	}
	if abi.Word(c.page, abi.SessSleeping).Load() != 0 {
		t.Error("who rings now would wake the doorbell's thread")
	}
	if s.Expect() {
		t.Error("two linger")
	}
	q.postQuietly(t, c, 1, 1)
	s.Linger(nil)
	q.wantCompletions(ts, 1, 1)
	c.asleep(ts)
}

// A program that waits for an event where something is brought is not waited for; one that waits
// for another event is.
func TestLingerBlocked(t *testing.T) {
	ts, c, q, s := lingering(t)
	other := c.newQP()
	ring, otherRing := ringOf(s, q), ringOf(s, other)
	q.c.Arm(false)
	if bring(s, nil, otherRing, ring) {
		t.Error("it lingers for a program that waits for an event")
	}
	ts.want("it lingers where another event is waited for",
		func() bool { return bring(s, nil, otherRing) })
	q.roundTrip(t, 1) // its completion is the event
	ts.want("it lingers for one that polls", func() bool { return bring(s, nil, ring, otherRing) })

	// A message may come while the QP ends, and its CQ with it.
	other.c.Arm(false)
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: other.qp}, nil)
	c.do(rpc.OpDestroyCQ, &rpc.HandleRequest{Handle: other.cq}, nil)
	ts.want("it lingers where a CQ has gone", func() bool { return bring(s, nil, otherRing) })
}

// ringOf is the daemon's end of q's completion queue.
func ringOf(s *Session, q *rawQP) *ring.CQProducer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cqs.m[q.cq].ring
}

// Linger ends when there is more to bring, which it looks for also behind an answer.
func TestLingerMore(t *testing.T) {
	ts, c, q, s := lingering(t)
	for id := uint64(1); id < 20; id++ {
		c.asleep(ts)
		if !s.Expect() {
			t.Fatal("it does not linger although that pays")
		}
		answered := id%2 == 0
		if answered {
			q.postQuietly(t, c, id, 1)
		}
		looks := 0
		s.Linger(func() bool { looks++; return true })
		if looks != 1 {
			t.Fatalf("answered %v: it has looked %d times for more", answered, looks)
		}
		if answered {
			q.wantCompletions(ts, id, 1)
		}
	}
}

// A program that rings all the time does not keep who lingers.
func TestLingerEnds(t *testing.T) {
	ts, c, q, s := lingering(t)
	c.asleep(ts)
	if !s.Expect() {
		t.Fatal("it does not linger")
	}
	const many = 100 * lingerBells // the doorbell's thread may find some
	looks := 0
	s.Linger(func() bool {
		looks++
		abi.Word(c.page, abi.SessHeaderLen+4*(q.bell>>5)).Or(1 << (q.bell & 31))
		return looks == many
	})
	if looks == many {
		t.Errorf("it has dealt with %d bells, want %d", looks, lingerBells)
	}
	q.roundTrip(t, 1)
}

// onBells has f rung by n bells, from bell 8 on, and returns how to ring one without waking
// anybody. here says that it is the goroutine of the test that rings.
func onBells(c *rawClient, s *Session, n int, f func(bell int, here bool) (more bool)) (
	ring func(bell int)) {
	runtime.LockOSThread() // until the test ends
	tid := unix.Gettid()
	for i := 8; i < 8+n; i++ {
		s.page.Use(uint32(i))
		s.bellObjs[i].Store(&bellObj{number: uint32(i), f: func(func() bool) bool {
			return f(i, unix.Gettid() == tid)
		}})
	}
	return func(i int) { abi.Word(c.page, abi.SessHeaderLen+4*uint32(i>>5)).Or(1 << (i & 31)) }
}

// Nor does one whose bell is rung again while it is dealt with, each time; another goroutine goes
// on with it.
func TestLingerRungAgain(t *testing.T) {
	ts, c, q, s := lingering(t)
	var over atomic.Bool
	var atHere, elsewhere atomic.Int64
	var ring func(int)
	ring = onBells(c, s, 1, func(bell int, here bool) bool {
		n := &elsewhere
		if here {
			n = &atHere
		}
		if n.Add(1) < 1000 && !over.Load() {
			ring(bell)
		}
		return false
	})
	c.asleep(ts)
	if !s.Expect() {
		t.Fatal("it does not linger")
	}
	ring(8)
	s.Linger(func() bool { return false })
	if n := atHere.Load(); n > lingerBells { // the doorbell's thread may have some or all
		t.Errorf("it has dealt with %d bells, want %d", n, lingerBells)
	}
	ts.want("others deal with what it leaves", func() bool { return elsewhere.Load() > 10 })
	over.Store(true)
	c.asleep(ts)
	q.roundTrip(t, 1)
	ts.want("it lingers again", func() bool { return bring(s, nil) })
}

// Of many bells at once it deals with a few, and each of the others has its turn elsewhere.
func TestLingerManyBells(t *testing.T) {
	ts, c, q, s := lingering(t)
	const many = 100
	var atHere, rung atomic.Int64
	ring := onBells(c, s, many, func(_ int, here bool) bool {
		if here {
			atHere.Add(1)
		}
		rung.Add(1)
		return false
	})
	c.asleep(ts)
	if !s.Expect() {
		t.Fatal("it does not linger")
	}
	for i := range many {
		ring(8 + i)
	}
	s.Linger(nil)
	if n := atHere.Load(); n > lingerBells {
		t.Errorf("it has dealt with %d bells, want %d", n, lingerBells)
	}
	ts.want("each is rung", func() bool { return rung.Load() == many })
	q.roundTrip(t, 1)
}

// Who lingers does not wait for another that rings the same bell, and what is behind it is not
// lost.
func TestLingerBusyBell(t *testing.T) {
	ts, c, q, s := lingering(t)
	var rung atomic.Int64
	ring := onBells(c, s, 1, func(int, bool) bool { return rung.Add(1) < 3 })
	c.asleep(ts)
	if !s.Expect() {
		t.Fatal("it does not linger")
	}
	b := s.bellOf(8)
	b.mu.Lock()
	ring(8)
	done := make(chan struct{})
	go func() { defer close(done); s.Linger(nil) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
	b.mu.Unlock()
	ts.want("it is rung, and what is left over, too", func() bool { return rung.Load() == 3 })
	q.roundTrip(t, 1)
}

// One that finds nothing gives the bells back, and soon seldom tries; what it finds at last has it
// try each time again.
func TestLingerInVain(t *testing.T) {
	ts, c, q, s := lingering(t)
	l := &s.linger
	for range 1000 {
		c.asleep(ts)
		bring(s, nil)
	}
	if l.forAnswer.fails != lingerFails {
		t.Errorf("%d fails, want %d", l.forAnswer.fails, lingerFails)
	}
	q.roundTrip(t, 1)
	// The thread may still be about to look for the last time before it sleeps, and find the bell
	// itself.
	for id := uint64(2); l.forAnswer.fails != 0; id++ {
		c.asleep(ts)
		q.postQuietly(t, c, id, 1)
		for i := 0; i < 1<<lingerFails && l.forAnswer.fails != 0; i++ {
			bring(s, nil)
		}
		q.wantCompletions(ts, id, 1)
	}
	if !l.forAnswer.due() {
		t.Error("after a find it does not linger")
	}
}

// Nor does it look for more behind each answer where none comes; answers it looks for as before.
func TestLingerBehindInVain(t *testing.T) {
	ts, c, q, s := lingering(t)
	l := &s.linger
	answers, looked := 0, 0
	for id := uint64(0); l.forMore.fails < lingerFails; id++ {
		c.asleep(ts)
		q.postQuietly(t, c, id, 1)
		was := l.forMore
		for i := 0; i < 1<<lingerFails && !bring(s, func() bool { return false }); i++ {
		}
		// Not if the thread has found the bell, as it looked for the last time before it slept.
		if l.forMore != was {
			answers++
		}
		if l.forMore.fails != was.fails {
			looked++
		}
		q.wantCompletions(ts, id, 1)
	}
	// Between the first and the last are 1, 3, 7, 15 and 31 behind which it does not look.
	if want := 1<<lingerFails - 1; looked != lingerFails || answers != want {
		t.Errorf("it has looked for more behind %d of %d answers, want %d of %d", looked, answers,
			lingerFails, want)
	}
}

// Lingering beside the doorbell's thread loses nothing, and when the session has ended it touches
// nothing.
func TestLingerBesideAll(t *testing.T) {
	ts, c, q, s := lingering(t)
	stop, done := make(chan struct{}), make(chan struct{})
	for range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				select {
				case <-stop:
					return
				default:
					bring(s, func() bool { return false })
				}
			}
		}()
	}
	for id := range uint64(300) {
		q.roundTrip(t, id)
	}
	c.close()
	ts.want("the session is gone", func() bool { return ts.srv.Stats().Sessions == 0 })
	close(stop)
	<-done
	<-done
	if s.Expect() {
		t.Error("it lingers for a session that is gone")
	}
}

// A trial that fails is done half as often each time, and again each time when it has done well.
func TestTrial(t *testing.T) {
	var tr trial
	for round := range lingerFails + 3 {
		want := 0
		if round > 0 {
			want = 1<<min(round, lingerFails) - 1
		}
		skipped := 0
		for !tr.due() {
			skipped++
		}
		if skipped != want {
			t.Errorf("after %d fails %d are skipped, want %d", round, skipped, want)
		}
		tr.done(false)
	}
	tr.done(true)
	for range 2 {
		if !tr.due() {
			t.Error("it is not due although it has done well")
		}
	}
}
