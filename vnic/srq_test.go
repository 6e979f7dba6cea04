package vnic_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A pool is an SRQ with the peers that take from it, and one peer for each of these.
type pool struct {
	*vnic.SRQ
	pd     *vnic.PD
	mr     rdma.MR
	buf    []byte
	xs, ys []*vnictest.Peer // xs send, ys receive
}

// newPool makes an SRQ of c.
func newPool(t *testing.T, c *vnic.Context, o vnic.SRQOptions) *pool {
	t.Helper()
	p := &pool{buf: make([]byte, 64<<10)}
	var err error
	if p.pd, err = c.NewPD(); err != nil {
		t.Fatal(err)
	}
	if p.mr, err = p.pd.RegisterMemory(p.buf, rdma.LocalWrite); err != nil {
		t.Fatal(err)
	}
	if p.SRQ, err = p.pd.NewSRQ(o); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pool) config() vnictest.PeerConfig {
	return vnictest.PeerConfig{PD: p.pd, QP: rdma.QPConfig{SRQ: p.SRQ}}
}

// pool makes an SRQ of e.b for n connected QPs.
func (e *env) pool(n int, o vnic.SRQOptions) *pool {
	e.t.Helper()
	p := newPool(e.t, e.b, o)
	for range n {
		x, y := e.pair(vnictest.PeerConfig{}, p.config())
		p.xs, p.ys = append(p.xs, x), append(p.ys, y)
	}
	return p
}

func (p *pool) wr(id uint64) *rdma.RecvWR {
	return &rdma.RecvWR{ID: id, SGEs: []rdma.SGE{{Addr: p.mr.Addr() + id*16, Length: 16,
		LKey: p.mr.LKey()}}}
}

// post posts receives with these ids; each has 16 octets of the pool's memory.
func (p *pool) post(t *testing.T, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		if err := p.PostRecv(p.wr(id)); err != nil {
			t.Fatalf("post receive %d: %v", id, err)
		}
	}
}

func (e *env) srqInfo() vnic.SRQInfo { return e.b.Device().SRQs(e.b)[0] }

// event is the next asynchronous event of c.
func event(t *testing.T, c *vnic.Context) rdma.AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ev, err := c.NextAsyncEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// noEvent says that c has none.
func noEvent(t *testing.T, c *vnic.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if ev, err := c.NextAsyncEvent(ctx); err == nil {
		t.Errorf("event %+v", ev)
	}
}

func srqConfig(wr, perQP int) vnic.SRQOptions {
	return vnic.SRQOptions{SRQConfig: rdma.SRQConfig{MaxWR: wr, MaxSGE: 1, MaxPerQP: perQP}}
}

// QPs take receives from an SRQ in the order of the posts, whichever they are.
func TestSRQ(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(3, srqConfig(8, 0))
		p.post(t, 10, 11, 12, 13, 14, 15)
		for i, who := range []int{2, 0, 0, 1, 2, 1} {
			x, y := p.xs[who], p.ys[who]
			x.Buf[0] = byte(100 + i)
			x.Send(uint64(i), 0, 1)
			x.WantSend("it has gone out", is(uint64(i), ok))
			wc := y.WantRecv("in the order of the posts", is(uint64(10+i), ok))[0]
			if wc.ByteLen != 1 || p.buf[(10+i)*16] != byte(100+i) {
				t.Errorf("receive %d: %+v, holds %d", i, wc, p.buf[(10+i)*16])
			}
		}
		if i := e.srqInfo(); i.Taken != 6 || i.Posted != 0 || i.QPs != 3 || i.Num != p.Num() {
			t.Errorf("info: %+v", i)
		}
		if i := p.ys[2].QP.Info(); i.SRQ != p.Num() || i.SRQTaken != 2 || i.SRQHeld != 0 {
			t.Errorf("QP info: %+v", i)
		}
		if err := p.ys[0].QP.PostRecv(p.wr(1)); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("a receive for the QP itself: %v", err)
		}
		if c := p.ys[0].QP.Config(); c.SRQ != p.SRQ || c.MaxRecvWR != 0 {
			t.Errorf("QP config: %+v", c)
		}
		if err := p.Close(); !isErr(err, rdma.ErrBusy) {
			t.Errorf("close while QPs use it: %v", err)
		}
		for _, y := range p.ys {
			y.QP.Close()
		}
		for _, y := range p.ys {
			y.MR.Close()
		}
		p.mr.Close()
		if err := p.ys[0].PD.Close(); !isErr(err, rdma.ErrBusy) {
			t.Errorf("close the PD of an SRQ: %v", err)
		}
		if err := errors.Join(p.Close(), p.Close(), p.ys[0].PD.Close()); err != nil {
			t.Error(err)
		}
		if err := p.PostRecv(p.wr(1)); !isErr(err, rdma.ErrClosed) {
			t.Errorf("post behind Close: %v", err)
		}
		if err := p.SetLimit(1); !isErr(err, rdma.ErrClosed) {
			t.Errorf("limit behind Close: %v", err)
		}
	})
}

