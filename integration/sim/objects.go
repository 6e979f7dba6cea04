package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A user is one program: a context of a side's device, and what it has made.
type user struct {
	side *side
	i    int
	open bool // its context is
	ctx  *vnic.Context
	pd   rdma.PD
	srq  *sharedQueue
	box  *mailbox // on some runs of RoCE
	// objects that no connection uses
	pds []*domain

	listener rdma.Listener

	mu     sync.Mutex
	events []rdma.AsyncEvent  // +checklocks:mu
	asked  []rdma.ConnRequest // +checklocks:mu
}

// A domain is a PD with regions.
type domain struct {
	pd  rdma.PD
	mrs []rdma.MR
	bs  [][]byte
}

const port = 7471

// start opens u's context, and has it listen.
func (p *program) start(u *user) {
	ctx, err := u.side.dev.Open(vnic.ContextConfig{OnAsync: u.async})
	p.must("open", err)
	u.ctx, u.open = ctx, true
	u.pd, err = ctx.AllocPD()
	p.must("allocate a PD", err)
	p.listen(u)
	if p.opt.srq {
		q := &sharedQueue{}
		q.srq, err = u.pd.CreateSRQ(rdma.SRQConfig{MaxWR: useSlots, MaxSGE: 2,
			MaxPerQP: -1})
		p.must("create an SRQ", err)
		p.register(&q.memory, u.pd)
		u.srq = q
	}
	if p.opt.datagrams {
		p.openMailbox(u)
	}
}

// listen has u take connection requests. Both users of one device listen, at ports of their own.
func (p *program) listen(u *user) {
	at := netip.AddrPortFrom(u.side.addr, uint16(port+u.i))
	l, err := u.ctx.Listen(at, 16)
	p.must("listen", err)
	u.listener = l
	go func() {
		for {
			r, err := l.Next(context.Background())
			if err != nil {
				return
			}
			u.mu.Lock()
			u.asked = append(u.asked, r)
			u.mu.Unlock()
		}
	}()
}

// async keeps an event until the program looks at it.
func (u *user) async(ev rdma.AsyncEvent) {
	u.mu.Lock()
	u.events = append(u.events, ev)
	u.mu.Unlock()
}

// takeEvents gives the events that have come, takeRequests the connection requests.
func (u *user) takeEvents() []rdma.AsyncEvent {
	u.mu.Lock()
	defer u.mu.Unlock()
	evs := u.events
	u.events = nil
	return evs
}

func (u *user) takeRequests() []rdma.ConnRequest {
	u.mu.Lock()
	defer u.mu.Unlock()
	rs := u.asked
	u.asked = nil
	return rs
}

// must is for calls that nothing keeps from succeeding.
func (p *program) must(what string, err error) {
	if err != nil {
		p.fail("%s: %v", what, err)
	}
}

// block calls f, which may wait for others, but not for long.
func (p *program) block(what string, f func() error) error {
	var err error
	if !p.w.await(f, &err) {
		p.fail("%s: the call does not return", what)
	}
	return err
}

// busy is for calls that have to be refused because something is in use.
func (p *program) busy(what string, err error) {
	p.call(what)
	if !errors.Is(err, rdma.ErrBusy) {
		p.fail("%s, which is in use: %v", what, err)
	}
}

// register registers memory for m.
func (p *program) register(m *memory, pd rdma.PD) {
	if m.b == nil {
		m.b = p.w.pool.take(memLen)
	}
	const all = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic | rdma.MWBind
	var err error
	m.mr, err = pd.RegisterMemory(m.b, all)
	p.must("register memory", err)
	m.closed = false
	m.reset()
}

// newPair makes two ends with all that they need.
func (p *program) newPair() {
	p.lastPair++
	pr := &pair{id: p.lastPair}
	for i := range pr.ends {
		pr.ends[i] = &end{p: pr, i: i, u: p.users[i]}
	}
	pr.ends[0].peer, pr.ends[1].peer = pr.ends[1], pr.ends[0]
	for _, e := range pr.ends {
		p.newEnd(e)
	}
	p.prepare(pr)
	p.pairs = append(p.pairs, pr)
	p.w.trace.say("pair %d: QPs %d and %d", pr.id, pr.ends[0].qp.Num(), pr.ends[1].qp.Num())
}

