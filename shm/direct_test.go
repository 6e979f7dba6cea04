package shm_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
)

// A directEnd is a node that sends messages, of which its peer knows what is in them, and receives
// its peer's.
type directEnd struct {
	*node
	rnd                        *rand.Rand
	wc                         [8]rdma.WC
	sent, completed, wanted    uint64 // messages, completions of them that have come and that will
	ids                        []uint64
	posted, received, messages uint64 // receives, messages that have come, and how many will
	sendOctets, receiveOctets  []byte
	lengths                    []int // of all messages to it
}

const (
	directDepth = 16
	roomOf      = 10000 // of a receive: more than goes directly
)

func newDirectEnd(t testing.TB, n *node, seed uint64, messages int) *directEnd {
	t.Helper()
	e := &directEnd{node: n, rnd: rand.New(rand.NewPCG(seed, 1)), messages: uint64(messages)}
	buf := must(n.dev.AllocBuffer(2 * directDepth * roomOf))(t)
	e.buf, e.mr = buf, must(n.pd.RegisterMemory(buf.Bytes(), allRights))(t)
	e.sendOctets = buf.Bytes()[:directDepth*roomOf]
	e.receiveOctets = buf.Bytes()[directDepth*roomOf:]
	for range messages {
		n := e.rnd.IntN(200)
		switch e.rnd.IntN(8) {
		case 0:
			n = 0
		case 1:
			n = e.rnd.IntN(roomOf)
		case 2:
			n = e.rnd.IntN(4) + 110 // what is in a slot, and a little more
		}
		e.lengths = append(e.lengths, n)
	}
	return e
}

// fill makes octet k of message i.
func fill(b []byte, i uint64) {
	for k := range b {
		b[k] = byte(i*31 + uint64(k)*7 + uint64(k)>>8)
	}
}

// post posts up to n receives, in two SGEs.
func (e *directEnd) post(n int) {
	for ; n > 0 && e.posted < e.messages && e.posted-e.received < directDepth; n-- {
		at := directDepth*roomOf + int(e.posted%directDepth)*roomOf
		first := e.rnd.IntN(60)
		check(e.t, e.qp.PostRecv(&rdma.RecvWR{ID: e.posted, SGEs: []rdma.SGE{e.sge(at, first), e.sge(
			at+first, roomOf-first)}}))
		e.posted++
	}
}

// send posts up to n Sends to the peer to.
func (e *directEnd) send(to *directEnd, n int) {
	for ; n > 0 && e.sent < to.messages; n-- {
		length := to.lengths[e.sent]
		at := int(e.sent%directDepth) * roomOf
		b := e.sendOctets[at:][:length]
		fill(b, e.sent)
		wr := &rdma.SendWR{ID: e.sent, Op: rdma.OpSend}
		if length <= 64 && e.rnd.IntN(2) == 0 {
			wr.Flags, wr.Inline = rdma.Inline, b
		} else {
			k := e.rnd.IntN(length + 1)
			wr.SGEs = []rdma.SGE{e.sge(at, k), e.sge(at+k, length-k)}
		}
		// The memory of those that do not complete is used again when one behind them has.
		if e.sent%4 == 3 || e.rnd.IntN(2) == 0 {
			wr.Flags |= rdma.Signaled
		}
		err := e.qp.PostSend(wr)
		if errors.Is(err, rdma.ErrQueueFull) {
			return
		}
		check(e.t, err)
		if wr.Flags&rdma.Signaled != 0 {
			e.ids = append(e.ids, e.sent)
			e.wanted++
		}
		e.sent++
	}
}

// mayReuse reports whether the memory of the next Send is the program's: none that has it is left.
func (e *directEnd) mayReuse() bool {
	return e.sent < directDepth || len(e.ids) == 0 || e.ids[0] > e.sent-directDepth+3
}

// poll takes completions, and checks them.
func (e *directEnd) poll() {
	t := e.t
	t.Helper()
	n, err := e.rcq.Poll(e.wc[:])
	check(t, err)
	for _, wc := range e.wc[:n] {
		if wc.Status != rdma.WCSuccess || wc.Op != rdma.WCRecv || wc.ID != e.received ||
			wc.QPN != e.qp.Num() {
			t.Fatalf("receive %d: %+v", e.received, wc)
		}
		length := e.lengths[e.received]
		want := make([]byte, length)
		fill(want, e.received)
		at := int(e.received%directDepth) * roomOf
		if wc.ByteLen != uint32(length) || !bytes.Equal(e.receiveOctets[at:][:length], want) {
			t.Fatalf("message %d of %d octets, want %d, or other octets", e.received, wc.ByteLen, length)
		}
		e.received++
	}
	n, err = e.scq.Poll(e.wc[:])
	check(t, err)
	for _, wc := range e.wc[:n] {
		if wc.Status != rdma.WCSuccess || wc.Op != rdma.WCSend || len(e.ids) == 0 || wc.ID != e.ids[0] {
			t.Fatalf("send: %+v, want one of %v", wc, e.ids)
		}
		e.ids = e.ids[1:]
		e.completed++
	}
}