// What an SRQ can be made of, and what can be posted. SEC-004.
func TestSRQChecks(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(1, srqConfig(3, 0))
		pd := p.ys[0].PD
		for _, c := range []rdma.SRQConfig{{MaxWR: -1}, {MaxWR: 1 << 20}, {MaxSGE: -1}, {MaxSGE: 100}} {
			if _, err := pd.CreateSRQ(c); !isErr(err, rdma.ErrInvalid) {
				t.Errorf("%+v: %v", c, err)
			}
		}
		two := p.wr(1)
		two.SGEs = append(two.SGEs, two.SGEs[0])
		if err := p.PostRecv(two); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("two SGEs: %v", err)
		}
		n, err := p.PostRecvs([]rdma.RecvWR{*p.wr(1), *p.wr(2), *p.wr(3), *p.wr(4)})
		if n != 3 || !isErr(err, rdma.ErrQueueFull) {
			t.Errorf("four receives for three: %d, %v", n, err)
		}
		cfg := p.ys[0].QP.Config()
		other := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		if _, err := other.PD.CreateQP(cfg); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("an SRQ of another PD: %v", err)
		}
		if _, err := pd.NewQP(vnic.QPOptions{QPConfig: cfg, SendQueue: ringSend{&ring{}},
			RecvQueue: ringRecv{&ring{}}}); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("an SRQ and a receive queue: %v", err)
		}
		q := p.Config()
		if a := e.b.Attr(); q.MaxWR != 3 || q.MaxSGE != 1 || a.MaxSRQ != 2 || a.MaxSRQWR < 3 {
			t.Errorf("config %+v, attributes %+v", q, a)
		}
		s, err := pd.CreateSRQ(rdma.SRQConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pd.CreateSRQ(rdma.SRQConfig{}); !isErr(err, rdma.ErrLimit) {
			t.Errorf("a third SRQ: %v", err)
		}
		s.Close()
		if _, err := pd.CreateQP(rdma.QPConfig{SendCQ: cfg.SendCQ, RecvCQ: cfg.RecvCQ, SRQ: s}); !isErr(
			err, rdma.ErrClosed) {
			t.Errorf("an SRQ that is gone: %v", err)
		}
	}, func(c *vnic.Config) { c.Limits.SRQ = 2 })
}

// The limit event comes once, when fewer receives are left than the limit, and can be armed again.
// SEC-027.
func TestSRQLimit(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(2, srqConfig(8, 0))
		send := func(n int) {
			for range n {
				p.xs[0].Send(1, 0, 1)
				p.xs[0].WantSend("sent", is(1, ok))
				p.ys[0].Next(p.ys[0].RecvCQ, 1)
			}
			e.settle()
		}
		limit := func(why string, want int) {
			t.Helper()
			if n, err := p.Limit(); n != want || err != nil {
				t.Fatalf("%s: the limit is %d, %v, want %d", why, n, err, want)
			}
		}
		if err := p.SetLimit(3); err != nil {
			t.Fatal(err)
		}
		if err := p.SetLimit(9); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("a limit above the SRQ's size: %v", err)
		}
		p.post(t, 0, 1, 2, 3, 4)
		send(2)
		limit("three are left", 3)
		send(1)
		limit("two are left", 0)
		ev := event(t, e.b)
		if ev.Type != rdma.EventSRQLimitReached || ev.Object != p.Num() {
			t.Fatalf("event %+v", ev)
		}
		send(1) // one is left, and no second event
		if err := p.SetLimit(1); err != nil {
			t.Fatal(err)
		}
		send(1)
		ev = event(t, e.b)
		if ev.Type != rdma.EventSRQLimitReached || ev.Object != p.Num() {
			t.Fatalf("event %+v", ev)
		}
		limit("none is left", 0)
		if i := e.srqInfo(); i.Limits != 2 {
			t.Errorf("info: %+v", i)
		}
		noEvent(t, e.b)
	})
}