func (p *program) newEnd(e *end) {
	u := e.u
	e.pd = u.pd
	if u.srq != nil && p.rng.IntN(2) == 0 {
		e.srq = u.srq
	} else {
		// No other connection can use its keys, so that the peer can end them (RFC 5040, section 8.1.1).
		var err error
		e.pd, err = u.ctx.AllocPD()
		p.must("allocate a PD", err)
	}
	p.register(&e.memory, e.pd)
	pattern(e.b[:stableLen], stableID(e))
	clear(e.b[stableLen:slotBase])
	depth := [2]int{1 + p.rng.IntN(p.opt.depth), 1 + p.rng.IntN(p.opt.depth)}
	newCQ := func(n int) *cq {
		q, err := u.ctx.CreateCQ(n)
		p.must("create a CQ", err)
		return &cq{CQ: q, u: u, last: time.Now()}
	}
	e.scq = newCQ(64)
	e.rcq = e.scq
	if p.rng.IntN(2) == 0 {
		e.rcq = newCQ(64)
	}
	cfg := rdma.QPConfig{SendCQ: e.scq.CQ, RecvCQ: e.rcq.CQ, MaxSendWR: depth[0], MaxRecvWR: depth[1],
		MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64 * p.rng.IntN(3), SignalAll: p.rng.IntN(4) == 0}
	if e.srq != nil {
		cfg.SRQ = e.srq.srq
	}
	qp, err := e.pd.CreateQP(cfg)
	p.must("create a QP", err)
	e.qp = qp.(*vnic.QP)
	p.toInit(e)
	p.byQP[u.i][e.qp.Num()] = e
	p.call("create a QP", e)
}

// toInit has e take receives, as rdma_create_qp does on RoCE.
func (p *program) toInit(e *end) {
	if p.w.path.roce() {
		p.must("modify to Init", e.qp.Modify(&rdma.QPAttr{State: rdma.QPInit, Port: 1},
			rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrAccess))
	}
}

// stableID is what the octets that nobody changes follow from.
func stableID(e *end) uint64 { return 1<<40 | uint64(e.p.id)<<1 | uint64(e.i) }

// prepare makes pr ready for a connection.
func (p *program) prepare(pr *pair) {
	pr.causes, pr.fault, pr.reject, pr.asked = 0, nil, nil, 0
	pr.rounds++
	pr.to(fresh)
	for _, e := range pr.ends {
		e.traffic = traffic{}
		e.starved = zeroTime
		e.conn, e.tries, e.cancel = nil, false, nil
		e.attempt.Store(nil)
		e.reset()
	}
	for _, e := range pr.ends {
		for i := range e.words {
			e.words[i].may = []uint64{binary.NativeEndian.Uint64(e.peer.b[stableLen+8*i:])}
		}
	}
}

// newKeys gives e's peer what e can bind.
func (p *program) newKey(e *end, i int) {
	k := &key{e: e}
	var err error
	if i < 2 {
		k.mw, err = e.pd.AllocMW(rdma.MWType(i + 1))
		p.must("allocate a window", err)
		k.rkey = k.mw.RKey()
	} else {
		k.fast, err = e.pd.AllocMR(slotLen)
		p.must("allocate a region", err)
		k.rkey = k.fast.RKey()
	}
	e.keys[i] = k
	p.call("allocate a key", e)
}

// closeQP destroys e's QP.
func (p *program) closeQP(e *end) {
	if e.gone {
		return
	}
	if e.u.open && e.srq != nil {
		p.poll(e.rcq) // what is not polled would be missing in the SRQ, and nobody would know
	}
	p.call("destroy a QP", e)
	if e.u.open {
		p.must("destroy a QP", p.block("destroy a QP", e.qp.Close))
	}
	delete(p.byQP[e.u.i], e.qp.Num())
	p.closed[e.u.i][e.qp.Num()] = true
	e.gone = true
}

