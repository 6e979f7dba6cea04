package queue

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// A Local is the queues of a QP whose user is in this process. Those that post lock each other out;
// who takes, one at a time, needs no lock.
type Local struct {
	mu        sync.Mutex
	depth     uint32
	base      uint32        // guarded by mu: the request that has the first slot; see PostSend
	posted    uint32        // guarded by mu: how many were posted
	published atomic.Uint32 // how many of them can be taken: see UnlockSend
	consumed  uint32        // the taker's: how many it has
	emptyAt   atomic.Uint32 // how many it had when last there was none

	// A slot of the send queue is free again when the completion of its request, or of a later
	// one, has been polled; or when it has been retired and no completion waits to be polled.
	// ended has how many requests have been retired, and above unpolledOne how many completions
	// wait.
	ended  atomic.Uint64
	polled atomic.Uint32

	recvsPolled atomic.Uint32
	recvDepth   uint32
	recvMu      sync.Mutex // of those that post receives
	recvs       recvRing   // not of a QP with an SRQ

	slots sendSlots
}

const unpolledOne = 1 << 32

func (q *Local) init(cfg *rdma.QPConfig, recvs bool) {
	q.depth, q.recvDepth = uint32(cfg.MaxSendWR), uint32(cfg.MaxRecvWR)
	q.slots.init(cfg)
	if recvs {
		q.recvs.init(cfg.MaxRecvWR, cfg.MaxRecvSGE)
	}
}

// free returns how many send requests no longer take a slot.
func (q *Local) free() uint32 {
	if n := q.ended.Load(); n < unpolledOne {
		return uint32(n)
	}
	return q.polled.Load()
}

// More reports whether there is something to take. The taker asks.
func (q *Local) More() bool { return q.consumed != q.published.Load() }

// LockSend begins to post send requests.
//
// +checklocksacquire:q.mu
func (q *Local) LockSend() { q.mu.Lock() }

// UnlockSend has what was posted taken.
//
// +checklocksrelease:q.mu
func (q *Local) UnlockSend() {
	q.published.Store(q.posted)
	q.mu.Unlock()
}

// PostSend posts a copy of wr, whose lengths have been checked, after LockSend; rdma.ErrQueueFull.
func (q *Local) PostSend(wr *rdma.SendWR) error {
	n := q.posted
	if n-q.free() >= q.depth {
		return fmt.Errorf("post a send request, %d are there: %w", q.depth, rdma.ErrQueueFull)
	}
	if n-q.emptyAt.Load() == 0 {
		// Who takes looks at base only when there is something. A queue that has run empty begins again
		// with its first slot, which is in the cache.
		q.base = n
	}
	q.slots.put(n-q.base, wr)
	q.posted = n + 1
	return nil
}

// Next implements SendQueue.
func (q *Local) Next(wr *rdma.SendWR) (bool, error) {
	n := q.consumed
	if n == q.published.Load() {
		if q.emptyAt.Load() != n {
			q.emptyAt.Store(n)
		}
		return false, nil
	}
	q.slots.get(n-q.base, wr)
	q.consumed = n + 1
	return true, nil
}

// Retire implements SendQueue.
func (q *Local) Retire(n int) { q.retire(n, 0) }

// retire counts n requests as retired, and unpolled, a multiple of unpolledOne, as completions that
// come for them.
func (q *Local) retire(n int, unpolled uint64) {
	for {
		old := q.ended.Load()
		if unpolled != 0 && old < unpolledOne {
			// No completion waits, so that nobody else changes polled: all that have been retired stay free,
			// though a completion waits from now on.
			q.polled.Store(uint32(old))
		}
		if q.ended.CompareAndSwap(old, old&^(unpolledOne-1)+unpolled|uint64(uint32(old)+uint32(n))) {
			return
		}
	}
}

// polledSends notes that n completions have been polled; sqDone is that of the last.
func (q *Local) polledSends(n int, sqDone uint32) {
	q.polled.Store(sqDone)
	q.ended.Add(-uint64(n) * unpolledOne)
}