// An empty SRQ holds the Sends of every QP, and a post wakes all that wait; those that wait for too
// long lose their own connection, and nobody else's.
func TestSRQEmpty(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(4, srqConfig(8, 0))
		for i, x := range p.xs[:3] {
			x.Send(uint64(i), 0, 1)
		}
		e.settle()
		p.post(t, 1)
		e.settle()
		got := map[uint32]int{}
		take := func() {
			for _, y := range p.ys {
				var wc [4]rdma.WC
				n, _ := y.RecvCQ.Poll(wc[:])
				got[y.QP.Num()] += n
			}
		}
		take()
		if len(p.ys) != 4 || got[p.ys[0].QP.Num()]+got[p.ys[1].QP.Num()]+got[p.ys[2].QP.Num()] != 1 {
			t.Fatalf("one receive served %v", got)
		}
		time.Sleep(4 * time.Second)
		p.post(t, 2)
		e.settle()
		take()
		time.Sleep(2 * time.Second) // 6 s in all: the third has waited too long
		e.settle()
		p.post(t, 3, 4)
		for i, y := range p.ys[:3] {
			if got[y.QP.Num()] == 1 {
				y.WantState("it got its receive", rdma.QPRTS)
				continue
			}
			e.wantTerm("no buffer", y.WantDone("held for too long"), false, term{1, 2, 2})
			e.wantTerm("no buffer", p.xs[i].WantDone("held for too long"), true, term{1, 2, 2})
		}
		p.xs[3].Send(9, 0, 1)
		p.ys[3].WantRecv("the others go on", is(3, ok))
		if i := e.srqInfo(); i.Posted != 1 || i.Taken != 3 || i.Waits < 3 {
			t.Errorf("info: %+v", i)
		}
	})
}

// A QP in Error flushes the receive that it has begun to fill and says so; those in the SRQ stay
// there, for the others.
func TestSRQError(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(2, srqConfig(8, 0))
		p.post(t, 1, 2, 3)
		p.xs[0].Send(1, 0, 1)
		p.ys[0].WantRecv("well", is(1, ok))
		p.ys[0].QP.Abort()
		p.ys[0].WantEvent("it takes nothing more", rdma.EventLastWQEReached)
		p.ys[0].WantNone("the SRQ keeps its receives")
		p.xs[1].Send(2, 0, 1)
		p.ys[1].WantRecv("for the others", is(2, ok))
		if i := e.srqInfo(); i.Posted != 1 || i.Taken != 2 {
			t.Errorf("info: %+v", i)
		}
		p.xs[1].Send(3, 0, 17) // too long for the receive it has taken
		p.ys[1].WantRecv("it began to fill it", is(3, rdma.WCLocLen))
		p.ys[1].WantEvent("and ended", rdma.EventQPFatal)
		p.ys[1].WantEvent("it takes nothing more", rdma.EventLastWQEReached)
		p.ys[1].WantState("it is over", rdma.QPError)
		noEvent(t, e.b)
	})
}

// A QP that is closed in the midst of a Send gives the receive back to the SRQ, so that peers that
// make this happen do not drain it. One in Error flushes it.
func TestSRQGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		p := newPool(t, c, srqConfig(8, 0))
		half := func() *rawPeer { // a Send of which the end does not come
			r := rawDial(t, n, c, p.config())
			r.send(append(iwarp.AppendUntagged(nil, false, iwarp.OpSend, 0, 1, 0), 1, 2, 3))
			synctest.Wait()
			return r
		}
		p.post(t, 1, 2, 3)
		a, b := half(), half()
		if i := c.Device().SRQs(c)[0]; i.Posted != 1 || i.Taken != 2 {
			t.Fatalf("info: %+v", i)
		}
		a.y.QP.Close()
		if i := c.Device().SRQs(c)[0]; i.Posted != 2 {
			t.Fatalf("info: %+v", i)
		}
		b.y.QP.Abort()
		b.y.WantRecv("in progress", is(2, flush))
		b.y.WantEvent("and no more", rdma.EventLastWQEReached)
		r := rawDial(t, n, c, p.config())
		for i := range 2 {
			r.send(append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, iwarp.MSN(1+i), 0), 7))
		}
		r.y.WantRecv("what was given back comes first", is(1, ok), is(3, ok))
		if p.buf[16] != 7 {
			t.Error("the Send is not where it should be")
		}
	})
}

