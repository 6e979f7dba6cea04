package vnic

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A SendQueue is where a QP takes its send requests from. It is called by one goroutine at a time,
// maybe with locks held: it must not block nor call this package.
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
}

// ownQueues are the queues of a QP whose user is in this process.
type ownQueues struct {
	depth, rdepth uint32

	mu    sync.Mutex
	sq    []rdma.SendWR // guarded by mu; slices hold their full capacity
	prod  uint32        // guarded by mu
	taken uint32        // guarded by mu
	rq    *recvRing     // guarded by mu; nil for a QP with an SRQ

	// A slot of the send queue is free again when the completion of its request, or of a later
	// one, has been polled; or when it has been retired and no completion waits to be polled.
	retired  atomic.Uint32
	polled   atomic.Uint32
	unpolled atomic.Int32
	rpolled  atomic.Uint32
}

func newOwnQueues(cfg *rdma.QPConfig) *ownQueues {
	q := &ownQueues{depth: uint32(cfg.MaxSendWR), rdepth: uint32(cfg.MaxRecvWR)}
	q.sq = make([]rdma.SendWR, ceilPow2(cfg.MaxSendWR))
	for i := range q.sq {
		q.sq[i].SGEs = make([]rdma.SGE, 0, cfg.MaxSendSGE)
		q.sq[i].Inline = make([]byte, 0, cfg.MaxInline)
	}
	if cfg.SRQ == nil {
		q.rq = newRecvRing(cfg.MaxRecvWR, cfg.MaxRecvSGE)
	}
	return q
}

// free returns how many send requests no longer take a slot.
func (q *ownQueues) free() uint32 {
	r := q.retired.Load() // before unpolled: what was retired by now was counted there earlier
	if q.unpolled.Load() == 0 {
		return r
	}
	return q.polled.Load()
}

func (q *ownQueues) postSend(wr *rdma.SendWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.prod-q.free() >= q.depth {
		return fmt.Errorf("post a send request, %d are there: %w", q.depth, rdma.ErrQueueFull)
	}
	copySendWR(&q.sq[q.prod&uint32(len(q.sq)-1)], wr)
	q.prod++
	return nil
}

// copySendWR copies from to to, whose slices are used again.
func copySendWR(to, from *rdma.SendWR) {
	sges, inline := append(to.SGEs[:0], from.SGEs...), to.Inline[:0]
	if from.Flags&rdma.Inline != 0 {
		sges, inline = sges[:0], append(inline, from.Inline...)
	}
	*to = *from
	to.SGEs, to.Inline = sges, inline
}

// Next implements SendQueue.
func (q *ownQueues) Next(wr *rdma.SendWR) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken == q.prod {
		return false, nil
	}
	copySendWR(wr, &q.sq[q.taken&uint32(len(q.sq)-1)])
	q.taken++
	return true, nil
}

// Retire implements SendQueue.
func (q *ownQueues) Retire(n int) { q.retired.Add(uint32(n)) }

func (q *ownQueues) polledSend(sqDone uint32) {
	if q == nil {
		return
	}
	q.polled.Store(sqDone)
	q.unpolled.Add(-1)
}

func (q *ownQueues) polledRecv() {
	if q != nil {
		q.rpolled.Add(1)
	}
}

func (q *ownQueues) postRecv(wr *rdma.RecvWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.rq.prod-q.rpolled.Load() >= q.rdepth || !q.rq.put(wr) {
		return fmt.Errorf("post a receive, %d are there: %w", q.rdepth, rdma.ErrQueueFull)
	}
	return nil
}

// ownRecvQueue is the receive side of ownQueues as a RecvQueue.
type ownRecvQueue struct{ q *ownQueues }

func (r ownRecvQueue) Next(wr *rdma.RecvWR) (uint32, bool, error) {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	return r.q.rq.Next(wr)
}

// Starve does nothing: each post in this process runs the QP.
func (r ownRecvQueue) Starve(bool) {}

// A recvRing holds receives that were posted in this process. It has no lock of its own.
type recvRing struct {
	slots      []rdma.RecvWR // slices hold their full capacity
	prod, cons uint32        // run free
}

func newRecvRing(depth, sges int) *recvRing {
	r := &recvRing{slots: make([]rdma.RecvWR, ceilPow2(depth))}
	for i := range r.slots {
		r.slots[i].SGEs = make([]rdma.SGE, 0, sges)
	}
	return r
}

// put adds wr; false: there is no room.
func (r *recvRing) put(wr *rdma.RecvWR) bool {
	if r.Pending() == len(r.slots) {
		return false
	}
	to := &r.slots[r.prod&uint32(len(r.slots)-1)]
	to.ID = wr.ID
	to.SGEs = append(to.SGEs[:0], wr.SGEs...)
	r.prod++
	return true
}

// Next implements RecvQueue.
func (r *recvRing) Next(wr *rdma.RecvWR) (uint32, bool, error) {
	if r.cons == r.prod {
		return 0, false, nil
	}
	from := &r.slots[r.cons&uint32(len(r.slots)-1)]
	wr.ID = from.ID
	wr.SGEs = append(wr.SGEs[:0], from.SGEs...)
	r.cons++
	return 0, true, nil
}

// Pending implements SharedQueue.
func (r *recvRing) Pending() int { return int(r.prod - r.cons) }

// Starve implements RecvQueue: each post in this process looks who waits.
func (r *recvRing) Starve(bool) {}

// checkRecv checks what can be known of a receive without looking at keys.
func checkRecv(wr *rdma.RecvWR, sges int) error {
	if len(wr.SGEs) > sges {
		return fmt.Errorf("post a receive of %d SGEs, at most %d: %w", len(wr.SGEs), sges, rdma.ErrInvalid)
	}
	if _, ok := total(wr.SGEs); !ok {
		return fmt.Errorf("post a receive of more than 2^32-1 octets: %w", rdma.ErrInvalid)
	}
	return nil
}
