package vnic

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A CQSink is a completion queue that somebody else reads: a ring shared with a client.
type CQSink interface {
	// Push adds a completion; false: there is no room. It is called by one goroutine at a time
	// with locks held, maybe the transport's: it must not block nor call this package. cookie is that
	// of the receive; sqDone counts the send requests of the QP that have been retired, this one
	// included, and runs free. solicited is set for errors too.
	Push(wc *rdma.WC, cookie, sqDone uint32, solicited bool) bool
}

// A CountingSink is a CQSink that knows what its reader has taken. It is needed for the quota of a QP
// at an SRQ, see rdma.SRQConfig.
type CountingSink interface {
	CQSink
	// Unpolled is how many of the completions that were pushed have not been taken. It is called as
	// Push is.
	Unpolled() int
}

// CQOptions describe a CQ.
type CQOptions struct {
	Depth int
	Sink  CQSink // nil: a queue in this process, with Poll, Arm and Wait
}

// A CQ is a completion queue. It implements rdma.CQ.
type CQ struct {
	ctx    *Context
	handle uint32
	depth  int
	sink   CQSink
	event  chan struct{} // one slot: the event of an Arm
	dead   chan struct{} // closed by Close

	refs int          // guarded by ctx.mu: the queues of QPs that complete here
	need int          // guarded by ctx.mu: how many completions they can have at once
	srqs map[*SRQ]int // guarded by ctx.mu: the QPs here of each SRQ, which counts once

	ring   []cqe       // of a queue in this process
	closed atomic.Bool // set with both locks held

	// Who pushes. What the other side writes is on another line of the cache.
	mu       sync.Mutex
	put      uint32        // guarded by mu: how many entries were written
	prod     atomic.Uint32 // how many of them can be polled: see publishLocked
	asked    bool          // guarded by mu: one of the others is solicited
	seen     uint32        // guarded by mu: what cons was
	base     uint32        // guarded by mu: the completion that has the first entry; see roomLocked
	overrun  bool          // guarded by mu
	armed    atomic.Uint32 // an armState
	pushed   uint64        // guarded by mu
	signaled uint64        // guarded by mu: events
	qps      []*QP         // guarded by mu, one for each queue
	shared   sharedUses
	_        [64]byte

	// Who polls.
	pollMu sync.Mutex
	cons   atomic.Uint32 // written with pollMu held, behind the entries
}

// sharedUses are the completions in a CountingSink of receives that came from an SRQ and have not been
// seen polled, oldest first.
type sharedUses struct {
	ring       []sharedUse // nil: not counted; guarded by CQ.mu, as all
	prod, cons uint32
}

type sharedUse struct {
	at  uint64 // CQ.pushed behind it
	tap *srqTap
}

type cqe struct {
	wc     rdma.WC
	qp     *QP
	sqDone uint32
	send   bool
}

const (
	armNot uint32 = iota
	armSolicited
	armAny
)

