package queue

import (
	"context"
	"fmt"
	"slices"
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

// A CountingSink is a CQSink that knows what its reader has taken. It is needed for the quota of a
// QP at an SRQ, see rdma.SRQConfig.
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
	space  *Space
	handle uint32
	depth  atomic.Int64 // changes with space.mu and mu held
	sink   CQSink
	event  chan struct{} // one slot: the event of an Arm
	dead   chan struct{} // closed by Close

	refs int          // guarded by space.mu: the queues of QPs that complete here
	need int          // guarded by space.mu: how many completions they can have at once
	srqs map[*SRQ]int // guarded by space.mu: the QPs here of each SRQ, which counts once

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
	pairs    []*Pair       // guarded by mu, one for each queue
	shared   sharedUses
	_        [64]byte

	// Who polls.
	pollMu sync.Mutex
	cons   atomic.Uint32 // written with pollMu held, behind the entries
}

// sharedUses are the completions in a CountingSink of receives that came from an SRQ and have not
// been seen polled, oldest first.
type sharedUses struct {
	ring       []sharedUse // nil: not counted; guarded by CQ.mu, as all
	prod, cons uint32
}

type sharedUse struct {
	at  uint64 // CQ.pushed behind it
	tap *Tap
}

type cqe struct {
	wc     rdma.WC
	pair   *Pair
	sqDone uint32
	send   bool
}

const (
	armNot uint32 = iota
	armSolicited
	armAny
)

