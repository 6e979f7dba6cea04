package wqe

import (
	"errors"
	"fmt"
	"iter"
	"unsafe"

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
	base             uint32    // the request that has the first slot
	reads            int32     // under way and unanswered
	bad              bool      // an entry waits to fail; nothing is taken behind it
	spoiled          bool      // the request that was taken last has a Fate
	finished         bool      // nothing more is taken for this connection
	broken           bool      // a request was flushed or has failed: what is behind it flushes
	extensions       bool      // RFC 7306 was agreed on
	answered         bool      // Reads and atomics are
	roce             bool      // the rules are those of RoCE; set once
	rest             []Request // the slots but the first
	first            Request
	wc               rdma.WC // scratch: a sink would make a local one escape
}

func (s *sendSide) init(r *Requests) {
	n := uint32(queue.Slots(r.cfg.MaxSendWR))
	s.mask = n - 1
	s.rest = make([]Request, n-1)
	for i := range n {
		e := s.at(i)
		e.WR.SGEs = roomFor(r.cfg.MaxSendSGE, e.sge[:0])
		e.List.Init(r.cfg.MaxSendSGE)
		e.WR.Inline = make([]byte, 0, r.cfg.MaxInline)
	}
}

// SendMemory is how many octets init makes room for, nearly: by far the most that a QP takes.
func SendMemory(cfg *rdma.QPConfig) int64 {
	var e Request
	room := uintptr(cfg.MaxInline)
	if cfg.MaxSendSGE > len(e.sge) {
		room += uintptr(cfg.MaxSendSGE) * (unsafe.Sizeof(e.sge[0]) + unsafe.Sizeof((*mem.MR)(nil)))
	}
	room += room / 8 // what the allocator rounds up
	return int64(queue.Slots(cfg.MaxSendWR)) * int64(unsafe.Sizeof(e)+room)
}

// roomFor is room for n SGEs: what is given, beside what it belongs to, if that is enough.
func roomFor(n int, sges []rdma.SGE) []rdma.SGE {
	if n > cap(sges) {
		return make([]rdma.SGE, 0, n)
	}
	return sges
}

func (s *sendSide) at(i uint32) *Request {
	if i = (i - s.base) & s.mask; i > 0 {
		return &s.rest[i-1]
	}
	return &s.first
}

// room is where the next request goes. When none is under way that is the first slot, which is in
// the cache.
func (s *sendSide) room() *Request {
	if s.head == s.tail {
		s.base = s.tail
	}
	return s.at(s.tail)
}

// DropSends forgets what was taken.
func (r *Requests) DropSends() {
	s := &r.send
	for ; s.head != s.tail; s.head++ {
		s.at(s.head).List.Drop()
	}
	s.next, s.reads, s.bad = s.tail, 0, false
}

// Discard empties both queues: nothing that was posted is completed, or flushed. The receive that
// was taken from an SRQ goes back there.
func (r *Requests) Discard() {
	s := &r.send
	n := int(s.tail - s.head)
	r.DropSends()
	for range r.cfg.MaxSendWR { // who posts meanwhile has what is behind them
		if !r.takeSend(s.room(), true) {
			break
		}
		n++
		s.head, s.next, s.tail = s.head+1, s.next+1, s.tail+1
	}
	r.Queues.RetireSends(n, 0)
	s.broken, s.finished = false, false
	r.Recv.discard()
}

// Depth is how many requests can be under way.
func (r *Requests) Depth() int { return int(r.send.mask) + 1 }

// NextToken names the request whose turn it is, and ByToken finds it while it is under way.
func (r *Requests) NextToken() uint32         { return r.send.next }
func (r *Requests) ByToken(t uint32) *Request { return r.send.at(t) }

// Current is the request whose turn it is, if it has been taken from the queue; nil: it has not.
func (r *Requests) Current() *Request {
	if s := &r.send; s.next != s.tail {
		return s.at(s.next)
	}
	return nil
}

// SendsLeft reports whether requests that were taken have not been completed.
func (r *Requests) SendsLeft() bool { return r.send.head != r.send.tail }

// AwaitsAnswers reports whether Reads or atomics are under way.
func (r *Requests) AwaitsAnswers() bool { return r.send.reads > 0 }

// FinishSends has nothing more taken for this connection; SendsFinished says that it was called.
func (r *Requests) FinishSends()        { r.send.finished = true }
func (r *Requests) SendsFinished() bool { return r.send.finished }

// Answered goes through the Reads and atomics that are under way, the oldest first.
func (r *Requests) Answered() iter.Seq[*Request] {
	return func(yield func(*Request) bool) {
		s := &r.send
		for i := s.head; i != s.next; i++ {
			if e := s.at(i); IsAnswered(e.WR.Op) && e.state == posted && !yield(e) {
				return
			}
		}
	}
}

