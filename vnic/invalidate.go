package vnic

import "github.com/vrnic/vrnic/rdma"

// keyRequest carries out a request that works on keys and needs no link: OpLocalInv, OpBindMW,
// OpRegMR. What ends a key completes when nothing is read or written through it any more; until
// then e stays where it is, and the last copy wakes qp. It blocks nobody: a copy in memory that
// can hang may take as long as it likes.
func (qp *QP) keyRequest(e *sqe) {
	s := &qp.sq
	if e.ended == nil {
		var err error
		if e.wr.Op == rdma.OpLocalInv {
			e.ended, err = qp.mem.LocalInvalidate(e.wr.InvKey)
			e.status = rdma.WCLocQPOp
		} else {
			e.ended, err = qp.mem.Bind(&e.wr)
			e.status = rdma.WCMWBind
		}
		if err != nil {
			qp.log("send request refused", "op", e.wr.Op, "err", err)
			e.state, s.bad = sqeFailed, true
			return
		}
		e.status = rdma.WCSuccess
		if e.ended != nil && !e.ended.Await(qp.wake) {
			return
		}
	} else if !e.ended.Drained() {
		return // woken for something else
	}
	e.state = sqeDone
	s.next++
	qp.retire()
}

// deliverRevoked delivers the Send with Invalidate that has waited for the last copy through the
// key it ended. qp's owner calls it.
func (qp *QP) deliverRevoked() {
	r := &qp.rx
	r.mu.Lock()
	done := r.ended != nil && r.ended.Drained()
	if done {
		r.deliverLocked(false)
	}
	r.mu.Unlock()
	if l, ok := qp.link.(*loopEnd); ok && done {
		l.peer.qp.wake() // it may have another Send
	}
}
