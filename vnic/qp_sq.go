package vnic

import (
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

// A sendSide holds the send requests that were taken from the queue and have not been retired, in
// posting order: [head, next) are under way or done, [next, tail) wait. The numbers run free.
type sendSide struct {
	mask             uint32 // there are mask+1 slots
	head, next, tail uint32
	base             uint32 // the request that has the first slot
	reads            int32  // under way and unanswered
	bad              bool   // an entry waits to fail; nothing is taken behind it
	rest             []sqe  // the slots but the first
	first            sqe
	wc               rdma.WC             // scratch: a sink would make a local one escape
	old              [mem.AtomicLen]byte // scratch
	atomic           iwarp.Atomic        // scratch
}

// An sqe is a send request under way. It is the iwarp.Payload of its message.
type sqe struct {
	qp    *QP
	state sqeState
	half  bool // on the wire, of a Write with immediate data: the Write has been posted
	// status is how it fails, when known before it is its turn to complete.
	status rdma.WCStatus
	vendor uint32
	total  uint32
	off    uint32  // loopback: octets moved; Read: octets placed
	msn    uint32  // on the wire, of a Read or an atomic
	ended  *mem.MR // LocalInv, BindMW, RegMR: what ended, once it is known; it may not be drained yet
	list   mem.SGL
	sge    [1]rdma.SGE // the room of wr, if that is enough
	wr     rdma.SendWR // its own copy
}

type sqeState uint8

const (
	sqeQueued sqeState = iota
	sqeFailed          // not acceptable: fails when all earlier ones are done
	sqePosted          // under way
	sqeDone
)

func (s *sendSide) init(qp *QP) {
	n := uint32(queue.Slots(qp.cfg.MaxSendWR))
	s.mask = n - 1
	s.rest = make([]sqe, n-1)
	for i := range n {
		e := s.at(i)
		e.qp = qp
		e.wr.SGEs = roomFor(qp.cfg.MaxSendSGE, e.sge[:0])
		e.list.Init(qp.cfg.MaxSendSGE)
		e.wr.Inline = make([]byte, 0, qp.cfg.MaxInline)
	}
}

// roomFor is room for n SGEs: what is given, beside what it belongs to, if that is enough.
func roomFor(n int, sges []rdma.SGE) []rdma.SGE {
	if n > cap(sges) {
		return make([]rdma.SGE, 0, n)
	}
	return sges
}

func (s *sendSide) at(i uint32) *sqe {
	if i = (i - s.base) & s.mask; i > 0 {
		return &s.rest[i-1]
	}
	return &s.first
}

// room is where the next request goes. When none is under way that is the first slot, which is in
// the cache.
func (s *sendSide) room() *sqe {
	if s.head == s.tail {
		s.base = s.tail
	}
	return s.at(s.tail)
}

// drop forgets what was taken.
func (s *sendSide) drop() {
	for ; s.head != s.tail; s.head++ {
		s.at(s.head).list.Drop()
	}
	s.next, s.reads, s.bad = s.tail, 0, false
}

// oldestRead returns the Read that the next Read Response answers.
func (s *sendSide) oldestRead() *sqe {
	for i := s.head; i != s.next; i++ {
		if e := s.at(i); e.wr.Op == rdma.OpRead && e.state == sqePosted {
			return e
		}
	}
	return nil
}

// oldestRequest returns the Read or atomic that is answered next.
func (s *sendSide) oldestRequest() *sqe {
	for i := s.head; i != s.next; i++ {
		if e := s.at(i); isRequest(e.wr.Op) && e.state == sqePosted {
			return e
		}
	}
	return nil
}

var (
	errConsumer = errors.New("the program asked for it")
	errFlags    = fmt.Errorf("flags that this opcode does not take: %w", rdma.ErrInvalid)
)

const knownFlags = rdma.Fence | rdma.Signaled | rdma.Solicited | rdma.Inline

// checkSend checks what can be known of wr without looking at keys, and returns its length.
func (qp *QP) checkSend(wr *rdma.SendWR) (n uint32, err error) {
	flags := rdma.Fence | rdma.Signaled
	switch wr.Op {
	case rdma.OpSend, rdma.OpSendInv, rdma.OpSendImm, rdma.OpWriteImm:
		flags |= rdma.Solicited | rdma.Inline
	case rdma.OpWrite:
		flags |= rdma.Inline
	case rdma.OpRead, rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd,
		rdma.OpMaskedCompareSwap:
	case rdma.OpLocalInv, rdma.OpBindMW, rdma.OpRegMR:
		if len(wr.SGEs) != 0 {
			return 0, fmt.Errorf("%v with SGEs: %w", wr.Op, rdma.ErrInvalid)
		}
	default:
		return 0, fmt.Errorf("a send request with opcode %v: %w", wr.Op, rdma.ErrInvalid)
	}
	switch {
	case wr.Flags&^flags&(knownFlags&^rdma.Solicited) != 0, wr.Flags&^knownFlags != 0:
		return 0, fmt.Errorf("%v with flags %#x: %w", wr.Op, uint8(wr.Flags), errFlags)
	case wr.Flags&rdma.Inline != 0:
		if len(wr.Inline) > qp.cfg.MaxInline {
			return 0, fmt.Errorf("%d octets inline, at most %d: %w", len(wr.Inline), qp.cfg.MaxInline,
				rdma.ErrInvalid)
		}
		return checkLength(wr.Op, uint32(len(wr.Inline)))
	case len(wr.SGEs) > qp.cfg.MaxSendSGE:
		return 0, fmt.Errorf("%d SGEs, at most %d: %w", len(wr.SGEs), qp.cfg.MaxSendSGE, rdma.ErrInvalid)
	}
	n, ok := mem.Total(wr.SGEs)
	if !ok {
		return 0, fmt.Errorf("a message of more than 2^32-1 octets: %w", rdma.ErrInvalid)
	}
	return checkLength(wr.Op, n)
}

// checkLength checks what op says of the length.
func checkLength(op rdma.Opcode, n uint32) (uint32, error) {
	switch {
	case queue.IsAtomic(op) && n != mem.AtomicLen:
		return 0, fmt.Errorf("%v into %d octets, the old value has %d: %w", op, n, mem.AtomicLen,
			rdma.ErrInvalid)
	case op == rdma.OpSendImm && n != 0:
		// Immediate Data is a message of its own and has no payload (RFC 7306, section 6.3).
		return 0, fmt.Errorf("%v with %d octets, iWARP has none with any: use WRITE_WITH_IMM, or a "+
			"Send: %w", op, n, rdma.ErrInvalid)
	}
	return n, nil
}

// nextSend returns the request whose turn it is, or nil.
func (qp *QP) nextSend() *sqe {
	s := &qp.sq
	if s.next != s.tail {
		return s.at(s.next)
	}
	if s.bad || s.tail-s.head > s.mask || qp.finSent {
		return nil
	}
	e := s.room()
	if !qp.takeSend(e) {
		return nil
	}
	if err := qp.prepare(e); err != nil {
		qp.log("send request refused", "op", e.wr.Op, "err", err)
		e.state, s.bad = sqeFailed, true
	}
	s.tail++
	return e
}

// takeSend takes the next request of the queue into e.
func (qp *QP) takeSend(e *sqe) bool {
	ok, err := qp.queues.Send.Next(&e.wr)
	if err != nil {
		qp.ctx.violation(fmt.Errorf("send queue of QP %d: %w", qp.num, err))
		return false
	}
	if !ok {
		return false
	}
	e.state, e.status, e.vendor, e.off, e.total, e.half, e.ended = sqeQueued, 0, 0, 0, 0, false, nil
	return true
}

// prepare checks e, which a client may have written, and looks its regions up. On an error
// e.status says how e fails.
func (qp *QP) prepare(e *sqe) error {
	n, err := qp.checkSend(&e.wr)
	if err != nil {
		e.status = rdma.WCLocQPOp
		return err
	}
	e.total = n
	if !qp.extensions && (queue.IsAtomic(e.wr.Op) || isImmediate(e.wr.Op)) {
		e.status = rdma.WCLocQPOp
		return errNoExtensions
	}
	if e.wr.Flags&rdma.Inline != 0 {
		return nil
	}
	if err := e.list.Resolve(qp.pd.PD, e.wr.SGEs, isRequest(e.wr.Op)); err != nil {
		e.status = rdma.WCLocProt
		return err
	}
	if isRequest(e.wr.Op) && qp.linkParam.ORD == 0 {
		e.status = rdma.WCLocQPOp
		return errNoReads
	}
	return nil
}

var errNoReads = errors.New("no Reads were agreed on for this connection (ORD 0)")

// ready reports whether e, whose turn it is, may go on the wire as far as earlier requests decide.
// It fails an entry that is not acceptable, and does what needs no link.
func (qp *QP) ready(e *sqe) bool {
	s := &qp.sq
	switch {
	case e.state == sqeFailed:
		if s.head == s.next {
			qp.failSend(e)
		}
		return false
	case e.wr.Flags&rdma.Fence != 0 && s.reads > 0:
		return false // until all earlier Reads have completed
	case e.wr.Op == rdma.OpLocalInv:
		if s.head != s.next {
			return false // earlier requests may still read the region
		}
		fallthrough
	case e.wr.Op == rdma.OpBindMW, e.wr.Op == rdma.OpRegMR:
		if qp.keyRequest(e); e.state == sqeFailed {
			return qp.ready(e)
		}
		return false
	}
	return true
}

// failSend fails e, the oldest request left: Q6.
func (qp *QP) failSend(e *sqe) {
	s := &qp.sq
	e.state = sqeDone
	s.next++
	qp.retire()
	qp.localError(&iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic,
		Err: fmt.Errorf("%v failed: %v", e.wr.Op, e.status)}, 0)
}