// NewCQ makes a completion queue for at least o.Depth completions.
func (c *Context) NewCQ(o CQOptions) (*CQ, error) {
	if o.Depth < 1 || o.Depth > c.limits.CQDepth {
		return nil, fmt.Errorf("create a CQ for %d completions, possible are 1 to %d: %w", o.Depth, c.limits.CQDepth, rdma.ErrInvalid)
	}
	cq := &CQ{ctx: c, depth: o.Depth, sink: o.Sink, event: make(chan struct{}, 1), dead: make(chan struct{})}
	if o.Sink == nil {
		cq.depth = ceilPow2(o.Depth)
		cq.ring = make([]cqe, cq.depth)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	h, err := c.cqs.Add(cq, c.limits.CQ)
	if err != nil {
		return nil, fmt.Errorf("create a CQ: %w", err)
	}
	cq.handle = h
	return cq, nil
}

// CreateCQ is NewCQ with a queue in this process.
func (c *Context) CreateCQ(depth int) (rdma.CQ, error) {
	cq, err := c.NewCQ(CQOptions{Depth: depth})
	if err != nil {
		return nil, err
	}
	return cq, nil
}

func (cq *CQ) Handle() uint32 { return cq.handle }
func (cq *CQ) Depth() int     { return cq.depth }

// push adds a completion of qp. A CQ that has overrun takes none any more.
func (cq *CQ) push(qp *QP, wc *rdma.WC, cookie, sqDone uint32, send, solicited bool) {
	cq.mu.Lock()
	cq.addLocked(qp, wc, cookie, sqDone, send, solicited)
	cq.publishLocked()
	cq.mu.Unlock()
}

// addLocked is push; in this process the completion is seen at the next publishLocked, which comes before mu is given up.
func (cq *CQ) addLocked(qp *QP, wc *rdma.WC, cookie, sqDone uint32, send, solicited bool) {
	solicited = solicited || wc.Status != rdma.WCSuccess
	if cq.closed.Load() || cq.overrun {
		return
	}
	if cq.sink != nil {
		if cq.sink.Push(wc, cookie, sqDone, solicited) {
			cq.pushed++
			if t := qp.rx.tap; !send && t != nil {
				cq.useLocked(t)
			}
			return
		}
		cq.overrunLocked()
		return
	}
	e := cq.roomLocked()
	if e == nil {
		cq.overrunLocked()
		return
	}
	e.wc, e.qp, e.sqDone, e.send = *wc, qp, sqDone, send
	cq.put++
	cq.pushed++
	cq.asked = cq.asked || solicited
}

// publishLocked has what was added polled.
func (cq *CQ) publishLocked() {
	if cq.put == cq.prod.Load() {
		return
	}
	cq.prod.Store(cq.put)
	// Who arms polls once More: one of the two sees what the other has done.
	if a := cq.armed.Load(); a != armNot && (a == armAny || cq.asked) && cq.armed.CompareAndSwap(a, armNot) {
		cq.signaled++
		signal(cq.event)
	}
	cq.asked = false
}

// roomLocked is where the next completion goes; nil: there is no room. Now and then it looks what has been polled;
// a queue that has run empty begins again with its first entry, which is in the cache. Who polls looks at base
// only when there is something.
func (cq *CQ) roomLocked() *cqe {
	n, size := cq.put, uint32(len(cq.ring))
	if ahead := n - cq.seen; ahead == size || ahead >= min(size, 8) && n == cq.prod.Load() {
		cq.seen = cq.cons.Load()
		switch n - cq.seen {
		case 0:
			cq.base = n
		case size:
			return nil
		}
	}
	return &cq.ring[(n-cq.base)&(size-1)]
}

// overrunLocked: a completion is lost, so the QPs of cq cannot go on. RFC 5042, section 6.4.6: no
// stream that does not use this CQ is harmed.
func (cq *CQ) overrunLocked() {
	cq.overrun = true
	cq.ctx.event(rdma.EventCQErr, cq.handle, nil)
	for _, qp := range cq.qps {
		qp.overrun.Store(true)
		qp.wake()
	}
	signal(cq.event)
}

// countShared begins to count what QPs with an SRQ hold here, if that can be known.
func (cq *CQ) countShared() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if _, ok := cq.sink.(CountingSink); ok && cq.shared.ring == nil {
		cq.shared.ring = make([]sharedUse, ceilPow2(cq.depth))
	}
}

// useLocked notes a completion that was pushed to the sink.
func (cq *CQ) useLocked(t *srqTap) {
	u := &cq.shared
	if u.ring == nil { // nobody knows when it is polled
		t.polled(1)
		return
	}
	if u.prod-u.cons == uint32(len(u.ring)) { // the reader's count is wrong, or the sink is larger
		cq.popUseLocked()
	}
	u.ring[u.prod&uint32(len(u.ring)-1)] = sharedUse{cq.pushed, t}
	u.prod++
}

func (cq *CQ) popUseLocked() {
	u := &cq.shared
	e := &u.ring[u.cons&uint32(len(u.ring)-1)]
	e.tap.polled(1)
	e.tap = nil
	u.cons++
}

// countPolled takes back what the reader of the sink has polled by now.
func (cq *CQ) countPolled() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	s, ok := cq.sink.(CountingSink)
	if !ok {
		return
	}
	u := &cq.shared
	polled := cq.pushed - uint64(max(s.Unpolled(), 0))
	for u.cons != u.prod && u.ring[u.cons&uint32(len(u.ring)-1)].at <= polled {
		cq.popUseLocked()
	}
}

