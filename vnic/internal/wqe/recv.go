package wqe

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// Receives are the receive half of a QP: what the peer's Sends go into. On the wire only the QP's
// owner is here; on loopback the owner of the peer delivers, too. Methods that end in Locked are
// called between Lock and Unlock.
type Receives struct {
	w       *Requests
	waiting atomic.Bool // a Send waits for a receive, or a post must be flushed
	Stalled bool        // the owner's: it knows that a Send waits

	mu     sync.Mutex
	from   any // guarded by mu: who else may deliver here, nil: nobody
	cookie uint32
	size   uint32
	have   bool // guarded by mu, as all above: wr is a receive that was taken
	used   bool // guarded by mu: a Send has begun to fill it
	bad    bool // guarded by mu: wr names memory that it may not
	fail   rdma.WCStatus
	// guarded by mu, as fail: how the receive that was taken fails instead of being flushed
	vendor uint32
	wr     rdma.RecvWR
	list   mem.SGL
	sge    [1]rdma.SGE // the room of wr, if that is enough
	wc     rdma.WC     // guarded by mu: scratch, a sink would make a local one escape; see also ended

	// A Send with Invalidate whose octets are there waits until ended, which it revoked, is
	// drained. wc is its completion; no other Send is taken meanwhile.
	ended     *mem.MR     // guarded by mu
	solicited bool        // guarded by mu: of that Send
	revoking  atomic.Bool // ended is set

	// What was delivered and is told of together: see EndLocked. All guarded by mu.
	recvs     uint64 // not counted yet
	octets    uint64
	nDeferred int
	deferred  *[DeferMost]deferredRecv // nil until there was one
}

// DeferMost is how many completions can be kept to be told of together.
const DeferMost = 16

// A deferredRecv is the completion of a receive.
type deferredRecv struct {
	wc        rdma.WC
	cookie    uint32
	solicited bool
}

func (r *Receives) init(w *Requests) {
	r.w = w
	r.wr.SGEs = roomFor(w.cfg.MaxRecvSGE, r.sge[:0])
	r.list.Init(w.cfg.MaxRecvSGE)
}

// +checklocksacquire:r.mu
func (r *Receives) Lock() { r.mu.Lock() }

// +checklocksrelease:r.mu
func (r *Receives) Unlock() { r.mu.Unlock() }

// Waiting reports whether a Send waits for a receive, or a post must be flushed. Any goroutine may
// ask.
func (r *Receives) Waiting() bool { return r.waiting.Load() }

// Open has who deliver here, too, besides the QP's owner; nil: nobody.
func (r *Receives) Open(who any) {
	r.mu.Lock()
	r.OpenLocked(who)
	r.mu.Unlock()
}

func (r *Receives) OpenLocked(who any) { r.from = who }

// OpenedLocked is what Open was called with last; nil after Close.
func (r *Receives) OpenedLocked() any { return r.from }

// TakeLocked makes sure that a receive is at hand; false: none is posted, and QP.Ring comes when
// one is.
func (r *Receives) TakeLocked() bool {
	if r.have || r.nextLocked() {
		return true
	}
	r.waiting.Store(true)
	r.w.Queues.Recv.Starve(true)
	return r.nextLocked() // it may have come in between
}

func (r *Receives) nextLocked() bool {
	w := r.w
	cookie, ok, err := w.Queues.Recv.Next(&r.wr)
	if err != nil {
		w.owner.Violation(fmt.Errorf("receive queue of QP %d: %w", w.num, err))
		return false
	}
	if !ok {
		return false
	}
	if r.waiting.Load() {
		r.waiting.Store(false)
		w.Queues.Recv.Starve(false)
	}
	r.cookie, r.have, r.used, r.bad, r.fail, r.vendor, r.size = cookie, true, false, false, 0, 0, 0
	n, ok := mem.Total(r.wr.SGEs)
	if !ok || len(r.wr.SGEs) > w.cfg.MaxRecvSGE {
		r.bad = true
		return true
	}
	if err := r.list.Resolve(w.Memory.PD(), r.wr.SGEs, true); err != nil {
		w.owner.Log("receive refused", "err", err)
		r.bad = true // an error once something is to be placed there
	}
	r.size = n
	return true
}

// Posted is how many receives are there for Sends that have not begun.
func (r *Receives) Posted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.w.Queues.Recv.Pending()
	if r.have && !r.used {
		n++
	}
	return n
}

// Await has the QP run when the next receive is posted.
func (r *Receives) Await() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting.Store(true)
	r.w.Queues.Recv.Starve(true)
}

// Begin takes a receive for a Send; false: there is none.
func (r *Receives) Begin() (size uint32, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.BeginLocked()
}

// BeginLocked is Begin; of a Send that goes on it says again what it has.
func (r *Receives) BeginLocked() (size uint32, ok bool) {
	if r.have && r.used {
		return r.size, true
	}
	if r.ended != nil || !r.TakeLocked() {
		return 0, false
	}
	r.used = true
	return r.size, true
}

var errBadReceive = fmt.Errorf("the receive names memory that it may not write: %w",
	rdma.ErrInvalid)