// OldestRead returns the Read that the next Read Response answers.
func (r *Requests) OldestRead() *Request {
	s := &r.send
	for i := s.head; i != s.next; i++ {
		if e := s.at(i); e.WR.Op == rdma.OpRead && e.state == posted {
			return e
		}
	}
	return nil
}

// OldestAnswered returns the Read or atomic that is answered next.
func (r *Requests) OldestAnswered() *Request {
	s := &r.send
	for i := s.head; i != s.next; i++ {
		if e := s.at(i); IsAnswered(e.WR.Op) && e.state == posted {
			return e
		}
	}
	return nil
}

// StepMessages is how many messages one step of a QP moves at most, before somebody else gets a
// turn.
const StepMessages = 256

// Next returns the request whose turn it is, or nil.
func (r *Requests) Next() *Request {
	s := &r.send
	if s.next != s.tail {
		return s.at(s.next)
	}
	if s.bad || s.tail-s.head > s.mask || s.finished {
		return nil
	}
	e := s.room()
	if !r.takeSend(e, false) {
		return nil
	}
	if err := r.prepare(e); err != nil {
		r.Refuse(e, e.Status, err)
	}
	s.tail++
	return e
}

// takeSend takes the next request of the queue into e; flush: for it to be flushed, or forgotten.
func (r *Requests) takeSend(e *Request, flush bool) bool {
	ok, err := r.Queues.Send.Next(&e.WR)
	if err != nil {
		r.owner.Violation(fmt.Errorf("send queue of QP %d: %w", r.num, err))
		return false
	}
	if !ok {
		return false
	}
	e.state, e.Status, e.vendor, e.Moved, e.Total = queued, 0, 0, 0, 0
	e.HalfPosted, e.ended = false, nil
	r.send.spoiled = false
	if w := r.watching(); w != nil {
		w.take(r.send.tail&r.send.mask, &e.WR, int(r.send.tail-r.send.head))
		if !flush {
			r.spoil(w, &e.WR)
		}
	}
	return true
}

// prepare checks e, which a client may have written, and looks its regions up. On an error
// e.Status says how e fails.
func (r *Requests) prepare(e *Request) error {
	n, err := r.Check(&e.WR)
	if err != nil {
		e.Status = r.unfit()
		return err
	}
	e.Total = n
	if !r.send.extensions && (queue.IsAtomic(e.WR.Op) || IsImmediate(e.WR.Op)) {
		e.Status = rdma.WCLocQPOp
		return errNoExtensions
	}
	if e.WR.Flags&rdma.Inline != 0 {
		return nil
	}
	if err := e.List.Resolve(r.Memory.PD(), e.WR.SGEs, IsAnswered(e.WR.Op)); err != nil {
		e.Status = rdma.WCLocProt
		return err
	}
	if IsAnswered(e.WR.Op) && !r.send.answered {
		e.Status = rdma.WCLocQPOp
		return errNoReads
	}
	return nil
}

var errNoExtensions = errors.New("atomics and immediate data were not agreed on for this " +
	"connection (ConnParam.Extensions)")

// ErrSink says that the answer to a Read or an atomic has nowhere to go.
var ErrSink = errors.New("the place of the answer cannot be written")

var errNoReads = errors.New("no Reads were agreed on for this connection (ORD 0)")

// Ready reports whether e, whose turn it is, may go to the peer as far as earlier requests decide.
// It does what needs no link: then e is Done. An error fails the connection, and e with it, which
// was not acceptable.
func (r *Requests) Ready(e *Request) (ok bool, err *iwarp.LocalError) {
	s := &r.send
	switch {
	case e.state == failed:
		if s.head == s.next {
			err = r.fail(e)
		}
		return false, err
	case e.WR.Flags&rdma.Fence != 0 && s.reads > 0:
		return false, nil // until all earlier Reads have completed
	case e.WR.Op == rdma.OpLocalInv:
		if s.head != s.next {
			return false, nil // earlier requests may still read the region
		}
		fallthrough
	case e.WR.Op == rdma.OpBindMW, e.WR.Op == rdma.OpRegMR:
		if r.keyRequest(e); e.state == failed {
			return r.Ready(e)
		}
		return false, nil
	}
	return true, nil
}

// Refuse has e, whose turn it is, fail in its turn.
func (r *Requests) Refuse(e *Request, st rdma.WCStatus, err error) {
	r.owner.Log("send request refused", "op", e.WR.Op, "err", err)
	e.state, e.Status, r.send.bad = failed, st, true
}

