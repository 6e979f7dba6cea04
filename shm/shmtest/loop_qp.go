package shmtest

import (
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// maxMessage is the most that a Loop moves in one request.
const maxMessage = 1 << 24

// A loopQP implements shm.QPHandler.
type loopQP struct {
	l      *Loop
	pd     *loopPD
	num    uint32
	sigAll bool
	scq    *loopCQ
	rcq    *loopCQ
	rings  *shm.QPRings

	state   uint32
	closed  bool
	peer    *loopQP
	id      *loopID // told of the end
	waiting *shm.SendWQE
	wqe     shm.SendWQE
}

func (p *loopPD) CreateQP(req *shm.CreateQPRequest, _ shm.QPCaps, scq, rcq shm.CQHandler, rings *shm.QPRings) (shm.QPHandler, error) {
	l := p.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextQPN++
	q := &loopQP{
		l: l, pd: p, num: l.nextQPN, sigAll: req.Flags&shm.CreateQPSigAll != 0,
		scq: scq.(*loopCQ), rcq: rcq.(*loopCQ), rings: rings, state: shm.StateInit,
	}
	q.scq.qps++
	q.rcq.qps++
	p.uses++
	p.c.sess.qps[q] = struct{}{}
	p.c.sess.count(1)
	return q, nil
}

// Num implements shm.QPHandler.
func (q *loopQP) Num() uint32 { return q.num }

// Modify implements shm.QPHandler.
func (q *loopQP) Modify(req *shm.ModifyQPRequest) error {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if req.Mask&shm.ModifyQPState != 0 {
		if req.State != shm.StateErr {
			return syscall.EINVAL
		}
		q.fail(0)
	}
	return nil
}

// Query implements shm.QPHandler.
func (q *loopQP) Query(r *shm.QueryQPReply) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	r.State = q.state
}

// Close implements shm.QPHandler.
func (q *loopQP) Close() error {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	q.closed = true
	q.fail(0)
	delete(q.pd.c.sess.qps, q)
	q.scq.qps--
	q.rcq.qps--
	q.pd.uses--
	q.pd.c.sess.count(-1)
	return nil
}

// Bell implements shm.QPHandler.
func (q *loopQP) Bell() bool {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	q.run()
	if q.peer != nil {
		q.peer.run() // its Send may have waited for a receive of ours
	}
	return false
}

func (q *loopQP) setState(s uint32) {
	q.state = s
	q.rings.SetState(s)
}

// run does what is posted.
func (q *loopQP) run() {
	if q.closed {
		return
	}
	for q.state == shm.StateRTS {
		w := q.waiting
		if w == nil {
			w = &q.wqe
			if ok, err := q.rings.SQ.Next(w); err != nil || !ok {
				return
			}
		}
		q.waiting = nil
		status, wait := q.perform(w)
		if wait {
			q.waiting = w
			return
		}
		q.sent(w, status)
		if status != rdma.WCSuccess {
			q.fail(0)
		}
	}
	if q.state == shm.StateErr {
		q.flush()
	}
}

// perform does one request.
func (q *loopQP) perform(w *shm.SendWQE) (status rdma.WCStatus, wait bool) {
	if w.Length > maxMessage {
		return rdma.WCLocLen, false
	}
	buf := make([]byte, w.Length)
	op := rdma.Opcode(w.Op)
	if op == rdma.OpRead {
		if !q.l.copyAt(w.RKey, w.RemoteAddr, buf, uint32(rdma.RemoteRead), false) {
			return rdma.WCRemAccess, false
		}
		return q.scatter(w.SGEs(), buf), false
	}
	if w.Flags&shm.SQInline != 0 {
		copy(buf, w.Inline())
	} else if !q.gather(w.SGEs(), buf) {
		return rdma.WCLocProt, false
	}
	switch op {
	case rdma.OpWrite:
		if !q.l.copyAt(w.RKey, w.RemoteAddr, buf, uint32(rdma.RemoteWrite), true) {
			return rdma.WCRemAccess, false
		}
		return rdma.WCSuccess, false
	case rdma.OpSend:
		return q.peer.receive(buf, w.Flags&shm.SQSolicited != 0)
	default:
		return rdma.WCLocQPOp, false
	}
}

