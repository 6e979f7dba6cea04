package shmtest

import (
	"encoding/binary"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// maxMessage is the most that a Loop moves in one request.
const maxMessage = 1 << 24

// A loopQP implements shm.QPHandler.
type loopQP struct {
	l       *Loop
	program *server.Session
	pd      *loopPD
	num     uint32
	sigAll  bool
	scq     *loopCQ
	rcq     *loopCQ
	srq     *loopSRQ // or nil
	rings   *ring.DaemonQP
	bits    *server.Bits

	state   uint32
	closed  bool
	peer    *loopQP
	id      *loopID // told of the end
	pair    *loopPair
	waiting *abi.SendWQE
	wqe     abi.SendWQE
}

func (p *loopPD) QPSize(rpc.QPCaps, uint32) server.QPSize { return server.QPSize{} }

func (p *loopPD) QPMemory(rpc.QPCaps) int64 { return 0 }

func (p *loopPD) CreateQP(parts *server.QPParts) (server.QPHandler, error) {
	l := p.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextQPN++
	q := &loopQP{
		l: l, pd: p, num: l.nextQPN, sigAll: parts.SigAll,
		scq: parts.SendCQ.(*loopCQ), rcq: parts.RecvCQ.(*loopCQ), rings: parts.Rings,
		bits: parts.Bits, state: abi.StateInit,
	}
	if parts.SRQ != nil {
		q.srq = parts.SRQ.(*loopSRQ)
		q.srq.qps++
	}
	q.program = p.c.sess.s
	q.scq.qps++
	q.rcq.qps++
	p.use(1)
	p.c.sess.qps[q] = struct{}{}
	return q, nil
}

// Num implements shm.QPHandler.
func (q *loopQP) Num() uint32 { return q.num }

// Modify implements shm.QPHandler.
func (q *loopQP) Modify(req *rpc.ModifyQPRequest) error {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if req.Mask&rpc.ModifyQPState != 0 {
		if req.State != abi.StateErr {
			return syscall.EINVAL
		}
		q.fail(0)
	}
	return nil
}

// Query implements shm.QPHandler.
func (q *loopQP) Query(r *rpc.QueryQPReply) {
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
	q.leavePair()
	delete(q.pd.c.sess.qps, q)
	q.scq.qps--
	q.rcq.qps--
	if q.srq != nil {
		q.srq.qps--
		delete(q.srq.waiting, q)
	}
	q.pd.use(-1)
	return nil
}

// Bell implements shm.QPHandler.
func (q *loopQP) Bell(func() bool) bool {
	q.l.bells.Add(1)
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	q.run()
	q.notified()
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
	for q.state == abi.StateRTS {
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
	if q.state == abi.StateErr {
		q.flush()
	}
}

// perform does one request.
func (q *loopQP) perform(w *abi.SendWQE) (status rdma.WCStatus, wait bool) {
	if w.Length > maxMessage {
		return rdma.WCLocLen, false
	}
	buf := make([]byte, w.Length)
	op := rdma.Opcode(w.Op)
	switch op {
	case rdma.OpRead:
		if !q.peer.copyAt(w.RKey, w.RemoteAddr, buf, rdma.RemoteRead, false) {
			return rdma.WCRemAccess, false
		}
		return q.scatter(w.SGEs(), buf), false
	case rdma.OpCompareSwap, rdma.OpFetchAdd, rdma.OpMaskedCompareSwap, rdma.OpMaskedFetchAdd:
		return q.atomic(w, op), false
	case rdma.OpBindMW, rdma.OpRegMR:
		return q.bind(w), false
	case rdma.OpLocalInv:
		if !q.invalidate(w.Imm) {
			return rdma.WCLocQPOp, false
		}
		return rdma.WCSuccess, false
	default: // something is sent
	}
	if w.Flags&abi.SQInline != 0 {
		copy(buf, w.Inline())
	} else if !q.gather(w.SGEs(), buf) {
		return rdma.WCLocProt, false
	}
	m := message{solicited: w.Flags&abi.SQSolicited != 0}
	switch op {
	case rdma.OpWriteImm, rdma.OpSendImm:
		m.imm, m.immLow, m.flags = w.Imm, w.ImmLow(), rdma.WCWithImm
	case rdma.OpSendInv:
		m.imm, m.flags = w.Imm, rdma.WCWithInv
	default: // octets only
	}
	switch op {
	case rdma.OpWrite, rdma.OpWriteImm:
		if !q.peer.copyAt(w.RKey, w.RemoteAddr, buf, rdma.RemoteWrite, true) {
			return rdma.WCRemAccess, false
		}
		if op == rdma.OpWrite {
			return rdma.WCSuccess, false
		}
		m.op = rdma.WCRecvImm
	case rdma.OpSend, rdma.OpSendImm, rdma.OpSendInv:
		m.op, m.octets = rdma.WCRecv, buf
	default:
		return rdma.WCLocQPOp, false
	}
	return q.peer.receive(&m)
}

// atomic does one of the atomics.
func (q *loopQP) atomic(w *abi.SendWQE, op rdma.Opcode) rdma.WCStatus {
	var b [8]byte
	if w.Length != 8 {
		return rdma.WCLocLen
	}
	if w.RemoteAddr%8 != 0 || !q.peer.copyAt(w.RKey, w.RemoteAddr, b[:], rdma.RemoteAtomic, false) {
		return rdma.WCRemAccess
	}
	old := binary.NativeEndian.Uint64(b[:])
	cmp, swap := ^uint64(0), ^uint64(0)
	if op == rdma.OpMaskedCompareSwap {
		cmp, swap = w.CmpMask, w.SwapMask
	}
	value := old
	switch op {
	case rdma.OpFetchAdd:
		value += w.CmpAdd
	case rdma.OpMaskedFetchAdd: // the carry out of each bit of the mask is dropped
		value = (old&^w.SwapMask + w.CmpAdd&^w.SwapMask) ^ (old^w.CmpAdd)&w.SwapMask
	default:
		if (old^w.CmpAdd)&cmp == 0 {
			value = old&^swap | w.Swap&swap
		}
	}
	binary.NativeEndian.PutUint64(b[:], value)
	q.peer.copyAt(w.RKey, w.RemoteAddr, b[:], rdma.RemoteAtomic, true)
	binary.NativeEndian.PutUint64(b[:], old)
	return q.scatter(w.SGEs(), b[:])
}

// A message is what takes a receive.
type message struct {
	op          rdma.WCOpcode
	octets      []byte
	solicited   bool
	imm, immLow uint32 // as in the ring
	flags       rdma.WCFlags
}

// receive takes a message of the peer's.
func (q *loopQP) receive(m *message) (status rdma.WCStatus, wait bool) {
	var r abi.RecvWQE
	var ok bool
	var err error
	if q.srq != nil {
		ok, err = q.srq.next(q, &r)
	} else if ok, err = q.rings.RQ.Next(&r); err == nil && !ok && !q.rings.RQ.Starve() {
		ok, err = q.rings.RQ.Next(&r)
	}
	if err != nil {
		return rdma.WCRemOp, false
	}
	if !ok {
		return 0, true
	}
	st := rdma.WCLocLen
	if r.Capacity() >= uint64(len(m.octets)) {
		st = q.scatter(r.SGEs(), m.octets)
	}
	if m.flags&rdma.WCWithInv != 0 && !q.invalidate(m.imm) {
		st = rdma.WCRemInvReq
	}
	q.received(&r, st, m)
	if st != rdma.WCSuccess {
		return rdma.WCRemOp, false
	}
	return rdma.WCSuccess, false
}

func (q *loopQP) gather(sges []abi.SGE, p []byte) bool {
	for _, s := range sges {
		if !q.copyAt(s.LKey, s.Addr, p[:s.Length], 0, false) {
			return false
		}
		p = p[s.Length:]
	}
	return true
}

func (q *loopQP) scatter(sges []abi.SGE, p []byte) rdma.WCStatus {
	for _, s := range sges {
		n := min(len(p), int(s.Length))
		if n > 0 && !q.copyAt(s.LKey, s.Addr, p[:n], rdma.LocalWrite, true) {
			return rdma.WCLocProt
		}
		p = p[n:]
	}
	return rdma.WCSuccess
}

var loopOps = map[rdma.Opcode]rdma.WCOpcode{
	rdma.OpSend: rdma.WCSend, rdma.OpSendImm: rdma.WCSend, rdma.OpSendInv: rdma.WCSend,
	rdma.OpWrite:    rdma.WCWrite,
	rdma.OpWriteImm: rdma.WCWrite, rdma.OpRead: rdma.WCRead, rdma.OpCompareSwap: rdma.WCCompareSwap,
	rdma.OpMaskedCompareSwap: rdma.WCCompareSwap, rdma.OpFetchAdd: rdma.WCFetchAdd,
	rdma.OpMaskedFetchAdd: rdma.WCFetchAdd,
	rdma.OpBindMW:         rdma.WCBindMW, rdma.OpRegMR: rdma.WCRegMR, rdma.OpLocalInv: rdma.WCLocalInv,
}

func (q *loopQP) sent(w *abi.SendWQE, status rdma.WCStatus) {
	done := q.rings.SQ.Retire(1)
	if status == rdma.WCSuccess && !q.sigAll && w.Flags&abi.SQSignaled == 0 {
		return
	}
	q.push(q.scq, &abi.CQE{WRID: w.WRID, Status: uint32(status),
		Opcode: uint32(loopOps[rdma.Opcode(w.Op)]), ByteLen: w.Length, SQDone: done}, false)
}

func (q *loopQP) received(r *abi.RecvWQE, status rdma.WCStatus, m *message) {
	q.push(q.rcq, &abi.CQE{
		WRID: r.WRID, Status: uint32(status), Opcode: uint32(m.op), ByteLen: uint32(len(m.octets)),
		Imm: m.imm, SrcQP: m.immLow,
		WCFlags: uint32(m.flags), SQDone: q.rings.SQ.Done(), Cookie: r.Cookie,
	}, m.solicited)
}

func (q *loopQP) push(cq *loopCQ, e *abi.CQE, solicited bool) {
	if q.closed {
		return
	}
	e.QPN, e.SlabOff, e.Timestamp = q.num, abi.NoSlab, osmem.MonotonicNS()
	if err := cq.ring.Push(e, solicited || e.Status != 0); err == ring.ErrCQOverrun &&
		q.state != abi.StateErr {
		cq.c.events.Push(rpc.AsyncEvent{Type: uint32(rdma.EventCQErr), Kind: rpc.ObjCQ,
			Handle: cq.ring.Handle()})
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
	if q.srq != nil { // its receives are not q's
		q.pd.c.events.Push(rpc.AsyncEvent{Type: uint32(rdma.EventLastWQEReached), Kind: rpc.ObjQP,
			Handle: q.rings.Handle})
		return
	}
	var r abi.RecvWQE
	for {
		ok, err := q.rings.RQ.Next(&r)
		if err == nil && !ok && !q.rings.RQ.Starve() {
			continue
		}
		if err != nil || !ok {
			return
		}
		q.received(&r, rdma.WCFlush, &message{op: rdma.WCRecv})
	}
}

// fail moves q, and the QP that it is connected to, to the error state.
func (q *loopQP) fail(cause uint32) {
	peer, id := q.peer, q.id
	q.peer, q.id = nil, nil
	if q.pair != nil {
		q.pair.ring.Shut()
	}
	if q.state != abi.StateErr {
		q.rings.SetError(cause)
		q.setState(abi.StateErr)
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
