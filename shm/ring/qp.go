package ring

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
)

// A SendConsumer is the daemon's end of a send queue. It belongs to whoever runs the QP.
type SendConsumer struct {
	l        *abi.QPLayout
	mem      []byte
	prod     *atomic.Uint32 // the client's
	doneWord *atomic.Uint32 // ours; only ever written
	head     uint32         // WQEs taken
	done     uint32         // WQEs retired
	slab     txSlabConsumer
	out      atomic.Pointer[Direction] // or nil: of the pair that the QP is in
	fail     func(error)
	raw      [abi.MaxSQStride]byte
}

// Next copies the next posted request into w and checks the copy; false if there is none. An error
// is a *ProtocolError; the session has been told and nothing more will come. w keeps no reference
// to shared memory.
func (q *SendConsumer) Next(w *abi.SendWQE) (bool, error) {
	prod := q.prod.Load() // acquire: pairs with the client's Commit
	if prod == q.head {
		return false, nil
	}
	// The client may use a slot again once it is retired, not once it is taken.
	if prod-q.done > q.l.SQSize || prod-q.head > q.l.SQSize {
		return false, q.violated(abi.Violation("sq_prod %d with %d taken and %d retired of %d slots",
			prod, q.head, q.done, q.l.SQSize))
	}
	off := q.l.SQOff + (q.head&(q.l.SQSize-1))*q.l.SQStride
	slot := q.mem[off : off+q.l.SQStride]
	raw := q.raw[:q.l.SQStride]
	// Every octet is read once: first those that all WQEs have, then what the copy says there is.
	n := copy(raw[:abi.SQSGE+abi.SGELen], slot)
	if end := wqeEnd(raw); end > n {
		copy(raw[n:], slot[n:min(end, len(slot))])
	}
	err := w.Decode(raw, q.l)
	if err == nil && q.l.TxSlabSize != 0 {
		err = q.slab.take(w, q.head&(q.l.SQSize-1))
	}
	if err != nil {
		return false, q.violated(err)
	}
	q.head++
	return true, nil
}

// wqeEnd is where a send WQE ends by its own account.
func wqeEnd(raw []byte) int {
	switch {
	case raw[abi.SQFlags]&abi.SQInline != 0:
		return abi.SQSGE + int(min(abi.Order.Uint32(raw[abi.SQLength:]), abi.MaxInline))
	case abi.Masked(raw[abi.SQOp]):
		return abi.SQSwapMask + 8
	}
	return abi.SQSGE + abi.SGELen*int(abi.Order.Uint16(raw[abi.SQNumSGE:]))
}

// Pending reports whether something is posted that Next has not taken.
func (q *SendConsumer) Pending() bool { return q.prod.Load() != q.head }

// Outstanding is how many requests have been taken and not retired.
func (q *SendConsumer) Outstanding() uint32 { return q.head - q.done }

// Retire gives the slots of the n oldest requests back to the client and returns the count of all
// retired so far, which goes into CQE.SQDone. Retire before pushing the completion.
func (q *SendConsumer) Retire(n uint32) uint32 {
	n = min(n, q.head-q.done)
	q.done += n
	if n != 0 && q.l.TxSlabSize != 0 {
		q.slab.free((q.done - 1) & (q.l.SQSize - 1))
	}
	d := q.out.Load()
	if d != nil {
		d.publish() // first: docs/direct.md#owner
	}
	q.doneWord.Store(q.done)
	if d != nil {
		markRetired.pass()
	}
	return q.done
}

// Done is the count of all retired so far.
func (q *SendConsumer) Done() uint32 { return q.done }

func (q *SendConsumer) violated(err error) error {
	if q.fail != nil {
		q.fail(err)
	}
	return err
}

// A RecvConsumer is the daemon's end of a receive queue. It belongs to whoever runs the QP; that of
// an SRQ to whoever holds the SRQ's lock.
type RecvConsumer struct {
	l         *abi.QPLayout
	mem       []byte
	prod      *atomic.Uint32 // the client's
	headWord  *atomic.Uint32 // ours; only ever written
	starved   *atomic.Uint32 // ours; only ever written
	isStarved bool           // what starved holds
	shared    bool           // an SRQ's
	head      uint32
	used      atomic.Uint32             // head, for others than the owner
	in        atomic.Pointer[Direction] // or nil: of the pair that the QP is in
	fail      func(error)
	raw       [abi.MaxRQStride]byte
}