func (e *directEnd) step(to *directEnd) {
	switch e.rnd.IntN(3) {
	case 0:
		e.post(1 + e.rnd.IntN(4))
	case 1:
		if e.mayReuse() {
			e.send(to, 1)
		}
	default:
		e.poll()
	}
}

func (e *directEnd) done(to *directEnd) bool {
	return e.received == e.messages && e.sent == to.messages && len(e.ids) == 0
}

// directPair is two connected ends, whose programs have a direct path.
func directPair(t testing.TB, h *host, seed uint64, messages int) (a, b *directEnd) {
	t.Helper()
	x, y := newNode(t, h.open("loop0"), directDepth), newNode(t, h.open("loop1"), directDepth)
	connect(t, x, y)
	return newDirectEnd(t, x, seed, messages), newDirectEnd(t, y, seed+1, messages)
}

// All messages come, once, in order and whole, whether they go directly or not, and however often
// that changes.
func TestDirect(t *testing.T) {
	for _, test := range []struct {
		name   string
		toggle int // steps between two changes
		direct uint64
	}{{"open", 0, 500}, {"seldom", 400, 200}, {"often", 7, 50}} {
		t.Run(test.name, func(t *testing.T) {
			h := newDirectHost(t)
			const messages = 1000
			a, b := directPair(t, h, 7, messages)
			open := true
			for i := 1; !a.done(b) || !b.done(a); i++ {
				a.step(b)
				b.step(a)
				if test.toggle != 0 && i%test.toggle == 0 {
					open = !open
					h.loop.OpenDirect(open)
				}
				if i > 1000*messages {
					t.Fatalf("no end: %d and %d received, %d and %d sent", a.received, b.received, a.sent, b.sent)
				}
			}
			n := h.loop.Direct()
			t.Logf("%d of %d messages were direct", n, 2*messages)
			if n < test.direct || n >= 2*messages {
				t.Errorf("%d of %d messages were direct", n, 2*messages)
			}
		})
	}
}

// The same where each program runs by itself, and the daemon takes paths away and gives them back
// whenever it likes.
func TestDirectConcurrent(t *testing.T) {
	h := newDirectHost(t)
	const messages = 3000
	a, b := directPair(t, h, 11, messages)
	var wg, toggler sync.WaitGroup
	stop := make(chan struct{})
	toggler.Go(func() {
		for open := false; ; open = !open {
			select {
			case <-stop:
				return
			default:
				h.loop.OpenDirect(open)
				runtime.Gosched()
			}
		}
	})
	for _, e := range [][2]*directEnd{{a, b}, {b, a}} {
		wg.Go(func() {
			for !e[0].done(e[1]) && !t.Failed() {
				e[0].step(e[1])
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	close(stop)
	toggler.Wait()
	if n := h.loop.Direct(); n == 0 || n >= 2*messages {
		t.Errorf("%d of %d messages were direct", n, 2*messages)
	}
}

// sendOne has a send b's next receive something.
func sendOne(t testing.TB, a *node, flags rdma.SendFlags) {
	t.Helper()
	check(t, a.qp.PostSend(&rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: flags | rdma.Inline |
		rdma.Signaled, Inline: []byte("x")}))
}

// directNodes are two nodes whose programs have a direct path: they ask for it when they are
// connected, and the first one again when the second is.
func directNodes(t testing.TB, h *host) (a, b *node) {
	t.Helper()
	a, b = h.pair(16)
	for h.loop.Direct() == 0 {
		check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 8)}}))
		sendOne(t, a, 0)
		next(t, a.scq)
		next(t, b.rcq)
	}
	return a, b
}

// wait waits for the event of an armed CQ, and takes a completion.
func wait(t *testing.T, cq rdma.CQ) rdma.WC {
	t.Helper()
	check(t, cq.Wait(testContext(t)))
	return next(t, cq)
}

