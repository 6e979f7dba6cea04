package ring_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A pairTest is a pair of two QPs with four receives each, of which the test is both programs.
type pairTest struct {
	t    *testing.T
	pair *ring.Pair
	qps  [2]*ring.DaemonQP
	mems [2][]byte
	cq   []byte // of the second
	ends [2]ring.PairEnd
	mem  []byte
	dir  []byte // from the first QP to the second
	gone atomic.Bool
	// how often it was asked whether a program is gone, as at each look for a sender to go on
	looks atomic.Int64
	woke  chan struct{}
	bad   []error
	// flushes says that the second QP flushes what is posted
	flushes atomic.Bool
	// what the ends were told
	sent, received ring.Traffic
}

const pairDepth = 4

func newPairTest(t *testing.T, used uint32) *pairTest {
	t.Helper()
	p := &pairTest{t: t, woke: make(chan struct{}, 1)}
	caps, ok := rpc.QPCaps{MaxSendWR: pairDepth, MaxRecvWR: pairDepth}.Round(16, false)
	if !ok {
		t.Fatal("caps")
	}
	for i := range p.qps {
		l := caps.Layout()
		p.mems[i] = make([]byte, l.Size())
		p.qps[i] = ring.NewDaemonQP(p.mems[i], l, 1, func(err error) { t.Error(err) })
		p.qps[i].SetQPN(uint32(i) + 1)
		p.ends[i] = ring.PairEnd{Rings: p.qps[i], Covered: true, Gone: p.isGone,
			Wake: func() { p.woke <- struct{}{} }, Flushes: p.flushes.Load,
			Bad:      func(err error) { p.bad = append(p.bad, err) },
			Sent:     func(n ring.Traffic) { add(&p.sent, n) },
			Received: func(n ring.Traffic) { add(&p.received, n) }}
	}
	p.cq = make([]byte, ring.CQMemSize(pairDepth))
	p.ends[1].RecvCQ = ring.NewCQProducer(p.cq, pairDepth, 1, nil, nil)
	p.mem = make([]byte, ring.PairMemSize(&p.ends))
	p.pair = ring.NewPair(p.mem, &p.ends)
	p.pair.Attach()
	p.dir = p.mem[abi.Word(p.mem, abi.PairOff).Load():]
	if used != 0 { // as if so many had gone by
		for _, n := range []uint32{used / 2, used} {
			p.post(n)
			p.word(abi.DirRecvDone).Store(n)
			if p.take() {
				t.Fatal("a receive that is used was taken")
			}
		}
	}
	return p
}

func (p *pairTest) isGone() bool {
	p.looks.Add(1)
	return p.gone.Load()
}

func add(sum *ring.Traffic, n ring.Traffic) {
	sum.Messages += n.Messages
	sum.Octets += n.Octets
	sum.Solicited += n.Solicited
}

func (p *pairTest) word(off uint32) *atomic.Uint32 { return abi.Word(p.dir, off) }

// post has the second program have posted so many receives.
func (p *pairTest) post(n uint32) { abi.Word(p.mems[1], abi.QPRQProd).Store(n) }

// stamp is the sender's of receive i.
func (p *pairTest) stamp(i uint32) {
	off := abi.DirSlots(pairDepth) + i%pairDepth*abi.SlotLen
	p.word(off + abi.SlotStamp).Store(i + 1)
}

// take has the daemon take the next receive.
func (p *pairTest) take() bool {
	p.t.Helper()
	var w abi.RecvWQE
	ok, err := p.qps[1].RQ.Next(&w)
	if err != nil {
		p.t.Fatal(err)
	}
	return ok
}

func (p *pairTest) head() uint32 { return abi.Word(p.mems[1], abi.QPRQHead).Load() }

func (p *pairTest) wantHead(n uint32) {
	p.t.Helper()
	if got := p.head(); got != n {
		p.t.Fatalf("rq_head is %d, want %d", got, n)
	}
}

// docs/direct.md#owner: the daemon goes on behind the receives that the sender has used, also when
// their numbers have come round meanwhile (docs/decisions.md#X6).
func TestPairTakeOver(t *testing.T) {
	for _, used := range []uint32{0, 7, 1<<31 + 5, 1<<32 - 2} {
		p := newPairTest(t, used)
		d := &p.pair.Dirs[0]
		d.Open()
		if got := p.word(abi.DirRecvBase).Load(); got != used || p.word(abi.DirOpen).Load() == 0 {
			t.Fatalf("open with recv_base %d, want %d", got, used)
		}
		p.post(used + pairDepth)
		p.word(abi.DirRecvDone).Store(used + 3)
		if !p.take() || p.take() {
			t.Fatal("one receive is left, not another number")
		}
		p.wantHead(used + pairDepth)
		p.qps[0].SQ.Retire(0)
		if got := p.word(abi.DirRecvBase).Load(); got != used+pairDepth {
			t.Errorf("recv_base is %d, want %d", got, used+pairDepth)
		}
		d.Shut()
		if p.word(abi.DirOpen).Load() != 0 || d.IsOpen() {
			t.Error("open behind Shut")
		}
	}
}