// Next takes the next posted receive into w; false if there is none: see Starve. The slot is free
// for the client at once. Errors are those of SendConsumer.Next.
func (q *RecvConsumer) Next(w *abi.RecvWQE) (bool, error) {
	prod := q.prod.Load()
	if d := q.in.Load(); d != nil && prod != q.head {
		var ok bool
		if prod, ok = q.takeOver(d, true); !ok {
			return false, nil
		}
	}
	n := prod - q.head
	if n == 0 {
		return false, nil
	}
	if n > q.l.RQSize {
		return false, q.violated(abi.Violation("rq_prod %d with %d taken of %d slots", prod, q.head,
			q.l.RQSize))
	}
	off := q.l.RQOff + (q.head&(q.l.RQSize-1))*q.l.RQStride
	slot := q.mem[off : off+q.l.RQStride]
	raw := q.raw[:q.l.RQStride]
	k := copy(raw[:abi.RQSGE], slot)
	if sges := abi.Order.Uint32(raw[abi.RQNumSGE:]); sges <= abi.MaxSGE {
		copy(raw[k:], slot[k:min(abi.RQSGE+abi.SGELen*int(sges), len(slot))])
	}
	if err := w.Decode(raw, q.l); err != nil {
		return false, q.violated(err)
	}
	q.head++
	q.used.Store(q.head)
	q.headWord.Store(q.head)
	if !q.shared { // the one QP that waited has its receive: another may be starved still
		q.Sate()
	}
	return true, nil
}

// takeOver goes on behind the receives that have been used without the daemon, and says up to where
// they are posted; false: it has to wait.
func (q *RecvConsumer) takeOver(d *Direction, take bool) (prod uint32, ok bool) {
	head, prod, ok := d.takeOver(q.head, q.prod, take)
	if head != q.head {
		q.head = head
		q.used.Store(head)
		markUsed.pass()
		q.headWord.Store(head)
	}
	return prod, ok
}

// Settle goes on behind what has been used by the pair that the QP is in, which has been shut,
// before it is in another one; false: its sender may be about to use a receive, and Wake is called
// when it has gone on.
func (q *RecvConsumer) Settle() bool {
	d := q.in.Load()
	if d == nil {
		return true
	}
	_, ok := q.takeOver(d, false)
	return ok
}

// Pending is how many receives are posted, as the client says (and at most the size of the queue).
func (q *RecvConsumer) Pending() uint32 { return min(q.prod.Load()-q.head, q.l.RQSize) }

// Starve asks for a bell with the next posted receive, and says whether there still is none. The
// order matters: first say that a bell is wanted, then look again. Call it when a message waits for
// a receive, and on a QP in the error state, whose receives flush as they come.
//
// An SRQ stays starved until Sate, which must not be called while a QP waits: one that takes the
// only receive would otherwise switch off the bell that another waits for.
func (q *RecvConsumer) Starve() (empty bool) {
	q.isStarved = true
	q.starved.Swap(1) // a full fence: see Waking in the package comment
	return q.prod.Load() == q.head
}

// Sate takes back Starve.
func (q *RecvConsumer) Sate() {
	if q.isStarved {
		q.isStarved = false
		q.starved.Store(0)
	}
}

func (q *RecvConsumer) violated(err error) error {
	if q.fail != nil {
		q.fail(err)
	}
	return err
}

// DaemonQP is the daemon's end of a QP's shared memory.
type DaemonQP struct {
	Handle uint32 // by which async events name the QP
	Layout abi.QPLayout
	SQ     SendConsumer
	RQ     RecvConsumer // of no use with an SRQ
	RxSlab RxSlabProducer

	mem   []byte
	qpn   uint32
	state *atomic.Uint32
	err   *atomic.Uint32
}

// NewDaemonQP makes the rings of a QP in mem, which is zero and holds l.Size() octets. fail, if not
// nil, is told of violations, from inside Next.
func NewDaemonQP(mem []byte, l abi.QPLayout, handle uint32, fail func(error)) *DaemonQP {
	r := &DaemonQP{Handle: handle, Layout: l, mem: mem[:l.Size()]}
	r.SQ.l, r.SQ.mem, r.SQ.fail = &r.Layout, r.mem, fail
	r.SQ.prod, r.SQ.doneWord = abi.Word(mem, abi.QPSQProd), abi.Word(mem, abi.QPSQDone)
	r.RQ.init(r.mem, &r.Layout, fail)
	r.state = abi.Word(mem, abi.QPState)
	r.err = abi.Word(mem, abi.QPError)
	if l.TxSlabSize != 0 {
		r.SQ.slab = newTxSlabConsumer(mem, &l)
	}
	r.RxSlab = newRxSlabProducer(mem, &l, fail)
	l.Put(mem, abi.MagicQP, 0)
	r.SetState(abi.StateInit)
	return r
}