// Who waits for an event is told of messages and of Sends that the daemon has not seen; for a
// solicited one only of such.
func TestDirectEvents(t *testing.T) {
	h := newDirectHost(t)
	a, b := directNodes(t, h)
	before := h.loop.Direct()
	for i := range 20 {
		check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 64)}}))
		check(t, b.rcq.Arm(i%2 == 1))
		check(t, a.scq.Arm(false))
		if i%2 == 1 {
			check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 64)}}))
			sendOne(t, a, 0)
			wait(t, a.scq)
			ctx, cancel := context.WithTimeout(testContext(t), time.Millisecond)
			if err := b.rcq.Wait(ctx); err == nil {
				t.Fatal("an event without a solicited message")
			}
			cancel()
			sendOne(t, a, rdma.Solicited)
			wait(t, b.rcq)
			next(t, b.rcq)
			next(t, a.scq)
			continue
		}
		sendOne(t, a, 0)
		wait(t, b.rcq)
		wait(t, a.scq)
	}
	if n := h.loop.Direct() - before; n != 30 {
		t.Errorf("%d messages were direct, want 30", n)
	}
}

// docs/direct.md#sleeping: a message wakes who waits for it, and the daemon hears nothing of it;
// nor is anything left for who arms the CQ again.
func TestDirectWake(t *testing.T) {
	h := newDirectHost(t)
	a, b := directNodes(t, h)
	ctx, cancel := context.WithCancel(testContext(t))
	first := make(chan error, 1)
	go func() { first <- b.rcq.Wait(ctx) }()
	for h.loop.Sleepers() == 0 { // it asks for what the peer wakes it by
		runtime.Gosched()
	}
	cancel()
	if err := <-first; err == nil {
		t.Fatal("an event of a CQ that is not armed")
	}
	before := h.loop.Bells()
	for i := range 50 {
		for range 3 {
			check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 64)}}))
		}
		check(t, b.rcq.Arm(i%2 == 1))
		waited := make(chan error, 1)
		ctx, cancel := context.WithCancel(testContext(t))
		go func() { waited <- b.rcq.Wait(ctx) }()
		if i%2 == 1 {
			sendOne(t, a, 0)
		}
		sendOne(t, a, rdma.Solicited)
		check(t, <-waited)
		sendOne(t, a, rdma.Solicited)
		for range i%2 + 2 {
			next(t, b.rcq)
			next(t, a.scq)
		}
		if i%2 == 0 {
			sendOne(t, a, 0)
			next(t, b.rcq)
			next(t, a.scq)
		}
		if i == 7 {
			go func() { waited <- b.rcq.Wait(ctx) }()
			check(t, b.rcq.Arm(false)) // and what came before it causes no event
			cancel()
			if err := <-waited; !errors.Is(err, context.Canceled) {
				t.Fatalf("an event without a message: %v", err)
			}
		}
		cancel()
	}
	if n := h.loop.Bells() - before; n != 0 {
		t.Errorf("the daemon heard %d bells", n)
	}
}

// Who leaves while it waits, or is waited for, ends no program and no wait but its own.
func TestDirectWakeGone(t *testing.T) {
	h := newDirectHost(t)
	a, b := directNodes(t, h)
	for range 3 {
		check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 64)}}))
	}
	for range 2 {
		check(t, b.rcq.Arm(false))
		waited := make(chan error, 1)
		go func() { waited <- b.rcq.Wait(testContext(t)) }()
		sendOne(t, a, 0)
		check(t, <-waited)
		next(t, b.rcq)
	}
	waited := make(chan error, 1)
	check(t, b.rcq.Arm(false))
	go func() { waited <- b.rcq.Wait(testContext(t)) }()
	check(t, a.qp.Close())
	check(t, <-waited) // what is flushed is an event of the daemon's
	check(t, b.qp.Close())
	check(t, b.rcq.Close())
}