// destroy destroys what pr's ends have; what is in use is tried first.
func (p *program) destroy(pr *pair) {
	for _, e := range pr.ends {
		if e.u.open && !e.gone && p.rng.IntN(4) == 0 {
			p.busy("destroy a CQ", e.scq.Close())
			p.busy("free a PD", e.pd.Close())
		}
		p.closeQP(e)
		if e.u.open {
			for _, k := range e.keys {
				if k != nil {
					p.must("free a key", p.block("free a key", k.close))
				}
			}
			if !e.closed {
				p.must("deregister", p.block("deregister", e.mr.Close))
			}
			for _, q := range []*cq{e.scq, e.rcq} {
				p.disarm(q)
				p.must("destroy a CQ", q.Close())
			}
			if e.pd != e.u.pd {
				p.must("free a PD", e.pd.Close())
			}
		}
		p.w.pool.give(e.b)
	}
	for i, x := range p.pairs {
		if x == pr {
			p.pairs = append(p.pairs[:i], p.pairs[i+1:]...)
			break
		}
	}
	p.w.trace.say("pair %d is no more", pr.id)
}

// recycle has pr's QPs connect again.
func (p *program) recycle(pr *pair) bool {
	for _, e := range pr.ends {
		if e.gone || e.closed || !e.u.open {
			return false
		}
	}
	for _, e := range pr.ends {
		rest := rdma.QPIdle
		if p.w.path.roce() {
			rest = rdma.QPReset
		}
		p.call("modify to Idle", e)
		if e.qp.State() == rdma.QPError {
			p.must("modify to Idle", p.block("modify to Idle", func() error {
				return e.qp.ModifyState(rest)
			}))
		}
		if s := e.qp.State(); s != rest {
			p.fail("%v is in state %v, to connect again", e, s)
		}
		for i, k := range e.keys {
			if k != nil {
				p.must("free a key", p.block("free a key", k.close))
				e.keys[i] = nil
			}
		}
	}
	p.w.settle()
	for _, e := range pr.ends {
		p.poll(e.scq)
		p.poll(e.rcq)
	}
	p.events()
	p.prepare(pr)
	for _, e := range pr.ends {
		p.toInit(e)
	}
	return true
}

// closeUser closes a device, with all that was made of it.
func (p *program) closeUser(u *user) {
	p.call("close a device")
	p.w.trace.say("user %d closes its device", u.i)
	for _, pr := range p.pairs {
		pr.causes |= causeAbort
	}
	u.open = false
	ctx := u.ctx
	p.must("close a device", p.block("close a device", ctx.Close))
	for _, pr := range p.pairs {
		e := pr.ends[u.i]
		p.closeQP(e)
		e.ended = true
		e.keys = [3]*key{}
		if pr.phase == connecting || pr.phase == connected || pr.phase == fresh {
			pr.to(ending)
		}
		for _, q := range []*cq{e.scq, e.rcq} {
			p.disarm(q)
		}
	}
	u.takeEvents()
	u.takeRequests()
	for _, d := range u.pds {
		for _, b := range d.bs {
			p.w.pool.give(b)
		}
	}
	u.pds = nil
	if u.srq != nil {
		p.w.pool.give(u.srq.b)
		u.srq = nil
	}
	if u.box != nil {
		p.closedMailbox(u.box)
	}
}

// objects makes and destroys something that no connection uses.
func (p *program) objects(u *user) {
	var d *domain
	if len(u.pds) > 0 {
		d = u.pds[p.rng.IntN(len(u.pds))]
	}
	switch k := p.rng.IntN(5); {
	case d == nil || k == 0 && len(u.pds) < 4:
		pd, err := u.ctx.AllocPD()
		p.must("allocate a PD", err)
		u.pds = append(u.pds, &domain{pd: pd})
		p.call("allocate a PD")
	case k < 3 && len(d.mrs) < 3:
		b := p.w.pool.take(4096)
		mr, err := d.pd.RegisterMemory(b, rdma.LocalWrite)
		p.must("register memory", err)
		d.mrs, d.bs = append(d.mrs, mr), append(d.bs, b)
		p.call("register memory")
	case len(d.mrs) > 0 && k == 3:
		p.must("deregister", d.mrs[0].Close())
		p.w.pool.give(d.bs[0])
		d.mrs, d.bs = d.mrs[1:], d.bs[1:]
		p.call("deregister")
	case len(d.mrs) > 0:
		p.busy("free a PD", d.pd.Close())
	default:
		p.must("free a PD", d.pd.Close())
		for i, x := range u.pds {
			if x == d {
				u.pds = append(u.pds[:i], u.pds[i+1:]...)
				break
			}
		}
		p.call("free a PD")
	}
}
