package queue

import (
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/handle"
)

// A Config says what a Space is made of.
type Config struct {
	CQ, CQDepth int // CQs; completions in one
	SRQ         int // SRQs
	Depth, SGE  int // receives in an SRQ; SGEs of one
	// Event reports something that happened to a CQ or an SRQ outside of any request. It must not
	// block nor call this package.
	Event func(t rdma.AsyncEventType, object uint32)
}

// A Space is the queues of one user of a device that are no QP's: CQs and SRQs.
type Space struct {
	cfg Config

	mu     sync.Mutex
	closed error              // guarded by mu: why nothing more is made; nil: it is open
	cqs    handle.Table[*CQ]  // +checklocks:mu
	srqs   handle.Table[*SRQ] // +checklocks:mu
}

// Init makes s a space of cfg.
func (s *Space) Init(cfg Config) { s.cfg = cfg }

// CQs returns the completion queues, in any order.
func (s *Space) CQs() []*CQ {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cqs.Slice()
}

// SRQs returns the shared receive queues, in any order.
func (s *Space) SRQs() []*SRQ {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srqs.Slice()
}

// Shut has everything that is to be made in s refused with err.
func (s *Space) Shut(err error) {
	s.mu.Lock()
	s.closed = err
	s.mu.Unlock()
}

// Close closes the CQs, after Shut, when no QP is left.
func (s *Space) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cq := range s.cqs.All() {
		cq.shut()
	}
	s.cqs, s.srqs = handle.Table[*CQ]{}, handle.Table[*SRQ]{}
}

// Slots is how many slots a queue of n requests has: the least power of two that is not below n,
// which is at least 1 and small.
func Slots(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

// signal puts a token into a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