// CopyOut implements iwarp.Payload.
func (e *sqe) CopyOut(p []byte, off uint32) error {
	if e.wr.Flags&rdma.Inline != 0 {
		copy(p, e.wr.Inline[off:])
		return nil
	}
	if off == 0 {
		e.qp.outHold.ForgetAhead() // a message is not made of what was there for another
	}
	if err := e.list.CopyOut(&e.qp.outHold, p, off); err != nil {
		e.status = rdma.WCLocProt
		if w, ok := e.qp.link.(*wire); ok {
			w.unread = true
		}
		return &iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic, Err: err}
	}
	return nil
}

// posted counts e as under way.
func (qp *QP) posted(e *sqe) {
	qp.underWay(e)
	qp.stats.send(e.wr.Op, e.total)
}

// underWay is posted where messages are counted together.
func (qp *QP) underWay(e *sqe) {
	e.state = sqePosted
	qp.sq.next++
	qp.sentAny = true
	if isRequest(e.wr.Op) {
		qp.sq.reads++
	}
}

// done counts e, which is under way, as done.
func (qp *QP) sendDone(e *sqe) {
	if isRequest(e.wr.Op) {
		qp.sq.reads--
	}
	e.state = sqeDone
}

// retire completes what is done, in posting order: "completions are in submission order, across
// operation kinds" (RDMAP-095). A Send behind a Read waits for it.
func (qp *QP) retire() {
	s := &qp.sq
	if s.head == s.next || s.at(s.head).state != sqeDone {
		return
	}
	q := &qp.queues
	q.SendCQ.Lock()
	n, told := 0, 0 // retired and not counted yet; completed
	for s.head != s.next {
		e := s.at(s.head)
		if e.state != sqeDone {
			break
		}
		s.head++
		n++
		if e.status == rdma.WCSuccess && e.wr.Flags&rdma.Signaled == 0 && !qp.cfg.SignalAll {
			e.list.Drop()
			continue
		}
		if q.Local == nil {
			q.Send.Retire(n)
			n = 0
		}
		qp.completeLocked(e, e.status)
		told++
	}
	q.RetireSends(n, told)
	q.SendCQ.Unlock()
}