// A peer that sends as fast as it can gets its share of an SRQ and no more until its completions
// have been polled; another peer finds receives meanwhile. What each takes can be seen. When the
// flooder's time is over it loses its own connection. SEC-026.
func TestSRQQuota(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(2, srqConfig(8, 0)) // half: 4
		flooder, victim := p.xs[0], p.xs[1]
		p.post(t, 0, 1, 2, 3, 4, 5, 6, 7)
		if err := p.SetLimit(5); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			flooder.Send(uint64(i), 0, 1)
		}
		e.settle()
		held := func(why string, want int) {
			t.Helper()
			e.settle()
			if i := p.ys[0].QP.Info(); i.SRQHeld != want {
				t.Fatalf("%s: it holds %d receives, want %d", why, i.SRQHeld, want)
			}
		}
		held("the quota", 4)
		if i := e.srqInfo(); i.Posted != 4 || i.MaxPerQP != 4 || i.Quota == 0 {
			t.Errorf("info: %+v", i)
		}
		if ev := event(t, e.b); ev.Type != rdma.EventSRQLimitReached {
			t.Errorf("event %+v", ev)
		}
		for i := range 2 {
			victim.Send(uint64(i), 0, 1)
			p.ys[1].Next(p.ys[1].RecvCQ, 1)
		}
		p.ys[0].Next(p.ys[0].RecvCQ, 1)
		held("one was polled", 4)
		if i := p.ys[0].QP.Info(); i.SRQTaken != 5 || i.Counters.Receives != 5 {
			t.Errorf("QP info: %+v", i)
		}
		time.Sleep(6 * time.Second)
		e.wantTerm("over its quota for too long", p.ys[0].WantDone("held"), false, term{1, 2, 2})
		victim.Send(2, 0, 1)
		p.ys[1].WantRecv("the victim goes on", is(7, ok))
	})
}

// The quota as it is set: a number, or none; alone at an SRQ a QP has none by default.
func TestSRQQuotaSet(t *testing.T) {
	for _, tt := range []struct{ qps, perQP, want int }{{2, 3, 3}, {2, -1, 8}, {1, 0, 8}, {2, 100, 8},
		{1, 1, 1}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				p := e.pool(tt.qps, srqConfig(8, tt.perQP))
				p.post(t, 0, 1, 2, 3, 4, 5, 6, 7)
				for i := range 8 {
					p.xs[0].Send(uint64(i), 0, 1)
				}
				e.settle()
				if i := p.ys[0].QP.Info(); i.SRQHeld != tt.want {
					t.Errorf("it holds %d, want %d", i.SRQHeld, tt.want)
				}
				p.ys[0].Next(p.ys[0].RecvCQ, 8) // polling lets it go on
			})
		})
	}
}

// srqRing is the receive queue of a ring as an SRQ's.
type srqRing struct{ *ring }

func (r srqRing) Next(wr *rdma.RecvWR) (uint32, bool, error) {
	if r.ring.damaged != nil {
		return 0, false, r.ring.damaged
	}
	return ringRecv(r).Next(wr)
}
func (r srqRing) Starve(on bool) { ringRecv(r).Starve(on) }
func (r srqRing) Pending() int   { return ringRecv(r).Pending() }

// countingRing is a ring whose reader has polled so many completions.
type countingRing struct {
	*ring
	polled atomic.Int32
}

func (r *countingRing) Unpolled() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.wcs) - int(r.polled.Load())
}