// Place places octets of the Send under way. The QP's owner, alone with this side, needs no lock.
// An error is a *iwarp.LocalError.
func (r *Receives) Place(h *mem.Hold, off uint32, p []byte) error {
	err := errBadReceive
	if !r.bad {
		if err = r.list.CopyIn(h, p, off); err == nil {
			return nil
		}
	}
	return r.PlaceFailed(err)
}

// ListLocked is the memory of the Send under way. An error is a *iwarp.LocalError.
func (r *Receives) ListLocked() (*mem.SGL, error) {
	if r.bad {
		return nil, r.PlaceFailed(errBadReceive)
	}
	return &r.list, nil
}

// PlaceFailed has the receive of the Send under way fail, and returns a *iwarp.LocalError.
func (r *Receives) PlaceFailed(err error) error {
	r.fail = rdma.WCLocProt
	return &iwarp.LocalError{Cause: iwarp.TermDDPCatastrophic, Err: err}
}

// End delivers the Send under way. An error is a *iwarp.LocalError.
func (r *Receives) End(d iwarp.Received) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.EndLocked(d, false)
}

// TryBegin is Begin for who does not wait: nobody is asked for a receive if there is none.
func (r *Receives) TryBegin() (size uint32, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.TryBeginLocked()
}

// TryBeginLocked is TryBegin.
func (r *Receives) TryBeginLocked() (size uint32, ok bool) {
	if r.ended != nil || !r.have && !r.nextLocked() {
		return 0, false
	}
	r.used = true
	return r.size, true
}

// Fail has the receive that was begun fail with st when it is flushed.
func (r *Receives) Fail(st rdma.WCStatus) {
	r.mu.Lock()
	r.fail = st
	r.mu.Unlock()
}

// An Arrival is a message of RoCE that has come.
type Arrival struct {
	Length     uint32 // of a Write with immediate data the Write's
	Write      bool   // it was one: the receive's memory is as it was
	Solicited  bool
	Immediate  bool
	Imm        uint32 // as SendWR.Imm
	Invalidate bool
	Key        uint32 // what it invalidates
}

// EndMessage delivers the message under way. An error: what it invalidates cannot be, and the
// receive fails with that.
func (r *Receives) EndMessage(a *Arrival) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.EndMessageLocked(a)
}

// EndMessageLocked is EndMessage.
func (r *Receives) EndMessageLocked(a *Arrival) error {
	w, wc := r.w, &r.wc
	*wc = rdma.WC{ID: r.wr.ID, Op: rdma.WCRecv, ByteLen: a.Length, QPN: w.num}
	if a.Write {
		wc.Op = rdma.WCRecvImm
	}
	if a.Immediate {
		wc.Flags |= rdma.WCWithImm
		wc.Imm = a.Imm
		w.Stats.InImmediates.Add(1)
	}
	if a.Invalidate {
		m, err := w.Memory.RemoteInvalidate(a.Key)
		if err != nil {
			r.fail = rdma.WCRemInvReq
			return err
		}
		wc.Flags |= rdma.WCWithInv
		wc.Imm = a.Key
		if !m.Await(w.owner.Wake) {
			r.ended, r.solicited, r.used = m, a.Solicited, false
			r.revoking.Store(true)
			return nil
		}
	}
	r.solicited = a.Solicited
	n := a.Length
	if a.Write {
		n = 0 // they were counted as the Write's
	}
	r.deliverLocked(n, false)
	return nil
}

// EndLocked is End. With wait set the completion is kept for the next one, or TellLocked; at most
// DeferMost are.
func (r *Receives) EndLocked(d iwarp.Received, wait bool) error {
	w := r.w
	wc := &r.wc
	*wc = rdma.WC{ID: r.wr.ID, Op: rdma.WCRecv, ByteLen: d.Length, QPN: w.num}
	if d.Invalidate {
		m, err := w.Memory.RemoteInvalidate(uint32(d.STag))
		if err != nil {
			r.fail, r.vendor = rdma.WCRemInvReq, VendorErr(err.Cause)
			return err
		}
		wc.Flags |= rdma.WCWithInv
		wc.Imm = uint32(d.STag)
		if !m.Await(w.owner.Wake) {
			r.ended, r.solicited, r.used = m, d.Solicited, false
			r.revoking.Store(true)
			return nil
		}
	}
	if d.Immediate {
		wc.Op = rdma.WCRecvImm
		wc.Flags |= rdma.WCWithImm
		wc.Imm, wc.ImmLow = uint32(d.Data>>32), uint32(d.Data)
		w.Stats.InImmediates.Add(1)
	}
	r.solicited = d.Solicited
	r.deliverLocked(d.Length, wait)
	return nil
}

// VendorErr is how a completion tells of a Terminate.
func VendorErr(code iwarp.TermCode) uint32 {
	return uint32(code.Layer)<<12 | uint32(code.Type)<<8 | uint32(code.Code)
}

// Revoking reports whether a Send with Invalidate waits for the copies through the key that it
// ended.
func (r *Receives) Revoking() bool { return r.revoking.Load() }