// When the daemon goes, each receive completes once: with what has come, if the daemon has not
// emptied the memory, and then flushed. Sends that were done are.
func TestDirectDeath(t *testing.T) {
	h := newDirectHost(t)
	a, b := directNodes(t, h)
	for i := range 8 {
		check(t, b.qp.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{b.sge(0, 64)}}))
	}
	for i := range 3 {
		check(t, a.qp.PostSend(&rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Inline |
			rdma.Signaled, Inline: []byte("x")}))
	}
	h.srv.Close()
	for _, e := range []struct {
		cq        rdma.CQ
		least, ok int // that succeed
		all       int
		op        rdma.WCOpcode
	}{{b.rcq, 0, 3, 8, rdma.WCRecv}, {a.scq, 3, 3, 3, rdma.WCSend}} {
		var wc [1]rdma.WC
		var got []rdma.WC
		needtest.Eventually(t, "the end", func() bool {
			n, err := e.cq.Poll(wc[:])
			got = append(got, wc[:n]...)
			return errors.Is(err, rdma.ErrDeviceGone)
		})
		if len(got) != e.all {
			t.Fatalf("%d completions, want %d: %+v", len(got), e.all, got)
		}
		flushed := false
		for i, wc := range got {
			ok := wc.Status == rdma.WCSuccess && i < e.ok && !flushed
			flushed = wc.Status == rdma.WCFlush && i >= e.least
			if wc.ID != uint64(i) || wc.Op != e.op || !ok && !flushed {
				t.Errorf("completion %d: %+v", i, wc)
			}
		}
	}
}

// What was done directly behind a request whose completion is lost with the daemon is flushed
// behind it, in order.
func TestDirectUnfinished(t *testing.T) {
	h := newDirectHost(t)
	a, b := directNodes(t, h)
	for range 4 {
		check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, roomOf)}}))
	}
	prod := abi.Word(shm.CQMem(a.scq), abi.CQProd)
	before, sent := prod.Load(), h.loop.Direct()
	for i := range 4 {
		wr := &rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled}
		if i%3 == 0 { // the first and the last are too long to go directly
			wr.SGEs = []rdma.SGE{a.sge(0, roomOf)}
		}
		check(t, a.qp.PostSend(wr))
		next(t, b.rcq) // the daemon has said of the one before that it is over
		if i%3 == 0 {
			needtest.Eventually(t, "the completion",
				func() bool { return prod.Load() == before+1+uint32(i)/3 })
		}
	}
	if n := h.loop.Direct() - sent; n != 2 {
		t.Fatalf("%d of 2 Sends were direct", n)
	}
	prod.Store(before)
	h.srv.Close()
	var wc [1]rdma.WC
	for i := uint64(0); i < 4; {
		n, err := a.scq.Poll(wc[:])
		if n == 0 && err != nil {
			t.Fatalf("%d completions, then %v", i, err)
		}
		if n == 1 {
			if wc[0].ID != i || wc[0].Status != rdma.WCFlush {
				t.Errorf("completion %d: %+v", i, wc[0])
			}
			i++
		}
	}
}

// wrecked expects that b's receives are flushed, and that the connection ends for both, but neither
// session.
func wrecked(t *testing.T, a, b *node, first rdma.WCStatus, receives int) {
	t.Helper()
	for i := range receives {
		wc := next(t, b.rcq)
		want := rdma.WCFlush
		if i == 0 {
			want = first
		}
		if wc.ID != uint64(i) || wc.Status != want {
			t.Errorf("receive %d: %+v, want status %v", i, wc, want)
		}
	}
	for _, n := range []*node{a, b} {
		<-n.conn.Done()
		if st := n.qp.State(); st != rdma.QPError {
			t.Errorf("state %v", st)
		}
		select {
		case <-n.dev.Client().Done():
			t.Error("a session has ended")
		default:
		}
		var wc [1]rdma.WC
		if n, err := n.rcq.Poll(wc[:]); n != 0 || err != nil {
			t.Errorf("%d completions more, %v", n, err)
		}
	}
}

// docs/direct.md#trust: what makes no sense ends the connection, and nothing else.
func TestDirectNonsense(t *testing.T) {
	const posted = 4
	for name, write := range map[string]func(slot []byte){
		"too long for a slot": func(slot []byte) {
			abi.Word(slot, abi.SlotLength).Store(abi.SlotLen)
			abi.Word(slot, abi.SlotSlabOff).Store(abi.NoSlab)
		},
		"too long for the receive": func(slot []byte) {
			abi.Word(slot, abi.SlotLength).Store(65)
			abi.Word(slot, abi.SlotSlabOff).Store(abi.NoSlab)
		},
		"beyond the slab": func(slot []byte) {
			abi.Word(slot, abi.SlotLength).Store(1)
			abi.Word(slot, abi.SlotSlabOff).Store(ring.PairSlab)
		},
		"past the slab's end": func(slot []byte) {
			abi.Word(slot, abi.SlotLength).Store(64)
			abi.Word(slot, abi.SlotSlabOff).Store(ring.PairSlab - 63)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newDirectHost(t)
			a, b := directNodes(t, h)
			for i := range posted {
				check(t, b.qp.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{b.sge(0, 64)}}))
			}
			mem := shm.PairMem(a.qp)
			side := uint32(0)
			if abi.Word(mem, abi.PairQPN).Load() != a.qp.Num() {
				side = 1
			}
			dir := mem[abi.Word(mem, abi.PairOff+4*side).Load():]
			n := abi.Word(mem, abi.PairSlots+4*side).Load()
			used := abi.Word(dir, abi.DirRecvDone).Load()
			slot := dir[abi.DirSlots(n)+used%n*abi.SlotLen:]
			write(slot)
			abi.Word(slot, abi.SlotStamp).Store(used + 1)
			wrecked(t, a, b, rdma.WCFlush, posted)
		})
	}
}