func (q *Local) polledRecvs(n int) { q.recvsPolled.Add(uint32(n)) }

// LockRecv begins to post receives.
//
// +checklocksacquire:q.recvMu
func (q *Local) LockRecv() { q.recvMu.Lock() }

// UnlockRecv has what was posted taken.
//
// +checklocksrelease:q.recvMu
func (q *Local) UnlockRecv() {
	q.recvs.publish()
	q.recvMu.Unlock()
}

// PostRecv checks what can be known of wr without looking at keys and posts a copy, after LockRecv;
// rdma.ErrInvalid, rdma.ErrQueueFull.
func (q *Local) PostRecv(wr *rdma.RecvWR) error {
	if err := checkRecv(wr, int(q.recvs.each)+1); err != nil {
		return err
	}
	if q.recvs.added-q.recvsPolled.Load() >= q.recvDepth {
		return fmt.Errorf("post a receive, %d are there: %w", q.recvDepth, rdma.ErrQueueFull)
	}
	q.recvs.add(wr)
	return nil
}

// A recvRing holds receives that were posted in this process. One at a time may add, and one take;
// those that add know that there is room.
type recvRing struct {
	consumed  uint32 // the taker's: how many it has; runs free, as all
	each      uint32 // how many SGEs of a slot are in more
	slots     []recvSlot
	few       [4]recvSlot   // slots, if that is enough; each side has a line of the cache
	added     uint32        // how many were added
	published atomic.Uint32 // how many of them can be taken: see publish
	more      []rdma.SGE    // the SGEs of each slot but the first
}

// A recvSlot is an RecvWR in a ring: small, and without pointers.
type recvSlot struct {
	id  uint64
	n   int // how many SGEs
	sge rdma.SGE
}

func (r *recvRing) init(depth, sges int) {
	if r.slots = r.few[:]; depth > len(r.few) {
		r.slots = make([]recvSlot, Slots(depth))
	}
	r.each = uint32(sges - 1)
	r.more = make([]rdma.SGE, (sges-1)*len(r.slots))
}

func (r *recvRing) add(wr *rdma.RecvWR) {
	i := r.added & uint32(len(r.slots)-1)
	to := &r.slots[i]
	to.id, to.n = wr.ID, len(wr.SGEs)
	if to.n > 0 {
		to.sge = wr.SGEs[0]
	}
	if to.n > 1 {
		copy(r.more[i*r.each:][:r.each], wr.SGEs[1:])
	}
	r.added++
}

// publish has what was added taken.
func (r *recvRing) publish() { r.published.Store(r.added) }

// Next implements RecvQueue.
func (r *recvRing) Next(wr *rdma.RecvWR) (uint32, bool, error) {
	if r.consumed == r.published.Load() {
		return 0, false, nil
	}
	i := r.consumed & uint32(len(r.slots)-1)
	from := &r.slots[i]
	wr.ID, wr.SGEs = from.id, wr.SGEs[:0]
	if from.n > 0 {
		wr.SGEs = append(wr.SGEs, from.sge)
	}
	if from.n > 1 {
		wr.SGEs = append(wr.SGEs, r.more[i*r.each:][:from.n-1]...)
	}
	r.consumed++
	return 0, true, nil
}

// Pending implements RecvQueue.
func (r *recvRing) Pending() int { return int(r.published.Load() - r.consumed) }

// Starve implements RecvQueue: each post in this process looks who waits.
func (r *recvRing) Starve(bool) {}

// checkRecv checks what can be known of a receive without looking at keys.
func checkRecv(wr *rdma.RecvWR, sges int) error {
	if len(wr.SGEs) > sges {
		return fmt.Errorf("post a receive of %d SGEs, at most %d: %w", len(wr.SGEs), sges,
			rdma.ErrInvalid)
	}
	if _, ok := mem.Total(wr.SGEs); !ok {
		return fmt.Errorf("post a receive of more than 2^32-1 octets: %w", rdma.ErrInvalid)
	}
	return nil
}