// Who waits for a sender that is stopped looks seldom, however long that takes, for its receives as
// for its keys.
func TestStoppedSender(t *testing.T) {
	for name, wait := range map[string]func(p *pairTest, table *ring.KeyTable) <-chan struct{}{
		"receives": func(p *pairTest, _ *ring.KeyTable) <-chan struct{} {
			p.post(pairDepth)
			p.pair.Dirs[0].Shut()
			if p.take() {
				t.Error("a receive that the sender may be about to use was taken")
			}
			return p.woke
		},
		"keys": func(_ *pairTest, table *ring.KeyTable) <-chan struct{} {
			over := make(chan struct{})
			place, _ := table.Publish(&ring.Key{Key: 1234, Mem: 1, Length: 1})
			table.End(place, func() { close(over) })
			return over
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, table, _ := keyTest(t)
				p.word(abi.DirSeq).Store(5)
				over := wait(p, table)
				const seconds = 60
				time.Sleep(seconds * time.Second)
				if n := p.looks.Load(); n < 10*seconds || n > 5000 {
					t.Errorf("%d looks in %d seconds", n, seconds)
				}
				p.word(abi.DirSeq).Store(6)
				<-over
			})
		})
	}
}

// A sender that may not have seen that its direction is closed keeps its receives until it goes on.
func TestPairShutAwaits(t *testing.T) {
	p := newPairTest(t, 0)
	d := &p.pair.Dirs[0]
	d.Open()
	p.post(pairDepth)
	p.word(abi.DirSeq).Store(5)
	d.Shut()
	if p.take() {
		t.Fatal("a receive that the sender may be about to use was taken")
	}
	p.stamp(0)
	p.word(abi.DirRecvDone).Store(1)
	p.word(abi.DirSeq).Store(7) // the next one: it has seen it
	select {
	case <-p.woke:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody has looked again")
	}
	if !p.take() {
		t.Fatal("no receive")
	}
	p.wantHead(2)
}

// docs/direct.md#death: for a sender that stands still receives that are to be flushed are kept a
// second, and no others are given out. What it has stamped by then has come; what it says later is
// not heeded, also when there are receives again. What its keys give it keeps.
func TestPairStandsStill(t *testing.T) {
	for _, stamped := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPairTest(t, 0)
			d := &p.pair.Dirs[0]
			keys := ring.NewKeyTable(make([]byte, ring.KeyTableLen))
			keys.Join(d)
			place, _ := keys.Publish(&ring.Key{Key: 0x100, Mem: 1})
			d.Open()
			p.post(pairDepth)
			p.word(abi.DirSeq).Store(5)
			if stamped {
				p.stamp(0)
			}
			d.Shut()
			var ended atomic.Bool
			keys.End(place, func() { ended.Store(true) })
			if p.take() {
				t.Fatal("a receive that the sender may be about to use was taken")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(p.woke) != 0 || p.qps[1].RQ.Settle() {
				t.Fatal("a receive that nobody flushes is given out")
			}
			p.flushes.Store(true)
			time.Sleep(time.Second)
			<-p.woke
			if p.qps[1].RQ.Settle() {
				t.Error("there can be another pair before the receives are flushed")
			}
			flushed := uint32(0)
			for p.take() {
				flushed++
			}
			if want := uint32(pairDepth); flushed != want && !stamped || stamped && flushed != want-1 {
				t.Errorf("%d receives are flushed of %d", flushed, want)
			}
			p.stamp(0) // it goes on
			p.word(abi.DirRecvDone).Store(1)
			if ended.Load() {
				t.Error("its key is taken from it")
			}
			p.word(abi.DirSeq).Store(6)
			p.post(pairDepth + 1)
			if !p.take() || p.take() || !p.qps[1].RQ.Settle() {
				t.Error("what is posted then is not flushed")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if len(p.bad) > 0 || !ended.Load() {
				t.Errorf("told %v, its key is over: %v", p.bad, ended.Load())
			}
		})
	}
}

