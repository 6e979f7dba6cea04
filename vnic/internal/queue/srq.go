package queue

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// A SharedQueue is a RecvQueue that several QPs take from, one at a time. The wish of Starve(true)
// stays until Starve(false), also when Next gives a receive.
type SharedQueue interface{ RecvQueue }

// SRQOptions say what an SRQ is made of.
type SRQOptions struct {
	rdma.SRQConfig
	// Queue is filled by somebody else, who calls SRQ.Ring; nil: a queue in this process, filled by
	// PostRecv.
	Queue SharedQueue
}

// An SRQ is a shared receive queue. It implements rdma.SRQ.
//
// A receive belongs to the SRQ until a QP takes it for a Send that has begun to come in; then it
// completes, or flushes, on that QP's CQ. A QP that is closed in the midst of a Send gives it back.
type SRQ struct {
	space *Space
	pd    *mem.PD
	num   uint32
	cfg   rdma.SRQConfig

	out    atomic.Int32 // receives that its QPs hold: see Tap.out
	pairs  atomic.Int32 // QPs that use it; changes with space.mu held
	closed bool         // guarded by space.mu

	mu      sync.Mutex
	queue   SharedQueue // guarded by mu, as all below
	own     *recvRing   // nil for a foreign queue
	back    []takenRecv // given back by QPs that were closed: they come first
	limit   int         // 0: not armed
	waiting []*Tap      // QPs that wait for a receive
	taken   uint64      // in all
	waits   uint64      // how often a QP had to wait, for a receive or for its quota
	over    uint64      // of them, for its quota
	limits  uint64      // limit events
}

type takenRecv struct {
	wr     rdma.RecvWR
	cookie uint32
}

// NewSRQ makes a shared receive queue for receives into memory of pd.
func (c *Space) NewSRQ(pd *mem.PD, o SRQOptions) (*SRQ, error) {
	cfg := o.SRQConfig
	switch {
	case cfg.MaxWR < 0 || cfg.MaxWR > c.cfg.Depth:
		return nil, fmt.Errorf("create an SRQ with MaxWR %d, possible are 1 to %d: %w", cfg.MaxWR,
			c.cfg.Depth, rdma.ErrInvalid)
	case cfg.MaxSGE < 0 || cfg.MaxSGE > c.cfg.SGE:
		return nil, fmt.Errorf("create an SRQ with MaxSGE %d, possible are 1 to %d: %w", cfg.MaxSGE,
			c.cfg.SGE, rdma.ErrInvalid)
	}
	cfg.MaxWR, cfg.MaxSGE = max(cfg.MaxWR, 1), max(cfg.MaxSGE, 1)
	s := &SRQ{space: c, pd: pd, cfg: cfg, queue: o.Queue}
	if s.queue == nil {
		s.own = new(recvRing)
		s.own.init(cfg.MaxWR, cfg.MaxSGE)
		s.queue = s.own
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	if err := pd.AddQueue(); err != nil {
		return nil, fmt.Errorf("create an SRQ: %w", err)
	}
	num, err := c.srqs.Add(s, c.cfg.SRQ)
	if err != nil {
		pd.RemoveQueue()
		return nil, fmt.Errorf("create an SRQ: %w", err)
	}
	s.num = num
	return s, nil
}

func (s *SRQ) Num() uint32            { return s.num }
func (s *SRQ) PD() *mem.PD            { return s.pd }
func (s *SRQ) Config() rdma.SRQConfig { return s.cfg }

// Close destroys s; rdma.ErrBusy while a QP uses it. What is posted is forgotten, and a foreign
// queue is not touched any more.
func (s *SRQ) Close() error {
	c := s.space
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return nil
	}
	if n := s.pairs.Load(); n > 0 {
		return fmt.Errorf("destroy an SRQ with %d QPs: %w", n, rdma.ErrBusy)
	}
	s.closed = true
	s.pd.RemoveQueue()
	c.srqs.Remove(s.num)
	s.mu.Lock()
	s.own, s.queue, s.back = nil, nil, nil
	s.mu.Unlock()
	return nil
}

