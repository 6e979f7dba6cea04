package daemon

import (
	"maps"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/vnic"
)

// A slab of a QP is a region to the RNIC, which nobody else knows of: what a client posts from its
// tx slab has the slab's octets for its SGE, and a small receive is placed in the rx slab instead
// of the program's own memory, for the client to copy when it polls.

// registerSlab makes a region of a slab, whose first octet has address 0; nil if there is no slab.
func (h *pdHandler) registerSlab(mem []byte, rights rdma.Access) (*vnic.MR, error) {
	if len(mem) == 0 {
		return nil, nil
	}
	return h.pd.RegisterRegion(vnic.Region{Bytes: mem, Internal: true}, 0, uint64(len(mem)), rights)
}

// sendsOctets reports whether a request of this kind can take its octets from a slab.
func sendsOctets(op rdma.Opcode) bool {
	switch op {
	case rdma.OpSend, rdma.OpSendImm, rdma.OpSendInv, rdma.OpWrite, rdma.OpWriteImm:
		return true
	default:
		return false
	}
}

// A recvSlab places the receives of a QP in its rx slab. It is called with the QP's receive side
// locked.
type recvSlab struct {
	pd   *vnic.PD
	ring *ring.RxSlabProducer
	mr   *vnic.MR

	// The receive that has been taken and not been completed: one at a time goes through the slab.
	taken  bool
	cookie uint32
	off    uint32
}

// place puts a part of the slab in the place of the receive's memory, if it is small, there is
// room, and the memory may be written. An error ends the session.
func (s *recvSlab) place(wr *rdma.RecvWR, cookie uint32) error {
	if s.taken {
		return nil
	}
	var n uint64
	for _, e := range wr.SGEs {
		n += uint64(e.Length)
	}
	off, ok, err := s.ring.Reserve(n)
	if err != nil || !ok || s.pd.CheckSGEs(wr.SGEs, true) != nil {
		return err
	}
	s.taken, s.cookie, s.off = true, cookie, off
	wr.SGEs = append(wr.SGEs[:0], rdma.SGE{Addr: uint64(off), Length: uint32(n), LKey: s.mr.LKey()})
	return nil
}

// complete says in e where the octets are of a receive that completes as wc. Other completions of
// the QP come here with its receive side not locked.
func (s *recvSlab) complete(e *abi.CQE, wc *rdma.WC) {
	if wc.Op != rdma.WCRecv && wc.Op != rdma.WCRecvImm || !s.taken || s.cookie != e.Cookie {
		return
	}
	s.taken = false
	// A Write with immediate data leaves the receive alone, whatever its length.
	if wc.Status == rdma.WCSuccess && wc.ByteLen != 0 && wc.Op == rdma.WCRecv {
		s.ring.Commit(wc.ByteLen)
		e.SlabOff, e.SlabLen = s.off, wc.ByteLen
	}
}

// recvSlabs are those of the QPs that complete on a CQ, by number. The map is never changed: set
// makes another.
type recvSlabs struct {
	p atomic.Pointer[map[uint32]*recvSlab]
}

func (r *recvSlabs) of(qpn uint32) *recvSlab {
	if m := r.p.Load(); m != nil {
		return (*m)[qpn]
	}
	return nil
}

// set sets or, with nil, removes the slab of a QP. Only the session's control goroutine calls it.
func (r *recvSlabs) set(qpn uint32, s *recvSlab) {
	next := map[uint32]*recvSlab{}
	if m := r.p.Load(); m != nil {
		maps.Copy(next, *m)
	}
	next[qpn] = s
	if s == nil {
		delete(next, qpn)
	}
	r.p.Store(&next)
}
