package wqe

import "github.com/vrnic/vrnic/rdma"

// keyRequest carries out a request that works on keys and needs no link: OpLocalInv, OpBindMW,
// OpRegMR. What ends a key completes when nothing is read or written through it any more; until
// then e stays where it is, and the last copy wakes the QP. It blocks nobody: a copy in memory that
// can hang may take as long as it likes.
func (r *Requests) keyRequest(e *Request) {
	s := &r.send
	if e.ended == nil {
		var err error
		if e.WR.Op == rdma.OpLocalInv {
			e.ended, err = r.Memory.LocalInvalidate(e.WR.InvKey)
			e.Status = rdma.WCLocQPOp
		} else {
			e.ended, err = r.Memory.Bind(&e.WR)
			e.Status = rdma.WCMWBind
		}
		if err != nil {
			r.Refuse(e, e.Status, err)
			return
		}
		e.Status = rdma.WCSuccess
		if e.ended != nil && !e.ended.Await(r.owner.Wake) {
			return
		}
	} else if !e.ended.Drained() {
		return // woken for something else
	}
	e.state = done
	s.next++
	r.Retire()
}