// fail fails e, the oldest request left: docs/qp-states.md#Q6.
func (r *Requests) fail(e *Request) *iwarp.LocalError {
	err := fmt.Errorf("%v failed: %v", e.WR.Op, e.Status)
	if e.Status == rdma.WCLocProt && IsAnswered(e.WR.Op) {
		err = fmt.Errorf("%w: %w", err, ErrSink)
	}
	e.state = done
	r.send.next++
	r.Retire()
	return r.ending(err)
}

// Posted counts e, whose turn it was, as under way.
func (r *Requests) Posted(e *Request) {
	r.UnderWay(e)
	r.Stats.Send(e.WR.Op, e.Total)
}

// UnderWay is Posted where messages are counted together.
func (r *Requests) UnderWay(e *Request) {
	e.state = posted
	r.send.next++
	if IsAnswered(e.WR.Op) {
		r.send.reads++
	}
}

// Finish counts e, which is under way, as done.
func (r *Requests) Finish(e *Request) {
	if IsAnswered(e.WR.Op) {
		r.send.reads--
	}
	e.state = done
}

// Retire completes what is done, in posting order: "completions are in submission order, across
// operation kinds" (RDMAP-095). A Send behind a Read waits for it.
func (r *Requests) Retire() {
	s := &r.send
	if s.head == s.next || s.at(s.head).state != done {
		return
	}
	q := &r.Queues
	q.SendCQ.Lock()
	w := r.watching()
	n, told := 0, 0 // retired and not counted yet; completed
	for s.head != s.next {
		e := s.at(s.head)
		if e.state != done {
			break
		}
		if w != nil {
			w.complete(s.head&s.mask, &e.WR, e.Status)
		}
		s.head++
		n++
		if e.Status == rdma.WCSuccess && e.WR.Flags&rdma.Signaled == 0 && !r.cfg.SignalAll {
			e.List.Drop()
			continue
		}
		if q.Local == nil {
			q.Send.Retire(n)
			n = 0
		}
		r.completeLocked(e, e.Status)
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
func (r *Requests) completeSend(e *Request, st rdma.WCStatus) {
	r.Queues.RetireSends(1, 1)
	cq := r.Queues.SendCQ
	cq.Lock()
	r.completeLocked(e, st)
	cq.Unlock()
}

// completeLocked adds the completion of e, behind which the queue goes on at send.head. The CQ is
// locked.
func (r *Requests) completeLocked(e *Request, st rdma.WCStatus) {
	wc := &r.send.wc
	*wc = rdma.WC{ID: e.WR.ID, Status: st, QPN: r.num, VendorErr: e.vendor}
	if int(e.WR.Op) < len(sendWC) {
		wc.Op = sendWC[e.WR.Op]
	}
	if st == rdma.WCSuccess && IsAnswered(e.WR.Op) {
		wc.ByteLen = e.Total
	}
	if st != rdma.WCSuccess {
		r.Stats.Errors.Add(1)
	}
	e.List.Drop()
	r.Queues.SendCQ.AddSend(&r.Queues, wc, r.send.head)
}

// BlameSend notes on the oldest request that has not completed how it failed:
// docs/qp-states.md#what-the-program-sees.
func (r *Requests) BlameSend(st rdma.WCStatus, vendor uint32) {
	s := &r.send
	for i := s.head; i != s.tail; i++ {
		if e := s.at(i); e.state != done {
			e.Blame(st, vendor)
			return
		}
	}
	if s.tail-s.head <= s.mask {
		if e := s.room(); r.takeSend(e, true) {
			e.Blame(st, vendor)
			s.tail++
		}
	}
}

// FlushSends completes all send requests: those at the head of the queue that were done with
// success, those that are to blame with their status, the rest as flushed. A Send that went out
// behind a Read that failed is among the rest, as nobody knows whether the peer has it: "the
// Messages SHOULD be considered Completed in error" (RDMAP-106, docs/decisions.md#A30). true: there
// is more in the queue.
func (r *Requests) FlushSends(vendor uint32) (more bool) {
	s := &r.send
	for i := 0; ; i++ {
		if s.head == s.tail {
			if i >= StepMessages {
				return true
			}
			e := s.room()
			if !r.takeSend(e, true) {
				break
			}
			s.tail++
		}
		e := s.at(s.head)
		s.head++
		st := e.Status
		s.broken = s.broken || e.state != done
		if s.broken && st == rdma.WCSuccess {
			st = rdma.WCFlush
			if vendor != 0 {
				e.vendor = vendor
			}
		}
		if w := r.watching(); w != nil {
			w.complete((s.head-1)&s.mask, &e.WR, st)
		}
		if st == rdma.WCSuccess && e.WR.Flags&rdma.Signaled == 0 && !r.cfg.SignalAll {
			e.List.Drop()
			r.Queues.RetireSends(1, 0)
			continue
		}
		r.completeSend(e, st)
	}
	s.next, s.reads, s.bad = s.tail, 0, false
	return false
}
