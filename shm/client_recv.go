package shm

import (
	"cmp"
	"slices"

	"github.com/vrnic/vrnic/rdma"
)

// A cookie names an outstanding receive: the low bits are one more than its place in the table, so
// that none is 0, and the high bits tell it from earlier ones at that place.
const (
	cookieBits = 17 // MaxDepth fits
	cookieMask = 1<<cookieBits - 1
)

// recvState is the client's account of a receive queue: rqMu guards it. A receive is outstanding
// until it has been polled, which is after its slot in the ring is free again.
type recvState struct {
	wqe  RecvWQE
	wrs  []recvWR
	free []uint32 // places in wrs
	seq  uint64   // posts so far
	// order is what remains to be flushed on a dead session, oldest first.
	order []int
}

type recvWR struct {
	id     uint64
	seq    uint64 // when it was posted: 0 is none outstanding
	cookie uint32
}

func (s *recvState) init(size int) {
	s.wrs = make([]recvWR, size)
	s.free = make([]uint32, size)
	for i := range s.free {
		s.free[i] = uint32(size - 1 - i)
	}
}

// PostRecv implements rdma.QP.
func (q *queuePair) PostRecv(wr *rdma.RecvWR) error {
	if wr == nil {
		return errNoRequest
	}
	q.rqMu.Lock()
	defer q.rqMu.Unlock()
	if err := q.mayPost(false); err != nil {
		return err
	}
	if err := q.putRecv(wr); err != nil {
		return err
	}
	return q.commitRecvs()
}

// PostRecvs implements rdma.QP.
func (q *queuePair) PostRecvs(wrs []rdma.RecvWR) (n int, err error) {
	q.rqMu.Lock()
	defer q.rqMu.Unlock()
	if err := q.mayPost(false); err != nil {
		return 0, err
	}
	for n < len(wrs) {
		if err = q.putRecv(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n != 0 {
		if e := q.commitRecvs(); e != nil {
			return n, e
		}
	}
	return n, err
}

// putRecv writes wr into the next slot: rqMu is held.
func (q *queuePair) putRecv(wr *rdma.RecvWR) error {
	if len(wr.SGEs) > q.cfg.MaxRecvSGE {
		return errSGEs
	}
	s := &q.rq
	if len(s.free) == 0 {
		return errRecvFull
	}
	i := s.free[len(s.free)-1]
	e := &s.wrs[i]
	cookie := (e.cookie&^cookieMask + 1<<cookieBits) | (i + 1)
	w := &s.wqe
	w.WRID, w.Cookie = wr.ID, cookie
	w.NumSGE = uint32(copySGEs(&w.SGE, wr.SGEs))
	if err := q.m.RQ.Put(w); err != nil {
		return q.putFailed(err)
	}
	s.free = s.free[:len(s.free)-1]
	s.seq++
	*e = recvWR{id: wr.ID, seq: s.seq, cookie: cookie}
	return nil
}

func (q *queuePair) commitRecvs() error {
	if q.m.RQ.Commit() {
		return q.ring()
	}
	return nil
}

// received takes the receive with this cookie off the table; false if there is none.
func (q *queuePair) received(cookie uint32) bool {
	q.rqMu.Lock()
	defer q.rqMu.Unlock()
	s := &q.rq
	i := cookie&cookieMask - 1
	if i >= uint32(len(s.wrs)) || s.wrs[i].seq == 0 || s.wrs[i].cookie != cookie {
		return false
	}
	s.wrs[i].seq = 0
	s.free = append(s.free, i) // there is room: it had the place before
	return true
}

// flushRecvs completes what is outstanding, in the order of posting, when the session is dead.
func (q *queuePair) flushRecvs(wc []rdma.WC) (n int) {
	q.rqMu.Lock()
	defer q.rqMu.Unlock()
	s := &q.rq
	if s.order == nil { // mayPost lets nothing in any more
		s.order = make([]int, 0, len(s.wrs))
		for i := range s.wrs {
			if s.wrs[i].seq != 0 {
				s.order = append(s.order, i)
			}
		}
		slices.SortFunc(s.order, func(a, b int) int { return cmp.Compare(s.wrs[a].seq, s.wrs[b].seq) })
	}
	for n < len(wc) && len(s.order) != 0 {
		wc[n] = rdma.WC{ID: s.wrs[s.order[0]].id, Status: rdma.WCFlush, Op: rdma.WCRecv, QPN: q.num}
		s.order = s.order[1:]
		n++
	}
	return n
}
