package overroce

import (
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// How much memory there is for sending, and for each kind of receives, and how many packets it is
// for.
const (
	memory   = 8 << 20
	leastWRs = 64
	mostWRs  = 1024
)

// room is how many buffers of size octets there are.
func room(size int) int { return min(max(memory/size, leastWRs), mostWRs) }

// A sender is a queue pair whose requests are in slots.
type sender struct {
	rdma.QP
	slots rdma.MR // as its device knows them
	conn  *conn   // nil of the UD queue pair
	shut  bool    // it is being closed; the mutex of slots guards it
}

// held has a slot that somebody fills.
var held = new(sender)

// slots are buffers for frames to be sent.
type slots struct {
	n     int
	size  int
	mem   []byte
	cqs   []rdma.CQ
	wrs   []rdma.SendWR // of each slot, with its SGE; of who has the slot
	freed chan struct{} // one slot: some have become free

	// posting is held by who posts, so that of a queue pair that is shut all slots are posted.
	posting sync.RWMutex

	mu   sync.Mutex
	free []int     // +checklocks:mu
	user []*sender // +checklocks:mu
	wcs  []rdma.WC // +checklocks:mu
}

func newSlots(size int) *slots {
	s := &slots{n: room(size), size: size, freed: make(chan struct{}, 1)}
	s.mem, s.wrs = make([]byte, s.n*size), make([]rdma.SendWR, s.n)
	s.user, s.wcs = make([]*sender, s.n), make([]rdma.WC, 64)
	for i := range s.wrs {
		s.wrs[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGEs: make([]rdma.SGE, 1)}
		s.free = append(s.free, i)
	}
	return s
}

// register has queue pairs of a device send what is in slots.
func (s *slots) register(d *side) error {
	mr, err := d.pd.RegisterMemory(s.mem, rdma.LocalWrite)
	if err != nil {
		return err
	}
	d.slots = mr
	s.cqs = append(s.cqs, d.sendCQ)
	return nil
}

// buffer is the memory of a slot.
func (s *slots) buffer(i int) []byte { return s.mem[i*s.size : (i+1)*s.size] }

// take gives a slot that is free, -1: there is none. failed are the queue pairs on which a request
// has failed.
func (s *slots) take() (i int, failed []*sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) < s.n/2 {
		failed = s.reapLocked()
	}
	if len(s.free) == 0 {
		return -1, failed
	}
	i = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.user[i] = held
	return i, failed
}

// reapLocked takes back what has been sent.
//
// +checklocks:s.mu
func (s *slots) reapLocked() (failed []*sender) {
	for _, cq := range s.cqs {
		for {
			n, err := cq.Poll(s.wcs)
			if err != nil || n == 0 {
				break
			}
			for i := range s.wcs[:n] {
				wc := &s.wcs[i]
				qp := s.user[wc.ID]
				if qp == nil {
					continue
				}
				s.freeLocked(int(wc.ID))
				if wc.Status != rdma.WCSuccess {
					failed = append(failed, qp)
				}
			}
		}
	}
	return failed
}

// +checklocks:s.mu
func (s *slots) freeLocked(i int) {
	s.user[i] = nil
	s.free = append(s.free, i)
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// reap takes back what has been sent, and tells which queue pairs have failed.
func (s *slots) reap() (failed []*sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reapLocked()
}

// request is the one that sends n octets of a slot by qp.
func (s *slots) request(i, n int, qp *sender, to rdma.Datagram) *rdma.SendWR {
	wr := &s.wrs[i]
	wr.To = to
	wr.SGEs[0] = rdma.SGE{Addr: qp.slots.Addr() + uint64(i*s.size), Length: uint32(n),
		LKey: qp.slots.LKey()}
	return wr
}

// post posts requests of slots to qp, and says how many; the slots of the others are free again.
func (s *slots) post(qp *sender, wrs []rdma.SendWR) (n int) {
	s.posting.RLock()
	defer s.posting.RUnlock()
	s.mu.Lock()
	shut := qp.shut
	for i := range wrs {
		if s.user[wrs[i].ID] = qp; shut {
			s.freeLocked(int(wrs[i].ID))
		}
	}
	s.mu.Unlock()
	if shut {
		return 0
	}
	n, err := qp.PostSends(wrs)
	if err == nil {
		return n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wrs[n:] {
		s.freeLocked(int(wrs[n+i].ID))
	}
	return n
}

// holders are the queue pairs that have slots, each once for each.
func (s *slots) holders() (qps []*sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, qp := range s.user {
		if qp != nil {
			qps = append(qps, qp)
		}
	}
	return qps
}

// plenty says that there are slots for more than who takes them is about to post.
func (s *slots) plenty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.free) > s.n/4
}

// drop gives a slot back that was not posted.
func (s *slots) drop(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeLocked(i)
}

// close closes a queue pair; the slots that it had are free.
func (s *slots) close(qp *sender) error {
	s.posting.Lock()
	s.mu.Lock()
	qp.shut = true
	s.mu.Unlock()
	s.posting.Unlock()
	err := qp.Close() // nothing of it completes any more, and it looks at no memory
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapLocked()
	for i, user := range s.user {
		if user == qp {
			s.freeLocked(i)
		}
	}
	return err
}