// What has been said of receives that are to be flushed is not so of those that are posted when the
// queue pair is used again: they are kept for a sender that stands still.
func TestPairStandsStillReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairTest(t, 0)
		d := &p.pair.Dirs[0]
		d.Open()
		p.word(abi.DirSeq).Store(5)
		d.Shut()
		p.flushes.Store(true)
		if p.qps[1].RQ.Settle() {
			t.Fatal("there can be another pair")
		}
		time.Sleep(2 * time.Second)
		<-p.woke // nothing is posted
		p.flushes.Store(false)
		p.post(pairDepth)
		if p.take() {
			t.Fatal("a receive that nobody flushes is given out")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(p.woke) != 0 {
			t.Error("it is woken, and nothing has changed")
		}
		p.word(abi.DirSeq).Store(6)
		<-p.woke
		if !p.take() {
			t.Error("the sender has gone on")
		}
	})
}

// docs/direct.md#death: what a sender that has died has stamped has come.
func TestPairDeath(t *testing.T) {
	p := newPairTest(t, 6)
	d := &p.pair.Dirs[0]
	d.Open()
	p.post(6 + pairDepth)
	p.word(abi.DirSeq).Store(1)
	p.stamp(6)
	p.stamp(7)
	p.word(abi.DirRecvDone).Store(7)
	p.gone.Store(true)
	d.Shut()
	if !p.take() {
		t.Fatal("no receive to flush")
	}
	p.wantHead(9)
}

// One that has died between a stamp and DirRecvDone is not accused of what its peer has posted
// since it had the message.
func TestPairDeathBehindStamp(t *testing.T) {
	for _, used := range []uint32{6, 1<<32 - 8} {
		p := newPairTest(t, used)
		d := &p.pair.Dirs[0]
		d.Open()
		p.word(abi.DirSeq).Store(1)
		p.stamp(used)
		p.stamp(used + 1)
		p.word(abi.DirRecvDone).Store(used + 1)
		p.post(used + 2 + pairDepth) // the receiver has had both
		p.gone.Store(true)
		d.Shut()
		if !p.take() {
			t.Fatal("no receive to flush")
		}
		p.wantHead(used + 3)
		if len(p.bad) > 0 {
			t.Error(p.bad)
		}
	}
}

// docs/direct.md#trust: more receives than there are cannot be used.
func TestPairBad(t *testing.T) {
	for _, done := range []uint32{3, 1 << 31, 1<<32 - 1, 1<<32 - 5} {
		p := newPairTest(t, 0)
		d := &p.pair.Dirs[0]
		d.Open()
		p.post(2)
		p.word(abi.DirRecvDone).Store(done)
		flushed := 0
		for p.take() {
			flushed++
		}
		if flushed != 2 {
			t.Errorf("%d receives are flushed, want 2", flushed)
		}
		if len(p.bad) != 1 || d.IsOpen() {
			t.Errorf("recv_done %d: told %v, open: %v", done, p.bad, d.IsOpen())
		}
		d.Open()
		if d.IsOpen() {
			t.Error("open again")
		}
	}
}

// What the sender has used it cannot take back: the receiver would get a message for a receive that
// it has had already.
func TestPairTakenBack(t *testing.T) {
	p := newPairTest(t, 0)
	d := &p.pair.Dirs[0]
	d.Open()
	p.post(pairDepth)
	p.word(abi.DirRecvDone).Store(3)
	if !p.take() || p.take() {
		t.Fatal("one receive is left, not another number")
	}
	p.word(abi.DirRecvDone).Store(2)
	p.post(pairDepth + 2)
	for range 2 {
		if !p.take() {
			t.Fatal("a receive is not flushed")
		}
	}
	if p.take() || len(p.bad) != 1 || d.IsOpen() {
		t.Errorf("told %v, open: %v", p.bad, d.IsOpen())
	}
	// Nor can it have used what it does not tell: the receiver has posted more than there is room for.
	p = newPairTest(t, 0)
	p.pair.Dirs[0].Open()
	p.post(pairDepth + 3)
	for range pairDepth {
		if !p.take() {
			t.Fatal("a receive is not flushed")
		}
	}
	if p.take() || len(p.bad) != 1 {
		t.Errorf("told %v", p.bad)
	}
}

