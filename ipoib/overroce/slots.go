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

// region registers n buffers of size octets.
func region(pd rdma.PD, n, size int) (b []byte, mr rdma.MR, err error) {
	b = make([]byte, n*size)
	mr, err = pd.RegisterMemory(b, rdma.LocalWrite)
	return b, mr, err
}

// Values of slots.user beside the number of a queue pair, which is never less than 2.
const (
	slotFree = 0
	slotHeld = 1 // by who fills it
)

// slots are buffers for frames to be sent.
type slots struct {
	n     int
	size  int
	mem   []byte
	cq    rdma.CQ
	wrs   []rdma.SendWR // of each slot, with its SGE; of who has the slot
	freed chan struct{} // one slot: some have become free

	// posting is held by who posts, so that of a queue pair that is shut all slots are posted.
	posting sync.RWMutex

	mu   sync.Mutex
	free []int     // +checklocks:mu
	user []uint32  // +checklocks:mu
	wcs  []rdma.WC // +checklocks:mu
	// shut are queue pairs that are being closed.
	shut map[uint32]bool // +checklocks:mu
}

func newSlots(pd rdma.PD, size int) (*slots, error) {
	s := &slots{n: room(size), size: size, shut: map[uint32]bool{}, freed: make(chan struct{}, 1)}
	mem, mr, err := region(pd, s.n, size)
	if err != nil {
		return nil, err
	}
	s.mem, s.wrs = mem, make([]rdma.SendWR, s.n)
	s.user, s.wcs = make([]uint32, s.n), make([]rdma.WC, 64)
	for i := range s.wrs {
		s.wrs[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGEs: []rdma.SGE{{
			Addr: mr.Addr() + uint64(i*size), LKey: mr.LKey(),
		}}}
		s.free = append(s.free, i)
	}
	return s, nil
}

// buffer is the memory of a slot.
func (s *slots) buffer(i int) []byte { return s.mem[i*s.size : (i+1)*s.size] }

// take gives a slot that is free, -1: there is none. failed are the queue pairs on which a request
// has failed.
func (s *slots) take() (i int, failed []uint32) {
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
	s.user[i] = slotHeld
	return i, failed
}

// reapLocked takes back what has been sent.
//
// +checklocks:s.mu
func (s *slots) reapLocked() (failed []uint32) {
	for {
		n, err := s.cq.Poll(s.wcs)
		if err != nil || n == 0 {
			return failed
		}
		for i := range s.wcs[:n] {
			wc := &s.wcs[i]
			if s.user[wc.ID] != slotFree {
				s.freeLocked(int(wc.ID))
			}
			if wc.Status != rdma.WCSuccess {
				failed = append(failed, wc.QPN)
			}
		}
	}
}

// +checklocks:s.mu
func (s *slots) freeLocked(i int) {
	s.user[i] = slotFree
	s.free = append(s.free, i)
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// reap takes back what has been sent, and tells which queue pairs have failed.
func (s *slots) reap() (failed []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reapLocked()
}

// post posts n octets of a slot to qp; false: qp has not taken it, and the slot is free again.
func (s *slots) post(i, n int, qp rdma.QP, to rdma.Datagram) bool {
	num := qp.Num()
	s.posting.RLock()
	defer s.posting.RUnlock()
	s.mu.Lock()
	ok := !s.shut[num]
	if ok {
		s.user[i] = num
	} else {
		s.freeLocked(i)
	}
	s.mu.Unlock()
	if !ok {
		return false
	}
	wr := &s.wrs[i]
	wr.SGEs[0].Length, wr.To = uint32(n), to
	if qp.PostSend(wr) == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeLocked(i)
	return false
}

// drop gives a slot back that was not posted.
func (s *slots) drop(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeLocked(i)
}

// close closes a queue pair; the slots that it had are free.
func (s *slots) close(qp rdma.QP) error {
	num := qp.Num()
	s.posting.Lock()
	s.mu.Lock()
	s.shut[num] = true
	s.mu.Unlock()
	s.posting.Unlock()
	err := qp.Close() // nothing of it completes any more, and it looks at no memory
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapLocked()
	for i, user := range s.user {
		if user == num {
			s.freeLocked(i)
		}
	}
	delete(s.shut, num)
	return err
}