// PostRecv posts one receive.
func (s *SRQ) PostRecv(wr *rdma.RecvWR) error {
	err := s.post(wr)
	if err == nil {
		s.Ring()
	}
	return err
}

// PostRecvs posts wrs in order.
func (s *SRQ) PostRecvs(wrs []rdma.RecvWR) (n int, err error) {
	for n < len(wrs) {
		if err = s.post(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		s.Ring()
	}
	return n, err
}

func (s *SRQ) post(wr *rdma.RecvWR) error {
	if err := checkRecv(wr, s.cfg.MaxSGE); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.queue == nil:
		return fmt.Errorf("post to SRQ %d: %w", s.num, rdma.ErrClosed)
	case s.own == nil:
		return fmt.Errorf("post to SRQ %d, whose queue is elsewhere: %w", s.num, rdma.ErrUnsupported)
	case s.pendingLocked()+int(s.out.Load()) >= s.cfg.MaxWR:
		// As with a QP's own queue, so that a CQ of its size cannot overflow.
		return fmt.Errorf("post a receive to SRQ %d, %d are there or wait to be polled: %w", s.num,
			s.cfg.MaxWR, rdma.ErrQueueFull)
	}
	s.own.add(wr)
	s.own.publish()
	return nil
}

// Ring says that something was posted to a foreign queue. It wakes every QP that waits for it;
// those that find nothing wait again.
func (s *SRQ) Ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *SRQ) wakeLocked() {
	if len(s.waiting) == 0 {
		return
	}
	s.queue.Starve(false)
	for i, t := range s.waiting {
		t.pos, s.waiting[i] = -1, nil
		t.pair.wake()
	}
	s.waiting = s.waiting[:0]
}

// SetLimit arms the limit.
func (s *SRQ) SetLimit(n int) error {
	if n < 0 || n > s.cfg.MaxWR {
		return fmt.Errorf("set the limit of SRQ %d to %d, possible are 0 to %d: %w", s.num, n,
			s.cfg.MaxWR, rdma.ErrInvalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return fmt.Errorf("set the limit of SRQ %d: %w", s.num, rdma.ErrClosed)
	}
	s.limit = n
	return nil
}

// Limit is what is armed.
func (s *SRQ) Limit() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return 0, fmt.Errorf("limit of SRQ %d: %w", s.num, rdma.ErrClosed)
	}
	return s.limit, nil
}

func (s *SRQ) pendingLocked() int { return s.queue.Pending() + len(s.back) }

// quota is how many receives of s one QP may hold; 0: no limit.
func (s *SRQ) quota() int {
	switch {
	case s.cfg.MaxPerQP > 0:
		return s.cfg.MaxPerQP
	case s.cfg.MaxPerQP == 0 && s.pairs.Load() > 1:
		return max(s.cfg.MaxWR/2, 1)
	}
	return 0
}

// A Tap is what a QP takes its receives through: the RecvQueue of a QP with an SRQ.
type Tap struct {
	srq  *SRQ
	pair *Pair
	pos  int // in srq.waiting, below 0: not there; guarded by srq.mu

	// out counts the receives that the QP has taken and of which nobody has polled the completion:
	// what a peer holds of the pool. waits says that it would take one more but for that.
	out   atomic.Int32
	waits atomic.Bool
	taken atomic.Uint64 // in all
}

// SRQ is where t takes receives from.
func (t *Tap) SRQ() *SRQ { return t.srq }

// Taken is how many receives the QP has taken in all; Held, how many of them nobody has polled yet.
func (t *Tap) Taken() uint64 { return t.taken.Load() }
func (t *Tap) Held() int     { return int(t.out.Load()) }

// Waits reports whether the QP holds as many as it may and would take one more.
func (t *Tap) Waits() bool { return t.waits.Load() }

