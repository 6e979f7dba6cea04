package shm

import (
	"cmp"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
)

// A cookie names an outstanding receive: the low bits are one more than its place in the table, so
// that none is 0, and the high bits tell it from earlier ones at that place.
const (
	cookieBits = 17 // MaxDepth fits
	cookieMask = 1<<cookieBits - 1
)

// A receiver is the client's end of a receive queue, a QP's or an SRQ's, with its account. A
// receive is outstanding until it has been polled, which is after its slot in the ring is free
// again.
type receiver struct {
	d         *Device
	bell      uint32
	maxSGE    int
	errClosed error

	of *ring.ClientQP // of a QP of RoCE, which takes nothing in Reset; else nil

	mu   sync.Mutex
	ring *ring.RecvProducer // nil once closed; guarded by mu, as what follows
	wqe  abi.RecvWQE
	wrs  []recvWR
	free []uint32 // places in wrs
	seq  uint64   // posts so far
	// order is what remains to be flushed on a dead session, oldest first.
	order []int // +checklocks:mu
}

type recvWR struct {
	id     uint64
	seq    uint64 // when it was posted: 0 is none outstanding
	cookie uint32
}

func (r *receiver) init(d *Device, bell uint32, ring *ring.RecvProducer, errClosed error) {
	size := ring.Size()
	r.d, r.bell, r.ring, r.maxSGE, r.errClosed = d, bell, ring, ring.MaxSGE(), errClosed
	r.wrs = make([]recvWR, size)
	r.free = make([]uint32, 0, size)
	r.forgetLocked()
}

// forget takes all receives off the table.
func (r *receiver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked()
}

func (r *receiver) forgetLocked() {
	r.free = r.free[:0]
	for i := len(r.wrs) - 1; i >= 0; i-- {
		r.wrs[i].seq = 0
		r.free = append(r.free, uint32(i))
	}
}

// post posts one receive.
func (r *receiver) post(wr *rdma.RecvWR) error {
	if wr == nil {
		return errNoRequest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayPost(); err != nil {
		return err
	}
	if err := r.put(wr); err != nil {
		return err
	}
	return r.commit()
}

// postAll posts wrs in order with one doorbell, and says how many were taken.
func (r *receiver) postAll(wrs []rdma.RecvWR) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayPost(); err != nil {
		return 0, err
	}
	for n < len(wrs) {
		if err = r.put(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n != 0 {
		if e := r.commit(); e != nil {
			return n, e
		}
	}
	return n, err
}

func (r *receiver) mayPost() error {
	if r.ring == nil {
		return r.errClosed
	}
	if r.of != nil && r.of.State() == abi.StateReset {
		if r.d.c.checkPeer(); r.d.c.gone() == nil { // as in State
			return errQPReset
		}
	}
	return r.d.c.gone()
}

// put writes wr into the next slot: mu is held.
func (r *receiver) put(wr *rdma.RecvWR) error {
	if len(wr.SGEs) > r.maxSGE {
		return errSGEs
	}
	if len(r.free) == 0 {
		return errRecvFull
	}
	i := r.free[len(r.free)-1]
	e := &r.wrs[i]
	cookie := (e.cookie&^cookieMask + 1<<cookieBits) | (i + 1)
	w := &r.wqe
	w.WRID, w.Cookie = wr.ID, cookie
	w.NumSGE = uint32(copySGEs(&w.SGE, wr.SGEs))
	if err := r.ring.Put(w); err != nil {
		return r.d.putFailed(err)
	}
	r.free = r.free[:len(r.free)-1]
	r.seq++
	*e = recvWR{id: wr.ID, seq: r.seq, cookie: cookie}
	return nil
}

func (r *receiver) commit() error {
	if r.ring.Commit() {
		return r.d.ring(r.bell)
	}
	return nil
}

// received takes the receive with this cookie off the table; false if there is none.
func (r *receiver) received(cookie uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := cookie&cookieMask - 1
	if i >= uint32(len(r.wrs)) || r.wrs[i].seq == 0 || r.wrs[i].cookie != cookie {
		return false
	}
	r.wrs[i].seq = 0
	r.free = append(r.free, i) // there is room: it had the place before
	return true
}

// flush completes what is outstanding on the QP qpn, in the order of posting, when the session is
// dead.
func (r *receiver) flush(wc []rdma.WC, qpn uint32) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.order == nil { // mayPost lets nothing in any more
		r.order = make([]int, 0, len(r.wrs))
		for i := range r.wrs {
			if r.wrs[i].seq != 0 {
				r.order = append(r.order, i)
			}
		}
		slices.SortFunc(r.order, func(a, b int) int { return cmp.Compare(r.wrs[a].seq, r.wrs[b].seq) })
	}
	for n < len(wc) && len(r.order) != 0 {
		wc[n] = rdma.WC{ID: r.wrs[r.order[0]].id, Status: rdma.WCFlush, Op: rdma.WCRecv, QPN: qpn}
		r.order = r.order[1:]
		n++
	}
	return n
}

// PostRecv implements rdma.QP.
func (q *queuePair) PostRecv(wr *rdma.RecvWR) error {
	if q.srq != nil {
		return errHasSRQ
	}
	return q.rq.post(wr)
}

// PostRecvs implements rdma.QP.
func (q *queuePair) PostRecvs(wrs []rdma.RecvWR) (n int, err error) {
	if q.srq != nil {
		return 0, errHasSRQ
	}
	return q.rq.postAll(wrs)
}

// receiver is where the receives come from that complete on q.
func (q *queuePair) receiver() *receiver {
	if q.srq != nil {
		return &q.srq.rq
	}
	return &q.rq
}