// A region that is there no more is written by nobody, though the sender was told of a receive in
// it: the connection ends as it does with the daemon.
func TestDirectDeregistered(t *testing.T) {
	h := newDirectHost(t)
	a, b := directNodes(t, h)
	b.buf.Bytes()[0] = 0
	for i := range 3 {
		check(t, b.qp.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{b.sge(0, 64)}}))
	}
	check(t, b.mr.Close())
	sendOne(t, a, 0)
	wrecked(t, a, b, rdma.WCLocProt, 3)
	if b.buf.Bytes()[0] != 0 {
		t.Error("it was written")
	}
}

// What is wrong with a Send is the daemon's to say, and it says what it always does.
func TestDirectErrors(t *testing.T) {
	for name, spoil := range map[string]func(s *rdma.SGE){
		"key":    func(s *rdma.SGE) { s.LKey++ },
		"before": func(s *rdma.SGE) { s.Addr-- },
		"behind": func(s *rdma.SGE) { s.Addr += 1<<16 - 63 },
	} {
		t.Run(name, func(t *testing.T) {
			h := newDirectHost(t)
			a, b := directNodes(t, h)
			check(t, b.qp.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 64)}}))
			sge := a.sge(0, 64)
			spoil(&sge)
			check(t, a.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend, SGEs: []rdma.SGE{sge}}))
			if wc := next(t, a.scq); wc.Status != rdma.WCLocProt {
				t.Errorf("%+v", wc)
			}
			if wc := next(t, b.rcq); wc.Status != rdma.WCFlush {
				t.Errorf("%+v", wc)
			}
		})
	}
}

// A QP has no path where its program does not ask for it, and one that has none goes on as it is.
func TestDirectOneSided(t *testing.T) {
	h := newDirectHost(t)
	x, y := h.open("loop0"), h.open("loop1")
	a, b := newNode(t, x, 16), newNode(t, y, 16)
	b.qp.Close()
	srq := must(b.pd.CreateSRQ(rdma.SRQConfig{MaxWR: 16}))(t)
	b.qp = must(b.pd.CreateQP(rdma.QPConfig{SendCQ: b.scq, RecvCQ: b.rcq, MaxSendWR: 16, SRQ: srq}))(t)
	connect(t, a, b)
	for range 300 { // a asks again meanwhile
		check(t, srq.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 64)}}))
		sendOne(t, a, 0)
		next(t, a.scq)
		next(t, b.rcq)
	}
	if n := h.loop.Direct(); n != 0 {
		t.Errorf("%d messages were direct", n)
	}
}

// A message that goes directly allocates nothing.
func TestDirectAllocations(t *testing.T) {
	t.Run("few", func(t *testing.T) {
		h := newDirectHost(t)
		a, b := directNodes(t, h)
		allocations(t, h, a, b)
	})
	t.Run("many", func(t *testing.T) {
		m := newMany(t, 20)
		last := len(m.ends[0]) - 1
		allocations(t, m.host, m.ends[0][last], m.ends[1][last])
	})
}

func allocations(t *testing.T, h *host, a, b *node) {
	t.Helper()
	var wc [4]rdma.WC
	rr := &rdma.RecvWR{SGEs: []rdma.SGE{b.sge(0, 1024)}}
	wr := &rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{a.sge(0, 512)}}
	allocs := testing.AllocsPerRun(1000, func() {
		check(t, b.qp.PostRecv(rr))
		check(t, a.qp.PostSend(wr))
		if n, err := b.rcq.Poll(wc[:]); n != 1 || err != nil {
			t.Fatalf("poll: %d, %v", n, err)
		}
		if n, err := a.scq.Poll(wc[:]); n != 1 || err != nil {
			t.Fatalf("poll: %d, %v", n, err)
		}
	})
	if n := h.loop.Direct(); allocs != 0 || n < 1000 {
		t.Errorf("%v allocations a message, %d were direct", allocs, n)
	}
}
