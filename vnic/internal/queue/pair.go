package queue

import (
	"fmt"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A SendQueue is where a QP takes its send requests from. It is called by one goroutine at a time,
// maybe with locks held: it must not block nor call the RNIC.
type SendQueue interface {
	// Next takes the next request into wr, whose slices have capacity to be used again: append
	// to their [:0]. Nothing of wr is believed. ok is false if there is none. An error says that
	// the queue is damaged, and ends the context.
	Next(wr *rdma.SendWR) (ok bool, err error)
	// Retire says that the oldest n requests taken are done with. It comes before the
	// completion of the last of them is pushed.
	Retire(n int)
}

// A RecvQueue is where a QP takes receive buffers from, under the rules of SendQueue.
type RecvQueue interface {
	// Next takes the next receive; its completion carries the cookie back.
	Next(wr *rdma.RecvWR) (cookie uint32, ok bool, err error)
	// Starve(true) asks for QP.Ring when the next receive is posted, and Next is called once
	// more after it; Starve(false) takes the wish back.
	Starve(on bool)
	// Pending is how many receives are posted and not taken.
	Pending() int
}

// A Pair is the queues of one QP: where it takes requests from, and where they complete. The fields
// do not change after Init.
type Pair struct {
	dropped atomic.Bool // nothing of it is polled any more
	overrun atomic.Bool // a CQ has no room

	Local          *Local // the queues, if they are in this process; nil: somebody else fills them
	Send           SendQueue
	Recv           RecvQueue
	SendCQ, RecvCQ *CQ
	Tap            *Tap // where receives come from, with an SRQ: it is Recv then; nil: without

	wake       func() // has the QP look; it takes no lock
	maxSend    int
	maxRecv    int
	localSpace Local // what Local points to
}

// A PairConfig says what a Pair is made of.
type PairConfig struct {
	rdma.QPConfig            // checked, and with what it leaves open filled in; CQs and SRQ are below
	SendCQ, RecvCQ *CQ       // of one Space
	SRQ            *SRQ      // nil: none
	Send           SendQueue // nil, as Recv: queues in this process
	Recv           RecvQueue
	// Wake is called when what the QP waits for may have come: a receive in an SRQ, the end of its
	// quota there, or a CQ that has overrun. Locks are held: it only marks and wakes.
	Wake func()
}

// Init makes p of c.
func (p *Pair) Init(c *PairConfig) {
	p.Send, p.Recv, p.SendCQ, p.RecvCQ, p.wake = c.Send, c.Recv, c.SendCQ, c.RecvCQ, c.Wake
	p.maxSend, p.maxRecv = c.MaxSendWR, c.MaxRecvWR
	if p.Send == nil {
		p.Local = &p.localSpace
		p.Local.init(&c.QPConfig, c.SRQ == nil)
		p.Send, p.Recv = p.Local, &p.Local.recvs
	}
	if c.SRQ != nil {
		p.Tap = &Tap{srq: c.SRQ, pair: p, pos: -1}
		p.Recv = p.Tap
	}
}

// Add makes p count in its CQs and its SRQ. An error wraps rdma.ErrClosed: one of them is gone; or
// rdma.ErrLimit, if strict is set: the queues that complete there could have more completions at
// once than there is room for (RFC 5042, section 6.4.3.2).
func (p *Pair) Add(strict bool) error {
	s := p.SendCQ.space
	s.mu.Lock()
	defer s.mu.Unlock()
	t := p.Tap
	if p.SendCQ.closed.Load() || p.RecvCQ.closed.Load() || t != nil && t.srq.closed {
		return fmt.Errorf("its queues are gone: %w", rdma.ErrClosed)
	}
	if !p.reserveLocked(1) && strict {
		err := fmt.Errorf("its queues could overflow their CQs: "+
			"the queues that complete there need %d of %d and %d of %d completions: %w",
			p.SendCQ.need, p.SendCQ.Depth(), p.RecvCQ.need, p.RecvCQ.Depth(), rdma.ErrLimit)
		p.reserveLocked(-1)
		return err
	}
	p.SendCQ.attachLocked(p)
	p.RecvCQ.attachLocked(p)
	if t != nil {
		t.srq.pairs.Add(1)
		p.RecvCQ.countShared()
	}
	return nil
}

// Remove takes Add back.
func (p *Pair) Remove() {
	s := p.SendCQ.space
	s.mu.Lock()
	defer s.mu.Unlock()
	p.reserveLocked(-1)
	p.SendCQ.detachLocked(p)
	p.RecvCQ.detachLocked(p)
	if t := p.Tap; t != nil {
		t.srq.pairs.Add(-1)
		t.drop()
	}
}

// reserveLocked counts, or with n below 0 no longer counts, what the queues of p can have at once
// in their CQs, and says whether that fits.
func (p *Pair) reserveLocked(n int) (fits bool) {
	p.SendCQ.need += n * p.maxSend
	rcq := p.RecvCQ
	if t := p.Tap; t == nil {
		rcq.need += n * p.maxRecv
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
	return p.SendCQ.need <= p.SendCQ.Depth() && rcq.need <= rcq.Depth()
}

// Covered reports whether the CQs of p have room for all that their queues can have in them.
func (p *Pair) Covered() bool {
	s := p.SendCQ.space
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.SendCQ.need <= p.SendCQ.Depth() && p.RecvCQ.need <= p.RecvCQ.Depth()
}

// Drop has completions of p that wait not polled any more.
func (p *Pair) Drop() { p.dropped.Store(true) }

// Dropped reports whether Drop was called.
func (p *Pair) Dropped() bool { return p.dropped.Load() }

// Overrun reports whether a completion of p was lost, or of another in one of its CQs.
func (p *Pair) Overrun() bool { return p.overrun.Load() }

// RetireSends counts the oldest n requests as retired, for which completions follow.
func (p *Pair) RetireSends(n, completions int) {
	if p.Local != nil {
		p.Local.retire(n, uint64(completions)*unpolledOne)
	} else if n > 0 {
		p.Send.Retire(n)
	}
}

// RetireRecvs counts n receives as gone, for which no completions follow.
func (p *Pair) RetireRecvs(n int) {
	if p.Local != nil {
		p.Local.polledRecvs(n)
	}
}
