package vnic

import (
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// keyRequest carries out a request that works on keys and needs no link: OpLocalInv, OpBindMW,
// OpRegMR. What ends a key completes when nothing is read or written through it any more; until
// then e stays where it is, and the last copy wakes qp. It blocks nobody: a copy in memory that
// can hang may take as long as it likes.
func (qp *QP) keyRequest(e *sqe) {
	s := &qp.sq
	if e.ended == nil {
		var err error
		if e.wr.Op == rdma.OpLocalInv {
			e.ended, err = qp.localInvalidate(e.wr.InvKey)
			e.status = rdma.WCLocQPOp
		} else {
			var m *MR
			m, e.ended, err = qp.bind(&e.wr)
			e.status = rdma.WCMWBind
			if m != nil {
				qp.ctx.reportOverlap(m)
			}
		}
		if err != nil {
			qp.log("send request refused", "op", e.wr.Op, "err", err)
			e.state, s.bad = sqeFailed, true
			return
		}
		e.status = rdma.WCSuccess
		if e.ended != nil && !e.ended.await(qp.wake) {
			return
		}
	} else if !e.ended.over() {
		return // woken for something else
	}
	e.state = sqeDone
	s.next++
	qp.retire()
}

// localInvalidate ends what key gives and returns it; nil: it gave nothing, and nothing is under
// way. Doing it again, or after the peer has done it, is no error.
func (qp *QP) localInvalidate(key uint32) (*MR, error) {
	pd := qp.pd
	pd.keyMu.Lock()
	defer pd.keyMu.Unlock()
	if s := pd.slots[key>>8]; s != nil {
		switch {
		case s.key != key:
			return nil, fmt.Errorf("invalidate key %#x, which is not the present one", key)
		case s.kind == slotType1:
			return nil, fmt.Errorf("invalidate a window of type 1; bind 0 octets instead")
		case s.cur != nil && s.cur.qp != nil && s.cur.qp != qp:
			return nil, fmt.Errorf("invalidate a window of QP %d", s.cur.qp.num)
		}
		if m := s.endLocked(); m != nil {
			return m, nil
		}
		for _, m := range s.old {
			if m.stag == key {
				return m, nil
			}
		}
		return nil, nil
	}
	m := pd.dev.lookupMR(key)
	switch {
	case m == nil || m.pd != pd:
		return nil, fmt.Errorf("invalidate key %#x: no such region", key)
	case !m.retire():
		return nil, fmt.Errorf("invalidate a region that windows or fast registrations stand on")
	}
	return m, nil
}

// remoteInvalidate carries the peer's Send with Invalidate out and returns what it ended: RFC 5040,
// section 5.3, and ledger A6. A peer can invalidate what is for it alone.
func (qp *QP) remoteInvalidate(stag uint32) (*MR, *iwarp.LocalError) {
	fail := func(code iwarp.TermCode, why string) (*MR, *iwarp.LocalError) {
		return nil, &iwarp.LocalError{Cause: code, Err: fmt.Errorf("invalidate STag %#x: %s", stag, why)}
	}
	m := qp.dev.lookupMR(stag)
	switch {
	case m == nil || m.disabled():
		return fail(iwarp.TermCannotInvalidate, "no such region")
	case m.pd != qp.pd:
		return fail(iwarp.TermInvalidateNotAssociated, "it belongs to another protection domain")
	case m.qp != nil && m.qp != qp:
		return fail(iwarp.TermInvalidateNotAssociated, "it is a window for another connection")
	case m.slot == nil || m.slot.kind == slotType1:
		return fail(iwarp.TermCannotInvalidate, "only its owner can do that")
	case m.access&remoteRights == 0:
		return fail(iwarp.TermCannotInvalidate, "it is not for peers")
	case m.qp == nil && qp.pd.shared():
		// "A peer cannot invalidate an STag that is shared by several streams": SEC-038.
		return fail(iwarp.TermCannotInvalidate, "other connections can use it")
	}
	qp.pd.keyMu.Lock()
	defer qp.pd.keyMu.Unlock()
	if m.slot.cur != m {
		return fail(iwarp.TermCannotInvalidate, "no such region")
	}
	return m.slot.endLocked(), nil
}

// deliverRevoked delivers the Send with Invalidate that has waited for the last copy through the
// key it ended. qp's owner calls it.
func (qp *QP) deliverRevoked() {
	r := &qp.rx
	r.mu.Lock()
	done := r.ended != nil && r.ended.over()
	if done {
		r.deliverLocked(false)
	}
	r.mu.Unlock()
	if l, ok := qp.link.(*loopEnd); ok && done {
		l.peer.qp.wake() // it may have another Send
	}
}