var sendWC = [...]rdma.WCOpcode{
	rdma.OpWrite: rdma.WCWrite, rdma.OpSend: rdma.WCSend, rdma.OpRead: rdma.WCRead,
	rdma.OpLocalInv: rdma.WCLocalInv, rdma.OpSendInv: rdma.WCSend,
	rdma.OpSendImm: rdma.WCSend, rdma.OpWriteImm: rdma.WCWrite,
	rdma.OpCompareSwap: rdma.WCCompareSwap, rdma.OpMaskedCompareSwap: rdma.WCCompareSwap,
	rdma.OpFetchAdd: rdma.WCFetchAdd, rdma.OpMaskedFetchAdd: rdma.WCFetchAdd,
	rdma.OpBindMW: rdma.WCBindMW, rdma.OpRegMR: rdma.WCRegMR,
}

// completeSend pushes the completion of e, which leaves the queue.
func (qp *QP) completeSend(e *sqe, st rdma.WCStatus) {
	qp.queues.RetireSends(1, 1)
	cq := qp.queues.SendCQ
	cq.Lock()
	qp.completeLocked(e, st)
	cq.Unlock()
}

// completeLocked adds the completion of e, behind which the queue goes on at sq.head. The CQ is
// locked.
func (qp *QP) completeLocked(e *sqe, st rdma.WCStatus) {
	wc := &qp.sq.wc
	*wc = rdma.WC{ID: e.wr.ID, Status: st, QPN: qp.num, VendorErr: e.vendor}
	if int(e.wr.Op) < len(sendWC) {
		wc.Op = sendWC[e.wr.Op]
	}
	if st == rdma.WCSuccess && isRequest(e.wr.Op) {
		wc.ByteLen = e.total
	}
	if st != rdma.WCSuccess {
		qp.stats.errors.Add(1)
	}
	e.list.Drop()
	qp.queues.SendCQ.AddSend(&qp.queues, wc, qp.sq.head)
}