// NewCQ makes a completion queue for at least o.Depth completions.
func (s *Space) NewCQ(o CQOptions) (*CQ, error) {
	if o.Depth < 1 || o.Depth > s.cfg.CQDepth {
		return nil, fmt.Errorf("create a CQ for %d completions, possible are 1 to %d: %w", o.Depth,
			s.cfg.CQDepth, rdma.ErrInvalid)
	}
	cq := &CQ{space: s, sink: o.Sink, event: make(chan struct{}, 1), dead: make(chan struct{})}
	cq.depth.Store(int64(o.Depth))
	if o.Sink == nil {
		cq.ring = make([]cqe, Slots(o.Depth))
		cq.depth.Store(int64(len(cq.ring)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return nil, s.closed
	}
	h, err := s.cqs.Add(cq, s.cfg.CQ)
	if err != nil {
		return nil, fmt.Errorf("create a CQ: %w", err)
	}
	cq.handle = h
	return cq, nil
}

func (cq *CQ) Handle() uint32 { return cq.handle }
func (cq *CQ) Depth() int     { return int(cq.depth.Load()) }

// Space is whose cq is.
func (cq *CQ) Space() *Space { return cq.space }

// Foreign reports whether somebody else reads the completions.
func (cq *CQ) Foreign() bool { return cq.sink != nil }

// Lock begins to add completions.
//
// +checklocksacquire:cq.mu
func (cq *CQ) Lock() { cq.mu.Lock() }

// Unlock has what was added polled.
//
// +checklocksrelease:cq.mu
func (cq *CQ) Unlock() {
	cq.publishLocked()
	cq.mu.Unlock()
}

// AddSend adds a completion of p's send queue, of which sqDone requests have been retired, after
// Lock. A CQ that has overrun takes none any more.
func (cq *CQ) AddSend(p *Pair, wc *rdma.WC, sqDone uint32) {
	cq.addLocked(p, wc, 0, sqDone, true, false)
}

// AddRecv adds a completion of p's receive queue, after Lock; solicited: the peer asked for an
// event.
func (cq *CQ) AddRecv(p *Pair, wc *rdma.WC, cookie uint32, solicited bool) {
	cq.addLocked(p, wc, cookie, 0, false, solicited)
}

func (cq *CQ) addLocked(p *Pair, wc *rdma.WC, cookie, sqDone uint32, send, solicited bool) {
	solicited = solicited || wc.Status != rdma.WCSuccess
	if cq.closed.Load() || cq.overrun {
		return
	}
	if cq.sink != nil {
		if cq.sink.Push(wc, cookie, sqDone, solicited) {
			cq.pushed++
			if t := p.Tap; !send && t != nil {
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
	e.wc, e.pair, e.sqDone, e.send = *wc, p, sqDone, send
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
	// Who arms polls once more: one of the two sees what the other has done.
	if a := cq.armed.Load(); a != armNot && (a == armAny || cq.asked) && cq.armed.CompareAndSwap(a,
		armNot) {
		cq.signaled++
		signal(cq.event)
	}
	cq.asked = false
}

// roomLocked is where the next completion goes; nil: there is no room. Now and then it looks what
// has been polled; a queue that has run empty begins again with its first entry, which is in the
// cache. Who polls looks at base only when there is something.
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
	cq.space.cfg.Event(rdma.EventCQErr, cq.handle)
	for _, p := range cq.pairs {
		p.overrun.Store(true)
		p.wake()
	}
	signal(cq.event)
}

// Break has cq lose a completion, as if there were no room for one.
func (cq *CQ) Break() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if !cq.closed.Load() && !cq.overrun {
		cq.overrunLocked()
	}
}

// countShared begins to count what QPs with an SRQ hold here, if that can be known.
func (cq *CQ) countShared() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if _, ok := cq.sink.(CountingSink); ok && cq.shared.ring == nil {
		cq.shared.ring = make([]sharedUse, Slots(cq.Depth()))
	}
}

// useLocked notes a completion that was pushed to the sink.
func (cq *CQ) useLocked(t *Tap) {
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
		pair := e.pair
		e.pair = nil
		if pair.dropped.Load() {
			continue
		}
		wc[n] = e.wc
		n++
		if p.pair != pair {
			cq.cons.Store(i) // before more can be posted
			p.tell()
			p = polling{pair: pair}
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
	pair         *Pair
	sends, recvs int
	sqDone       uint32 // of the last send
}

// tell has the QP know.
func (p *polling) tell() {
	if p.sends > 0 {
		p.pair.Local.polledSends(p.sends, p.sqDone)
	}
	if p.recvs == 0 {
		return
	}
	if t := p.pair.Tap; t != nil {
		t.polled(p.recvs)
	} else {
		p.pair.Local.polledRecvs(p.recvs)
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
	c := cq.space
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

// attachLocked and detachLocked count the queues of QPs that complete here; space.mu is held.
func (cq *CQ) attachLocked(p *Pair) {
	cq.refs++
	cq.mu.Lock()
	cq.pairs = append(cq.pairs, p)
	cq.mu.Unlock()
}

func (cq *CQ) detachLocked(p *Pair) {
	cq.refs--
	cq.mu.Lock()
	defer cq.mu.Unlock()
	i, last := slices.Index(cq.pairs, p), len(cq.pairs)-1
	cq.pairs[i], cq.pairs[last] = cq.pairs[last], nil
	cq.pairs = cq.pairs[:last]
}

// CQStats are what a CQ has counted.
type CQStats struct {
	Queues, Need   int // of QPs; completions that these can have at once
	Pushed, Events uint64
	Overrun        bool
}

// Stats returns what cq has counted.
func (cq *CQ) Stats() CQStats {
	cq.space.mu.Lock()
	need := cq.need
	cq.space.mu.Unlock()
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return CQStats{
		Queues: len(cq.pairs), Need: need, Pushed: cq.pushed, Events: cq.signaled, Overrun: cq.overrun,
	}
}

// Resize implements rdma.CQ. Of a CQ that somebody else reads it changes what is counted: the sink
// has room for depth completions.
func (cq *CQ) Resize(depth int) error {
	c := cq.space
	if depth < 1 || depth > c.cfg.CQDepth {
		return fmt.Errorf("resize a CQ for %d completions, possible are 1 to %d: %w", depth,
			c.cfg.CQDepth, rdma.ErrInvalid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.pollMu.Lock()
	defer cq.pollMu.Unlock()
	if cq.closed.Load() {
		return fmt.Errorf("resize a CQ: %w", rdma.ErrClosed)
	}
	if cq.sink == nil {
		depth = Slots(depth)
		from, cons := cq.ring, cq.cons.Load()
		if n := cq.put - cons; n > uint32(depth) {
			return fmt.Errorf("resize a CQ with %d completions for %d: %w", n, depth, rdma.ErrInvalid)
		}
		cq.ring = make([]cqe, depth)
		for i := cons; i != cq.put; i++ {
			cq.ring[i-cons] = from[(i-cq.base)&uint32(len(from)-1)]
		}
		cq.base, cq.seen = cons, cons
	}
	if u := &cq.shared; u.ring != nil && len(u.ring) < Slots(depth) {
		from := u.ring
		u.ring = make([]sharedUse, Slots(depth))
		for i := u.cons; i != u.prod; i++ {
			u.ring[i&uint32(len(u.ring)-1)] = from[i&uint32(len(from)-1)]
		}
	}
	cq.depth.Store(int64(depth))
	return nil
}