func (q *RecvConsumer) init(mem []byte, l *abi.QPLayout, fail func(error)) {
	q.l, q.mem, q.fail = l, mem, fail
	q.prod, q.headWord = abi.Word(mem, abi.QPRQProd), abi.Word(mem, abi.QPRQHead)
	q.starved = abi.Word(mem, abi.QPRQStarved)
}

// SetQPN completes line 0.
func (r *DaemonQP) SetQPN(qpn uint32) {
	r.qpn = qpn
	abi.Word(r.mem, abi.QPNum).Store(qpn)
}

// QPN is what SetQPN has said.
func (r *DaemonQP) QPN() uint32 { return r.qpn }

// SetState tells the client the QP's state (StateInit...). Any goroutine.
func (r *DaemonQP) SetState(s uint32) { r.state.Store(s) }

// SetError tells the client why the QP ended: see the word QPError. Call it before SetState.
func (r *DaemonQP) SetError(cause uint32) { r.err.Store(cause) }

// TxSlabMem is the slab that requests with SQSlab take their octets from, and RxSlabMem the one
// that receives come in: empty if there is none. The client can write to both.
func (r *DaemonQP) TxSlabMem() []byte {
	return slabMem(r.mem, r.Layout.TxSlabOff, r.Layout.TxSlabSize)
}
func (r *DaemonQP) RxSlabMem() []byte {
	return slabMem(r.mem, r.Layout.RxSlabOff, r.Layout.RxSlabSize)
}

// DaemonSRQ is the daemon's end of an SRQ's shared memory.
type DaemonSRQ struct {
	Handle uint32 // by which async events name the SRQ
	Layout abi.QPLayout
	RQ     RecvConsumer
}

// NewDaemonSRQ is NewDaemonQP for an SRQ.
func NewDaemonSRQ(mem []byte, l abi.QPLayout, handle uint32, fail func(error)) *DaemonSRQ {
	r := &DaemonSRQ{Handle: handle, Layout: l}
	r.RQ.init(mem[:l.Size()], &r.Layout, fail)
	r.RQ.shared = true
	l.Put(mem, abi.MagicSRQ, handle)
	return r
}

// A SendProducer is the client's end of a send queue. Calls must not overlap.
type SendProducer struct {
	l        *abi.QPLayout
	mem      []byte
	prodWord *atomic.Uint32
	doneWord *atomic.Uint32
	prod     uint32 // put, also if not yet committed
}

// errors of Post, made once: posting does not allocate.
var (
	errWQE       = fmt.Errorf("shm: work request does not fit the queue: %w", rdma.ErrInvalid)
	errQueueFull = fmt.Errorf("shm: queue is full: %w", rdma.ErrQueueFull)
)

// Put writes w into the next slot; Commit makes it visible. Errors wrap rdma.ErrQueueFull,
// rdma.ErrInvalid (more SGEs, inline or slab octets than the queue has room for), or are a
// *ProtocolError of the daemon's. It computes w.Length from the SGEs.
func (q *SendProducer) Put(w *abi.SendWQE) error {
	used := q.prod - q.doneWord.Load()
	if used >= q.l.SQSize {
		if used > q.l.SQSize {
			return abi.Violation("sq_done passed sq_prod")
		}
		return errQueueFull
	}
	switch w.Flags & (abi.SQInline | abi.SQSlab) {
	case abi.SQInline:
		if w.Length > q.l.MaxInline || w.NumSGE != 0 {
			return errWQE
		}
	case abi.SQSlab:
		if w.SlabOff > q.l.TxSlabSize || w.Length > q.l.TxSlabSize-w.SlabOff || w.NumSGE != 0 {
			return errWQE
		}
	case 0:
		if uint32(w.NumSGE) > q.l.SQMaxSGE() || abi.Masked(w.Op) && w.NumSGE > 1 {
			return errWQE
		}
		var sum uint64
		for i := range w.SGEs() {
			sum += uint64(w.SGE[i].Length)
		}
		if sum > 1<<32-1 {
			return errWQE
		}
		w.Length = uint32(sum)
	default:
		return errWQE
	}
	off := q.l.SQOff + (q.prod&(q.l.SQSize-1))*q.l.SQStride
	w.Encode(q.mem[off : off+q.l.SQStride])
	q.prod++
	return nil
}

// Commit shows the daemon all that was put. Ring the QP's bell after it, always.
func (q *SendProducer) Commit() { q.prodWord.Store(q.prod) }

// Done is how many requests the daemon has retired; differences are taken in uint32.
func (q *SendProducer) Done() uint32 { return q.doneWord.Load() }

// Posted is how many requests have been put.
func (q *SendProducer) Posted() uint32 { return q.prod }

// Committed reports whether the daemon has been shown all that was put.
func (q *SendProducer) Committed() bool { return q.prodWord.Load() == q.prod }