// blameSend notes on the oldest request that has not completed how it failed:
// docs/qp-states.md#what-the-program-sees.
func (qp *QP) blameSend(st rdma.WCStatus, vendor uint32) {
	s := &qp.sq
	for i := s.head; i != s.tail; i++ {
		if e := s.at(i); e.state != sqeDone {
			e.blame(st, vendor)
			return
		}
	}
	if s.tail-s.head <= s.mask {
		if e := s.room(); qp.takeSend(e) {
			e.blame(st, vendor)
			s.tail++
		}
	}
}

func (e *sqe) blame(st rdma.WCStatus, vendor uint32) {
	if e.status == rdma.WCSuccess {
		e.status, e.vendor = st, vendor
	}
}

// flushSend completes all send requests: those that were done with success, those that are to
// blame with their status, the rest as flushed. true: there is more in the queue.
func (qp *QP) flushSend() (more bool) {
	s := &qp.sq
	for i := 0; ; i++ {
		if s.head == s.tail {
			if i >= stepMessages {
				return true
			}
			e := s.room()
			if !qp.takeSend(e) {
				break
			}
			s.tail++
		}
		e := s.at(s.head)
		s.head++
		st := e.status
		if e.state != sqeDone && st == rdma.WCSuccess {
			st = rdma.WCFlush
			if qp.peerCode != nil {
				e.vendor = vendorErr(qp.peerCode.code)
			}
		}
		if st == rdma.WCSuccess && e.wr.Flags&rdma.Signaled == 0 && !qp.cfg.SignalAll {
			e.list.Drop()
			qp.queues.RetireSends(1, 0)
			continue
		}
		qp.completeSend(e, st)
	}
	s.next, s.reads, s.bad = s.tail, 0, false
	return false
}