// Next implements RecvQueue.
func (t *Tap) Next(wr *rdma.RecvWR) (cookie uint32, ok bool, err error) {
	s := t.srq
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.quota(); q > 0 && t.full(q) {
		if !t.waits.Swap(true) {
			s.over++
		}
		if t.full(q) { // a poll may have come in between
			return 0, false, nil
		}
	}
	t.waits.Store(false)
	if n := len(s.back); n > 0 {
		b := &s.back[0]
		wr.ID, wr.SGEs, cookie, ok = b.wr.ID, append(wr.SGEs[:0], b.wr.SGEs...), b.cookie, true
		s.back = s.back[1:]
	} else if cookie, ok, err = s.queue.Next(wr); err != nil {
		return 0, false, err
	}
	if ok {
		s.taken++
		t.taken.Add(1)
		t.out.Add(1)
		s.out.Add(1)
	}
	if s.limit > 0 && s.pendingLocked() < s.limit {
		s.limit = 0 // "the limit event disarms itself"
		s.limits++
		s.space.cfg.Event(rdma.EventSRQLimitReached, s.num)
	}
	return cookie, ok, nil
}

// Pending implements RecvQueue: they are there for all QPs of the SRQ.
func (t *Tap) Pending() int {
	s := t.srq
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pendingLocked()
}

// full reports whether the QP holds as many receives as it may.
func (t *Tap) full(quota int) bool {
	if int(t.out.Load()) < quota {
		return false
	}
	t.pair.RecvCQ.countPolled() // those of a foreign CQ, polled since
	return int(t.out.Load()) >= quota
}

// Starve implements RecvQueue.
func (t *Tap) Starve(on bool) {
	s := t.srq
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && t.pos < 0:
		t.pos = len(s.waiting)
		s.waiting = append(s.waiting, t)
		s.waits++
		s.queue.Starve(true)
	case !on && t.pos >= 0:
		last := len(s.waiting) - 1
		s.waiting[t.pos] = s.waiting[last]
		s.waiting[t.pos].pos = t.pos
		s.waiting[last], s.waiting = nil, s.waiting[:last]
		t.pos = -1
		if last == 0 {
			s.queue.Starve(false)
		}
	}
	if !on {
		t.waits.Store(false)
	}
}

// GiveBack returns a receive that was taken and not completed.
func (t *Tap) GiveBack(wr *rdma.RecvWR, cookie uint32) {
	t.polled(1)
	s := t.srq
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, takenRecv{
		rdma.RecvWR{ID: wr.ID, SGEs: append([]rdma.SGE(nil), wr.SGEs...)}, cookie})
	s.wakeLocked()
}

// polled says that the QP holds k receives less.
func (t *Tap) polled(k int) {
	for n := t.out.Load(); n > 0; n = t.out.Load() { // 0: drop was here
		d := min(n, int32(k))
		if t.out.CompareAndSwap(n, n-d) {
			t.srq.out.Add(-d)
			break
		}
	}
	if t.waits.Load() {
		t.pair.wake()
	}
}

// drop forgets what the QP holds: it is no more, and nothing of it is polled.
func (t *Tap) drop() { t.srq.out.Add(-t.out.Swap(0)) }

// SRQStats are what an SRQ has counted.
type SRQStats struct {
	MaxPerQP, QPs int
	Posted        int // and not taken
	Taken         uint64
	Waits         uint64 // times that a Send had to wait
	OverQuota     uint64 // of them, for its QP's quota
	Limit         int    // that is armed
	Limits        uint64 // limit events
}

// Stats returns what s has counted; false: it is closed.
func (s *SRQ) Stats() (SRQStats, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return SRQStats{}, false
	}
	return SRQStats{
		MaxPerQP: s.quota(), QPs: int(s.pairs.Load()), Posted: s.pendingLocked(), Taken: s.taken,
		Waits: s.waits, OverQuota: s.over, Limit: s.limit, Limits: s.limits,
	}, true
}
