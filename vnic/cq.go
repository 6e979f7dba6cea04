package vnic

import (
	"context"
	"fmt"
	"sync"

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

	mu       sync.Mutex
	ring     []cqe // guarded by mu
	prod     uint32
	cons     uint32
	armed    armState // guarded by mu
	overrun  bool     // guarded by mu
	closed   bool     // guarded by mu
	qps      []*QP    // guarded by mu, one for each queue
	pushed   uint64   // guarded by mu
	signaled uint64   // guarded by mu: events
	shared   sharedUses
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

type armState uint8

const (
	armNot armState = iota
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
	h, err := c.cqs.add(cq, c.limits.CQ)
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
	solicited = solicited || wc.Status != rdma.WCSuccess
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed || cq.overrun {
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
	if cq.prod-cq.cons == uint32(len(cq.ring)) {
		cq.overrunLocked()
		return
	}
	e := &cq.ring[cq.prod&uint32(len(cq.ring)-1)]
	e.wc, e.qp, e.sqDone, e.send = *wc, qp, sqDone, send
	cq.prod++
	cq.pushed++
	if cq.armed == armAny || cq.armed == armSolicited && solicited {
		cq.armed = armNot
		cq.signaled++
		signal(cq.event)
	}
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
		t.polled()
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
	e.tap.polled()
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
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed {
		return 0, fmt.Errorf("poll a CQ: %w", rdma.ErrClosed)
	}
	if cq.sink != nil {
		return 0, fmt.Errorf("poll a CQ that is polled elsewhere: %w", rdma.ErrUnsupported)
	}
	n := 0
	for n < len(wc) && cq.cons != cq.prod {
		e := &cq.ring[cq.cons&uint32(len(cq.ring)-1)]
		cq.cons++
		qp := e.qp
		e.qp = nil
		if qp.destroyed.Load() {
			continue
		}
		wc[n] = e.wc
		n++
		switch {
		case e.send:
			qp.own.polledSend(e.sqDone)
		case qp.rx.tap != nil:
			qp.rx.tap.polled()
		default:
			qp.own.polledRecv()
		}
	}
	return n, nil
}

// Arm asks for one event; a call for any completion is not undone by one for solicited ones only.
func (cq *CQ) Arm(solicitedOnly bool) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed {
		return fmt.Errorf("arm a CQ: %w", rdma.ErrClosed)
	}
	if !solicitedOnly {
		cq.armed = armAny
	} else if cq.armed == armNot {
		cq.armed = armSolicited
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
	c.cqs.remove(cq.handle)
	return nil
}

func (cq *CQ) shut() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if !cq.closed {
		cq.closed = true
		cq.ring = nil
		cq.cons = cq.prod
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
