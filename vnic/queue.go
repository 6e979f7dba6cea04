package vnic

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
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

// ownQueues are the queues of a QP whose user is in this process. Those that post lock each other out; who takes,
// one at a time, needs no lock.
type ownQueues struct {
	mu    sync.Mutex
	depth uint32
	base  uint32        // guarded by mu: the request that has the first slot; see postSendLocked
	put   uint32        // guarded by mu: how many were posted
	prod  atomic.Uint32 // how many of them can be taken: see publishLocked
	took  uint32        // the taker's: how many it has
	taken atomic.Uint32 // how many it had when last there was none

	// A slot of the send queue is free again when the completion of its request, or of a later
	// one, has been polled; or when it has been retired and no completion waits to be polled.
	// ended has how many requests have been retired, and above unpolledOne how many completions wait.
	ended  atomic.Uint64
	polled atomic.Uint32

	rpolled atomic.Uint32
	rdepth  uint32
	rmu     sync.Mutex // of those that post receives
	rq      recvRing   // not of a QP with an SRQ

	sq sendSlots
}

const unpolledOne = 1 << 32

func (q *ownQueues) init(cfg *rdma.QPConfig) {
	q.depth, q.rdepth = uint32(cfg.MaxSendWR), uint32(cfg.MaxRecvWR)
	q.sq.init(cfg)
	if cfg.SRQ == nil {
		q.rq.init(cfg.MaxRecvWR, cfg.MaxRecvSGE)
	}
}

// free returns how many send requests no longer take a slot.
func (q *ownQueues) free() uint32 {
	if n := q.ended.Load(); n < unpolledOne {
		return uint32(n)
	}
	return q.polled.Load()
}

// more reports whether there is something to take. The taker asks.
func (q *ownQueues) more() bool { return q.took != q.prod.Load() }

func (q *ownQueues) postSendLocked(wr *rdma.SendWR) error {
	n := q.put
	if n-q.free() >= q.depth {
		return fmt.Errorf("post a send request, %d are there: %w", q.depth, rdma.ErrQueueFull)
	}
	if n-q.taken.Load() == 0 {
		// Who takes looks at base only when there is something. A queue that has run empty begins again with
		// its first slot, which is in the cache.
		q.base = n
	}
	q.sq.put(n-q.base, wr)
	q.put = n + 1
	return nil
}

// publishLocked has what was posted taken.
func (q *ownQueues) publishLocked() { q.prod.Store(q.put) }

// Next implements SendQueue.
func (q *ownQueues) Next(wr *rdma.SendWR) (bool, error) {
	n := q.took
	if n == q.prod.Load() {
		if q.taken.Load() != n {
			q.taken.Store(n)
		}
		return false, nil
	}
	q.sq.get(n-q.base, wr)
	q.took = n + 1
	return true, nil
}

// Retire implements SendQueue.
func (q *ownQueues) Retire(n int) { q.retire(n, 0) }

// retire counts n requests as retired, and unpolled, a multiple of unpolledOne, as completions that come for them.
func (q *ownQueues) retire(n int, unpolled uint64) {
	for {
		old := q.ended.Load()
		if unpolled != 0 && old < unpolledOne {
			// No completion waits, so that nobody else changes polled: all that have been retired stay free, though a
			// completion waits from now on.
			q.polled.Store(uint32(old))
		}
		if q.ended.CompareAndSwap(old, old&^(unpolledOne-1)+unpolled|uint64(uint32(old)+uint32(n))) {
			return
		}
	}
}

// polledSends notes that n completions have been polled; sqDone is that of the last.
func (q *ownQueues) polledSends(n int, sqDone uint32) {
	q.polled.Store(sqDone)
	q.ended.Add(-uint64(n) * unpolledOne)
}

func (q *ownQueues) polledRecvs(n int) { q.rpolled.Add(uint32(n)) }

func (q *ownQueues) postRecvLocked(wr *rdma.RecvWR) error {
	if q.rq.put-q.rpolled.Load() >= q.rdepth {
		return fmt.Errorf("post a receive, %d are there: %w", q.rdepth, rdma.ErrQueueFull)
	}
	q.rq.add(wr)
	return nil
}

// A recvRing holds receives that were posted in this process. One at a time may add, and one take; those that add know
// that there is room.
type recvRing struct {
	took  uint32 // the taker's; runs free, as all
	each  uint32 // how many SGEs of a slot are in more
	slots []recvSlot
	few   [4]recvSlot   // slots, if that is enough; each side has a line of the cache
	put   uint32        // how many were added
	prod  atomic.Uint32 // how many of them can be taken: see publish
	more  []rdma.SGE    // the SGEs of each slot but the first
}

// A recvSlot is an RecvWR in a ring: small, and without pointers.
type recvSlot struct {
	id  uint64
	n   int // how many SGEs
	sge rdma.SGE
}

func (r *recvRing) init(depth, sges int) {
	if r.slots = r.few[:]; depth > len(r.few) {
		r.slots = make([]recvSlot, ceilPow2(depth))
	}
	r.each = uint32(sges - 1)
	r.more = make([]rdma.SGE, (sges-1)*len(r.slots))
}

func (r *recvRing) add(wr *rdma.RecvWR) {
	i := r.put & uint32(len(r.slots)-1)
	to := &r.slots[i]
	to.id, to.n = wr.ID, len(wr.SGEs)
	if to.n > 0 {
		to.sge = wr.SGEs[0]
	}
	if to.n > 1 {
		copy(r.more[i*r.each:][:r.each], wr.SGEs[1:])
	}
	r.put++
}

// publish has what was added taken.
func (r *recvRing) publish() { r.prod.Store(r.put) }

// Next implements RecvQueue.
func (r *recvRing) Next(wr *rdma.RecvWR) (uint32, bool, error) {
	if r.took == r.prod.Load() {
		return 0, false, nil
	}
	i := r.took & uint32(len(r.slots)-1)
	from := &r.slots[i]
	wr.ID, wr.SGEs = from.id, wr.SGEs[:0]
	if from.n > 0 {
		wr.SGEs = append(wr.SGEs, from.sge)
	}
	if from.n > 1 {
		wr.SGEs = append(wr.SGEs, r.more[i*r.each:][:from.n-1]...)
	}
	r.took++
	return 0, true, nil
}

// Pending implements SharedQueue, under whose lock nobody else is here.
func (r *recvRing) Pending() int { return int(r.put - r.took) }

// Starve implements RecvQueue: each post in this process looks who waits.
func (r *recvRing) Starve(bool) {}

// checkRecv checks what can be known of a receive without looking at keys.
func checkRecv(wr *rdma.RecvWR, sges int) error {
	if len(wr.SGEs) > sges {
		return fmt.Errorf("post a receive of %d SGEs, at most %d: %w", len(wr.SGEs), sges, rdma.ErrInvalid)
	}
	if _, ok := mem.Total(wr.SGEs); !ok {
		return fmt.Errorf("post a receive of more than 2^32-1 octets: %w", rdma.ErrInvalid)
	}
	return nil
}