// receive takes a Send of the peer's.
func (q *loopQP) receive(msg []byte, solicited bool) (status rdma.WCStatus, wait bool) {
	var r shm.RecvWQE
	ok, err := q.rings.RQ.Next(&r)
	if err == nil && !ok && !q.rings.RQ.Starve() {
		ok, err = q.rings.RQ.Next(&r)
	}
	if err != nil {
		return rdma.WCRemOp, false
	}
	if !ok {
		return 0, true
	}
	st := rdma.WCLocLen
	if r.Capacity() >= uint64(len(msg)) {
		st = q.scatter(r.SGEs(), msg)
	}
	q.received(&r, st, uint32(len(msg)), solicited)
	if st != rdma.WCSuccess {
		return rdma.WCRemOp, false
	}
	return rdma.WCSuccess, false
}

func (q *loopQP) gather(sges []shm.SGE, p []byte) bool {
	for _, s := range sges {
		if !q.l.copyAt(s.LKey, s.Addr, p[:s.Length], 0, false) {
			return false
		}
		p = p[s.Length:]
	}
	return true
}

func (q *loopQP) scatter(sges []shm.SGE, p []byte) rdma.WCStatus {
	for _, s := range sges {
		n := min(len(p), int(s.Length))
		if n > 0 && !q.l.copyAt(s.LKey, s.Addr, p[:n], uint32(rdma.LocalWrite), true) {
			return rdma.WCLocProt
		}
		p = p[n:]
	}
	return rdma.WCSuccess
}

var loopOps = map[rdma.Opcode]rdma.WCOpcode{
	rdma.OpSend: rdma.WCSend, rdma.OpWrite: rdma.WCWrite, rdma.OpRead: rdma.WCRead,
}

func (q *loopQP) sent(w *shm.SendWQE, status rdma.WCStatus) {
	done := q.rings.SQ.Retire(1)
	if status == rdma.WCSuccess && !q.sigAll && w.Flags&shm.SQSignaled == 0 {
		return
	}
	q.push(q.scq, &shm.CQE{WRID: w.WRID, Status: uint32(status), Opcode: uint32(loopOps[rdma.Opcode(w.Op)]), ByteLen: w.Length, SQDone: done}, false)
}

func (q *loopQP) received(r *shm.RecvWQE, status rdma.WCStatus, n uint32, solicited bool) {
	q.push(q.rcq, &shm.CQE{
		WRID: r.WRID, Status: uint32(status), Opcode: uint32(rdma.WCRecv), ByteLen: n,
		SQDone: q.rings.SQ.Done(), Cookie: r.Cookie,
	}, solicited)
}

func (q *loopQP) push(cq *loopCQ, e *shm.CQE, solicited bool) {
	if q.closed {
		return
	}
	e.QPN, e.SlabOff, e.Timestamp = q.num, shm.NoSlab, shm.MonotonicNS()
	if err := cq.ring.Push(e, solicited || e.Status != 0); err == shm.ErrCQOverrun && q.state != shm.StateErr {
		cq.c.events.Push(shm.AsyncEvent{Type: uint32(rdma.EventCQErr), Kind: shm.ObjCQ, Handle: cq.ring.Handle()})
		q.fail(0)
	}
}

// flush completes what is posted.
func (q *loopQP) flush() {
	if w := q.waiting; w != nil {
		q.waiting = nil
		q.sent(w, rdma.WCFlush)
	}
	for {
		if ok, err := q.rings.SQ.Next(&q.wqe); err != nil || !ok {
			break
		}
		q.sent(&q.wqe, rdma.WCFlush)
	}
	var r shm.RecvWQE
	for {
		ok, err := q.rings.RQ.Next(&r)
		if err == nil && !ok && !q.rings.RQ.Starve() {
			continue
		}
		if err != nil || !ok {
			return
		}
		q.received(&r, rdma.WCFlush, 0, false)
	}
}

// fail moves q, and the QP that it is connected to, to the error state.
func (q *loopQP) fail(cause uint32) {
	peer, id := q.peer, q.id
	q.peer, q.id = nil, nil
	if q.state != shm.StateErr {
		q.rings.SetError(cause)
		q.setState(shm.StateErr)
	}
	if !q.closed {
		q.flush()
	}
	if id != nil {
		id.disconnected(cause)
	}
	if peer != nil {
		peer.fail(cause)
	}
}