// Poll takes up to len(wc) completions.
func (cq *CQ) Poll(wc []rdma.WC) (int, error) {
	if cq.sink == nil && cq.cons.Load() == cq.prod.Load() && !cq.closed.Load() {
		return 0, nil
	}
	cq.pollMu.Lock()
	defer cq.pollMu.Unlock()
	switch {
	case cq.closed.Load():
		return 0, fmt.Errorf("poll a CQ: %w", rdma.ErrClosed)
	case cq.sink != nil:
		return 0, fmt.Errorf("poll a CQ that is polled elsewhere: %w", rdma.ErrUnsupported)
	}
	n := 0
	var p polling
	i, end := cq.cons.Load(), cq.prod.Load()
	if i == end {
		return 0, nil
	}
	ring, base := cq.ring, cq.base // base stays while there is something
	for ; n < len(wc) && i != end; i++ {
		e := &ring[(i-base)&uint32(len(ring)-1)]
		qp := e.qp
		e.qp = nil
		if qp.destroyed.Load() {
			continue
		}
		wc[n] = e.wc
		n++
		if p.qp != qp {
			cq.cons.Store(i) // before more can be posted
			p.tell()
			p = polling{qp: qp}
		}
		if e.send {
			p.sends++
			p.sqDone = e.sqDone
		} else {
			p.recvs++
		}
	}
	cq.cons.Store(i)
	p.tell()
	return n, nil
}

// A polling is what was polled of one QP, completion after completion.
type polling struct {
	qp           *QP
	sends, recvs int
	sqDone       uint32 // of the last send
}

// tell has the QP know.
func (p *polling) tell() {
	if p.sends > 0 {
		p.qp.own.polledSends(p.sends, p.sqDone)
	}
	if p.recvs == 0 {
		return
	}
	if t := p.qp.rx.tap; t != nil {
		t.polled(p.recvs)
	} else {
		p.qp.own.polledRecvs(p.recvs)
	}
}

// Arm asks for one event; a call for any completion is not undone by one for solicited ones only.
func (cq *CQ) Arm(solicitedOnly bool) error {
	if cq.closed.Load() {
		return fmt.Errorf("arm a CQ: %w", rdma.ErrClosed)
	}
	if !solicitedOnly {
		cq.armed.Store(armAny)
	} else {
		cq.armed.CompareAndSwap(armNot, armSolicited)
	}
	return nil
}

// Wait blocks until the event of an Arm.
func (cq *CQ) Wait(ctx context.Context) error {
	select {
	case <-cq.event:
		return nil
	default:
	}
	select {
	case <-cq.event:
		return nil
	case <-cq.dead:
		return fmt.Errorf("wait for a CQ: %w", rdma.ErrClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close destroys cq; rdma.ErrBusy while a QP uses it. Nothing is pushed after it has returned.
func (cq *CQ) Close() error {
	c := cq.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	if cq.refs > 0 {
		return fmt.Errorf("destroy a CQ with %d queues of QPs: %w", cq.refs, rdma.ErrBusy)
	}
	cq.shut()
	c.cqs.Remove(cq.handle)
	return nil
}

func (cq *CQ) shut() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.pollMu.Lock()
	defer cq.pollMu.Unlock()
	if !cq.closed.Load() {
		cq.closed.Store(true)
		cq.ring = nil
		cq.cons.Store(cq.prod.Load())
		close(cq.dead)
	}
}

// reserve counts, or with n below 0 no longer counts, what the queues of qp can have at once in their
// CQs: RFC 5042, section 6.4.3.2. It says whether that fits. ctx.mu is held.
func (qp *QP) reserve(n int) (fits bool) {
	qp.scq.need += n * qp.cfg.MaxSendWR
	rcq := qp.rcq
	if t := qp.rx.tap; t == nil {
		rcq.need += n * qp.cfg.MaxRecvWR
	} else {
		if rcq.srqs == nil {
			rcq.srqs = make(map[*SRQ]int)
		}
		had := rcq.srqs[t.srq]
		if rcq.srqs[t.srq] += n; had == 0 || had+n == 0 {
			rcq.need += n * t.srq.cfg.MaxWR
		}
		if had+n == 0 {
			delete(rcq.srqs, t.srq)
		}
	}
	return qp.scq.need <= qp.scq.depth && rcq.need <= rcq.depth
}

// attach and detach count the queues of QPs that complete here; ctx.mu is held.
func (cq *CQ) attach(qp *QP) {
	cq.refs++
	cq.mu.Lock()
	cq.qps = append(cq.qps, qp)
	cq.mu.Unlock()
}

func (cq *CQ) detach(qp *QP) {
	cq.refs--
	cq.mu.Lock()
	defer cq.mu.Unlock()
	for i, q := range cq.qps {
		if q == qp {
			last := len(cq.qps) - 1
			cq.qps[i], cq.qps[last] = cq.qps[last], nil
			cq.qps = cq.qps[:last]
			return
		}
	}
}

// ceilPow2 returns the least power of two that is not below n; n is at least 1 and small.
func ceilPow2(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}