// A receiver may not have polled what the daemon has brought before there was a pair: nothing in a
// new one may look like a message for those receives, nor for later ones.
func TestPairIsEmpty(t *testing.T) {
	for _, used := range []uint32{0, 1, 2, pairDepth, 1<<31 + 5, 1<<32 - 2} {
		p := newPairTest(t, 0)
		var w abi.RecvWQE
		for n := uint32(0); used < 100 && n < used; n++ {
			p.post(n + 1)
			if ok, err := p.qps[1].RQ.Next(&w); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if used >= 100 {
			p = newPairTest(t, used)
		}
		clear(p.mem)
		p.pair = ring.NewPair(p.mem, &p.ends)
		for i := used - pairDepth; i != used+pairDepth; i++ {
			slot := abi.DirSlots(pairDepth) + i%pairDepth*abi.SlotLen
			if p.word(slot+abi.SlotStamp).Load() == i+1 {
				t.Errorf("with %d used: a message for receive %d", used, i)
			}
			if i-used < pairDepth && p.word(abi.DirRooms+i%pairDepth*abi.RoomLen).Load() == i+1 {
				t.Errorf("with %d used: receive %d is posted", used, i)
			}
		}
	}
}

// What has gone is told to both ends once, also what was counted last, and nothing is looked at
// when the memory has gone.
func TestPairCounts(t *testing.T) {
	p := newPairTest(t, 0)
	d := &p.pair.Dirs[0]
	d.Open()
	count := func(messages, octets, asked uint64) {
		abi.Word64(p.dir, abi.DirMessages).Store(messages)
		abi.Word64(p.dir, abi.DirOctets).Store(octets)
		abi.Word64(p.dir, abi.DirAsked).Store(asked)
	}
	want := func(messages, octets, asked uint64) {
		t.Helper()
		if w := (ring.Traffic{Messages: messages, Octets: octets, Solicited: asked}); p.sent != w ||
			p.received != w {
			t.Errorf("sent %+v, received %+v, want %+v", p.sent, p.received, w)
		}
	}
	count(3, 1<<33, 1)
	d.Count()
	d.Count()
	want(3, 1<<33, 1)
	count(2, 1<<33+5, 2) // one is taken back: that cannot be
	d.Count()
	want(3, 1<<33+5, 2)
	count(4, 1<<33+5, 2)
	p.pair.End()
	want(4, 1<<33+5, 2)
	clear(p.mem)
	count(100, 100, 100)
	p.word(abi.DirNotify).Store(1)
	d.Count()
	d.Notified() // has no CQ here to tell
	d.Open()
	d.Shut()
	p.post(1)
	if !p.take() {
		t.Error("no receive, and the pair has nothing to say any more")
	}
	want(4, 1<<33+5, 2)
}

// Only a count that has changed raises an event, and only what was asked for.
func TestPairNotified(t *testing.T) {
	for _, test := range []struct {
		word, arm uint32
		want      bool
	}{
		{abi.DirNotify, abi.ArmNext, true},
		{abi.DirNotify, abi.ArmSolicited, false},
		{abi.DirSolicited, abi.ArmSolicited, true},
		{abi.DirSolicited, abi.ArmNext, true},
		{abi.DirSolicited, 0, false},
	} {
		p := newPairTest(t, 0)
		arm := abi.Word(p.cq, abi.CQArm)
		arm.Store(test.arm)
		p.pair.Dirs[0].Notified()
		if arm.Load() != test.arm {
			t.Error("an event without a count")
		}
		p.word(test.word).Add(1)
		p.pair.Dirs[0].Notified()
		if got := arm.Load() == abi.ArmQueued; got != test.want {
			t.Errorf("%d armed %d: event %v, want %v", test.word, test.arm, got, test.want)
		}
	}
}

// After so many messages that the numbers of receives have come round, one that looks taken back is
// not (docs/decisions.md#X6).
func TestPairComesRound(t *testing.T) {
	p := newPairTest(t, 0)
	d := &p.pair.Dirs[0]
	d.Open()
	p.post(pairDepth)
	p.word(abi.DirRecvDone).Store(3)
	abi.Word64(p.dir, abi.DirMessages).Store(3)
	if !p.take() {
		t.Fatal("no receive is left")
	}
	p.word(abi.DirRecvDone).Store(2) // 2^32 - 1 more
	abi.Word64(p.dir, abi.DirMessages).Store(2 + 1<<32)
	p.post(5)
	if !p.take() || len(p.bad) != 0 {
		t.Fatalf("no receive is left: %v", p.bad)
	}
	p.wantHead(3)
}

// A receiver that finds nonsense ends the connection, and once.
func TestPairSpoiled(t *testing.T) {
	p := newPairTest(t, 0)
	d := &p.pair.Dirs[0]
	d.Open()
	d.Heard()
	if len(p.bad) != 0 || !d.IsOpen() {
		t.Fatalf("told %v, open: %v", p.bad, d.IsOpen())
	}
	p.word(abi.DirSpoiled).Store(1)
	for range 2 {
		d.Heard()
	}
	if len(p.bad) != 1 || d.IsOpen() {
		t.Errorf("told %v, open: %v", p.bad, d.IsOpen())
	}
}