// A RecvProducer is the client's end of a receive queue. Calls must not overlap.
type RecvProducer struct {
	l        *abi.QPLayout
	mem      []byte
	prodWord *atomic.Uint32
	headWord *atomic.Uint32
	starved  *atomic.Uint32
	prod     uint32
}

// Put is SendProducer.Put. A slot is free once the daemon has taken the receive, which can be long
// before its completion is polled: limit what is outstanding in a table of your own.
func (q *RecvProducer) Put(w *abi.RecvWQE) error {
	used := q.prod - q.headWord.Load()
	if used >= q.l.RQSize {
		if used > q.l.RQSize {
			return abi.Violation("rq_head passed rq_prod")
		}
		return errQueueFull
	}
	return q.PutUnheard(w)
}

// PutUnheard is Put of who knows that the slot is free, though the daemon may not have heard yet
// which receives have been used without it: docs/direct.md.
func (q *RecvProducer) PutUnheard(w *abi.RecvWQE) error {
	if w.NumSGE > q.l.RQMaxSGE() {
		return errWQE
	}
	w.Encode(q.slot(q.prod))
	q.prod++
	return nil
}

// Get reads receive i back, which is outstanding and not older than Size others. An error is a
// *ProtocolError.
func (q *RecvProducer) Get(i uint32, w *abi.RecvWQE) error { return w.Decode(q.slot(i), q.l) }

func (q *RecvProducer) slot(i uint32) []byte {
	return q.mem[q.l.RQOff+(i&(q.l.RQSize-1))*q.l.RQStride:][:q.l.RQStride]
}

// Posted is how many receives have been put.
func (q *RecvProducer) Posted() uint32 { return q.prod }

// Size is how many receives the queue holds, and MaxSGE how many SGEs each may have.
func (q *RecvProducer) Size() int   { return int(q.l.RQSize) }
func (q *RecvProducer) MaxSGE() int { return int(q.l.RQMaxSGE()) }

// Commit shows the daemon all that was put, and returns whether the bell must be rung.
func (q *RecvProducer) Commit() (ring bool) {
	q.prodWord.Swap(q.prod) // a full fence: see Waking in the package comment
	return q.starved.Load() != 0
}

// ClientQP is the client's end of a QP's shared memory.
type ClientQP struct {
	Layout abi.QPLayout
	QPN    uint32
	SQ     SendProducer
	RQ     RecvProducer // of no use with an SRQ

	TxSlab TxSlabProducer
	RxSlab RxSlabConsumer

	mem   []byte
	state *atomic.Uint32
	err   *atomic.Uint32
}

// OpenClientQP checks line 0 of mem and makes the client's end. An error is a *ProtocolError.
func OpenClientQP(mem []byte) (*ClientQP, error) {
	l, qpn, err := abi.ReadQPLayout(mem)
	if err != nil {
		return nil, err
	}
	m := &ClientQP{Layout: l, QPN: qpn, mem: mem, state: abi.Word(mem, abi.QPState),
		err: abi.Word(mem, abi.QPError)}
	m.SQ = SendProducer{l: &m.Layout, mem: mem, prodWord: abi.Word(mem, abi.QPSQProd),
		doneWord: abi.Word(mem, abi.QPSQDone)}
	m.RQ = newRecvProducer(mem, &m.Layout)
	m.TxSlab = newTxSlabProducer(mem, &l)
	m.RxSlab = newRxSlabConsumer(mem, &l)
	return m, nil
}

func newRecvProducer(mem []byte, l *abi.QPLayout) RecvProducer {
	return RecvProducer{l: l, mem: mem, prodWord: abi.Word(mem, abi.QPRQProd),
		headWord: abi.Word(mem, abi.QPRQHead), starved: abi.Word(mem, abi.QPRQStarved)}
}

// State is the QP's state (StateInit...), and Cause the word at QPError.
func (m *ClientQP) State() uint32 { return m.state.Load() }
func (m *ClientQP) Cause() uint32 { return m.err.Load() }

// ClientSRQ is the client's end of an SRQ's shared memory.
type ClientSRQ struct {
	Layout abi.QPLayout
	Handle uint32
	RQ     RecvProducer
}

// OpenClientSRQ is OpenClientQP for an SRQ.
func OpenClientSRQ(mem []byte) (*ClientSRQ, error) {
	l, handle, err := abi.ReadSRQLayout(mem)
	if err != nil {
		return nil, err
	}
	m := &ClientSRQ{Layout: l, Handle: handle}
	m.RQ = newRecvProducer(mem, &m.Layout)
	return m, nil
}

// Errors of completion queues.
var (
	ErrCQOverrun = errors.New("shm: completion queue overrun")
	ErrCQClosed  = errors.New("shm: completion queue is closed")
)
