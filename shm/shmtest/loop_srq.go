package shmtest

import (
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// A loopSRQ implements shm.SRQHandler.
type loopSRQ struct {
	pd      *loopPD
	rings   *ring.DaemonSRQ
	limit   uint32
	qps     int
	waiting map[*loopQP]struct{} // whose peers wait for a receive of theirs
}

// SRQSize implements shm.PDHandler: as many as the ring.
func (p *loopPD) SRQSize(uint32, uint32) (wr, sge uint32) { return 0, 0 }

func (p *loopPD) CreateSRQ(_ *rpc.CreateSRQRequest, rings *ring.DaemonSRQ) (server.SRQHandler,
	error) {
	l := p.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	p.use(1)
	return &loopSRQ{pd: p, rings: rings, waiting: make(map[*loopQP]struct{})}, nil
}

// SetLimit implements shm.SRQHandler.
func (s *loopSRQ) SetLimit(n uint32) error {
	s.pd.c.sess.l.mu.Lock()
	defer s.pd.c.sess.l.mu.Unlock()
	s.limit = n
	return nil
}

// Query implements shm.SRQHandler.
func (s *loopSRQ) Query(r *rpc.QuerySRQReply) error {
	s.pd.c.sess.l.mu.Lock()
	defer s.pd.c.sess.l.mu.Unlock()
	r.Limit = s.limit
	return nil
}

// Bell implements shm.SRQHandler: all that wait look.
func (s *loopSRQ) Bell(func() bool) bool {
	s.pd.c.sess.l.mu.Lock()
	defer s.pd.c.sess.l.mu.Unlock()
	waiting := s.waiting
	s.waiting = make(map[*loopQP]struct{})
	s.rings.RQ.Sate()
	for q := range waiting {
		if q.peer != nil {
			q.peer.run()
		}
	}
	return false
}

// Close implements shm.SRQHandler.
func (s *loopSRQ) Close() error {
	s.pd.c.sess.l.mu.Lock()
	defer s.pd.c.sess.l.mu.Unlock()
	if s.qps != 0 {
		return syscall.EBUSY
	}
	s.pd.use(-1)
	return nil
}

// next takes a receive for q.
func (s *loopSRQ) next(q *loopQP, r *abi.RecvWQE) (bool, error) {
	ok, err := s.rings.RQ.Next(r)
	if err == nil && !ok {
		s.waiting[q] = struct{}{}
		if !s.rings.RQ.Starve() {
			ok, err = s.rings.RQ.Next(r)
		}
	}
	if ok {
		delete(s.waiting, q)
	}
	if s.limit > s.rings.RQ.Pending() {
		s.limit = 0
		s.pd.c.events.Push(rpc.AsyncEvent{Type: uint32(rdma.EventSRQLimitReached), Kind: rpc.ObjSRQ,
			Handle: s.rings.Handle})
	}
	return ok, err
}