// An SRQ filled by a daemon's client: starved it asks for a ring, as long as any QP waits; cookies
// come back; the quota follows what the client has polled; damage ends its context.
func TestForeignSRQ(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		bad := errors.New("impossible index")
		var violation atomic.Value
		c := vnictest.Open(t, e.b.Device(), vnic.ContextConfig{OnViolation: func(err error) {
			violation.Store(err)
		}})
		if e.staged {
			c.AllowBlocking()
		}
		r := &countingRing{ring: &ring{room: 100}}
		o := srqConfig(8, 3)
		o.Queue = srqRing{r.ring}
		p := newPool(t, c, o)
		cq, err := c.NewCQ(vnic.CQOptions{Depth: 64, Sink: r})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, c, p.config())
			y.QP.Close()
			if y.QP, err = p.pd.NewQP(vnic.QPOptions{
				QPConfig:  rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: p.SRQ},
				SendQueue: ringSend{&ring{}},
			}); err != nil {
				t.Fatal(err)
			}
			vnictest.Connect(t, x, y)
			p.xs, p.ys = append(p.xs, x), append(p.ys, y)
		}
		if err := p.PostRecv(p.wr(1)); !isErr(err, rdma.ErrUnsupported) {
			t.Errorf("PostRecv on a foreign queue: %v", err)
		}
		post := func(n int) {
			r.mu.Lock()
			for range n {
				r.rq = append(r.rq, *p.wr(uint64(r.cookie) + uint64(len(r.rq))))
			}
			starved := r.starved
			r.mu.Unlock()
			if starved {
				p.Ring()
			}
			e.settle()
		}
		check := func(why string, starved bool, completions int) {
			t.Helper()
			if r.starved != starved || len(r.wcs) != completions {
				t.Fatalf("%s: starved %v, completions %+v", why, r.starved, r.wcs)
			}
		}
		p.xs[0].Send(1, 0, 1)
		p.xs[1].Send(1, 0, 1)
		e.settle()
		check("both wait", true, 0)
		post(1)
		check("one still waits", true, 1)
		post(1)
		check("none waits", false, 2)
		if !slices.Equal(r.cookies, []uint32{0, 1}) {
			t.Errorf("cookies %v", r.cookies)
		}
		if info := c.Device().SRQs(c)[0]; info.Posted != 0 {
			t.Errorf("info: %+v", info)
		}
		post(8)
		for i := range 6 {
			p.xs[0].Send(uint64(i), 0, 1)
		}
		poll := func(why string, polled int32, starved bool, completions int) {
			t.Helper()
			r.polled.Store(polled)
			time.Sleep(100 * time.Millisecond) // nothing is posted that would wake the QP
			e.settle()
			check(why, starved, completions)
		}
		poll("three, and its quota is used up", 0, true, 4)
		poll("the first one was polled", 2, true, 5)
		poll("all that it holds were polled", 5, false, 8)
		// One of two that wait goes away: the other still waits for a ring.
		r.mu.Lock()
		r.rq = nil
		r.mu.Unlock()
		r.polled.Store(8)
		p.xs[0].Send(7, 0, 1)
		e.settle()
		p.xs[1].Send(2, 0, 1)
		e.settle()
		check("both wait", true, 8)
		p.ys[0].QP.Close()
		e.settle()
		check("one still waits", true, 8)
		post(1)
		check("it got the receive", false, 9)
		r.mu.Lock()
		r.damaged = bad
		r.mu.Unlock()
		p.xs[1].Send(1, 0, 1)
		e.settle()
		if err, _ := violation.Load().(error); !errors.Is(err, bad) {
			t.Errorf("violation %v", err)
		}
	})
}

// A QP whose peer's Send has found a receive while it looked for one itself takes no other: who
// shares the SRQ with it would miss that.
func TestSRQTakesWhatIsWaitedFor(t *testing.T) {
	a, b := real(t, true)
	p := newPool(t, b, srqConfig(4, 0))
	_, y := vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, p.config())
	p.post(t, 1, 2)
	y.QP.Feed()
	if i := b.Device().SRQs(b)[0]; i.Posted != 2 || i.Taken != 0 {
		t.Errorf("info: %+v", i)
	}
}

// Many QPs take from one SRQ at once, on the wire and within a device: each Send is received once,
// none is lost, and each QP's arrive in order.
func TestSRQMany(t *testing.T) {
	for _, loop := range []bool{true, false} {
		t.Run(map[bool]string{true: "loop", false: "wire"}[loop], func(t *testing.T) {
			const qps, each, depth = 8, 300, 32
			a, b := real(t, loop)
			p := newPool(t, b, srqConfig(depth, 0))
			var wg sync.WaitGroup
			done := make(chan struct{})
			free := make(chan uint64, depth)
			for i := range depth {
				p.post(t, uint64(i))
			}
			wg.Go(func() { // posts what has been read
				for range qps * each {
					p.post(t, <-free)
				}
			})
			for range qps {
				x, y := vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, p.config())
				wg.Go(func() {
					for i := range each {
						x.Post(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Inline, Inline: []byte{
							byte(i), byte(x.QP.Num())}}, 0, 0)
						x.WantSend("sent", is(uint64(i), ok))
					}
				})
				wg.Go(func() {
					for i := range each {
						wc := y.Next(y.RecvCQ, 1)[0]
						at := wc.ID * 16
						if wc.Status != ok || p.buf[at] != byte(i) || p.buf[at+1] != byte(x.QP.Num()) {
							t.Errorf("receive %d: %+v holds % x", i, wc, p.buf[at:at+2])
						}
						free <- wc.ID
					}
				})
			}
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatalf("stuck: %+v", b.Device().SRQs(b))
			}
			if i := b.Device().SRQs(b)[0]; i.Posted != depth || i.Taken != qps*each {
				t.Errorf("info: %+v", i)
			}
		})
	}
}