// Revoked delivers that Send if the last copy is done.
func (r *Receives) Revoked() (delivered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil || !r.ended.Drained() {
		return false
	}
	r.deliverLocked(r.wc.ByteLen, false)
	return true
}

// deliverLocked completes the receive, into which n octets have gone, with wc.
func (r *Receives) deliverLocked(n uint32, wait bool) {
	if r.ended != nil {
		r.ended = nil
		r.revoking.Store(false)
	}
	r.recvs++
	r.octets += uint64(n)
	if r.solicited {
		r.w.Stats.Solicited.Add(1)
	}
	r.have = false
	r.list.Drop()
	if !wait {
		r.completeLocked(&r.wc, r.solicited)
		return
	}
	if r.deferred == nil {
		r.deferred = new([DeferMost]deferredRecv)
	}
	r.deferred[r.nDeferred] = deferredRecv{r.wc, r.cookie, r.solicited}
	r.nDeferred++
}

// Tell completes what was kept.
func (r *Receives) Tell() {
	r.mu.Lock()
	if r.nDeferred > 0 {
		r.completeLocked(nil, false)
	}
	r.mu.Unlock()
}

// completeLocked pushes the completions that were kept, and wc, if it is not nil.
func (r *Receives) completeLocked(wc *rdma.WC, solicited bool) {
	w := r.w
	if r.recvs > 0 {
		w.Stats.Received(r.recvs, r.octets)
		r.recvs, r.octets = 0, 0
	}
	o := w.watching()
	cq := w.Queues.RecvCQ
	cq.Lock()
	for i := range r.nDeferred {
		k := &r.deferred[i]
		if o != nil {
			o.receive(&k.wc)
		}
		cq.AddRecv(&w.Queues, &k.wc, k.cookie, k.solicited)
	}
	r.nDeferred = 0
	if wc != nil {
		if o != nil {
			o.receive(wc)
		}
		cq.AddRecv(&w.Queues, wc, r.cookie, solicited)
	}
	cq.Unlock()
}

// FailSend has the receive of a Send under way fail for code: the Send is too long. false: there is
// none.
func (r *Receives) FailSend(st rdma.WCStatus, vendor uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.used || !r.have {
		return false
	}
	r.fail, r.vendor = st, vendor
	return true
}

// Failing reports whether the receive at hand will fail.
func (r *Receives) Failing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fail != 0
}

// Close ends delivery: nobody but the QP's owner comes here any more, and no receive is asked for.
// dead: the QP is no more.
func (r *Receives) Close(dead bool) {
	q := &r.w.Queues
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from = nil
	if r.nDeferred > 0 {
		r.completeLocked(nil, false)
	}
	if r.waiting.Load() {
		r.waiting.Store(false)
		if !dead || q.Tap != nil {
			q.Recv.Starve(false)
		}
	}
	if dead {
		if r.have && q.Tap != nil {
			q.Tap.GiveBack(&r.wr, r.cookie)
		}
		r.list.Drop()
		r.have, r.ended = false, nil
	}
}

// Flush flushes all receives: the one partly filled first, with the peer's Terminate as vendor.
// Those of an SRQ stay there. true: there is more.
func (r *Receives) Flush(vendor uint32) (more bool) {
	w := r.w
	tap := w.Queues.Tap
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := 0; ; i++ {
		if !r.have && (tap != nil || i >= StepMessages || !r.TakeLocked()) {
			return tap == nil && i >= StepMessages
		}
		if r.ended != nil { // its octets are there, and the key is gone all the same
			r.ended, r.used = nil, true
			r.revoking.Store(false)
		}
		if tap != nil && !r.used {
			tap.GiveBack(&r.wr, r.cookie) // taken for a Send that did not come
			r.list.Drop()
			r.have = false
			return false
		}
		wc := &r.wc
		*wc = rdma.WC{
			ID: r.wr.ID, Status: rdma.WCFlush, Op: rdma.WCRecv, QPN: w.num, VendorErr: r.vendor,
		}
		if r.fail != 0 {
			wc.Status = r.fail
			w.Stats.Errors.Add(1)
		} else if vendor != 0 {
			wc.VendorErr = vendor
		}
		r.have, r.fail, r.vendor = false, 0, 0
		r.list.Drop()
		r.completeLocked(wc, false)
	}
}

// discard empties the receive queue without completions.
func (r *Receives) discard() {
	q := &r.w.Queues
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	if r.have {
		n++
		if q.Tap != nil {
			q.Tap.GiveBack(&r.wr, r.cookie)
		}
	}
	r.list.Drop()
	r.have, r.used, r.ended, r.fail, r.vendor = false, false, nil, 0, 0
	r.revoking.Store(false)
	if q.Tap != nil {
		return
	}
	for range r.w.cfg.MaxRecvWR {
		_, ok, err := q.Recv.Next(&r.wr)
		if err != nil {
			r.w.owner.Violation(fmt.Errorf("receive queue of QP %d: %w", r.w.num, err))
		}
		if !ok || err != nil {
			break
		}
		n++
	}
	q.RetireRecvs(n)
}
