package vnic

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// A recvSide is the receive half of a QP: what the peer's Sends go into. On the wire only the
// QP's owner is here; on loopback the owner of the peer delivers, too.
type recvSide struct {
	qp      *QP
	waiting atomic.Bool // a Send waits for a receive, or a post must be flushed

	mu     sync.Mutex
	from   *loopEnd // guarded by mu: the end on loopback that may deliver here, nil: none
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

	// What was delivered and is told of together: see loopEnd.late. All guarded by mu.
	recvs  uint64 // not counted yet
	octets uint64
	lates  int
	late   *[lateMost]lateRecv // nil until there was one
}

// A lateRecv is the completion of a receive.
type lateRecv struct {
	wc        rdma.WC
	cookie    uint32
	solicited bool
}

func (r *recvSide) init(qp *QP) {
	r.qp = qp
	r.wr.SGEs = roomFor(qp.cfg.MaxRecvSGE, r.sge[:0])
	r.list.Init(qp.cfg.MaxRecvSGE)
}

// takeLocked makes sure that a receive is at hand; false: none is posted, and QP.Ring comes when
// one is.
func (r *recvSide) takeLocked() bool {
	if r.have || r.nextLocked() {
		return true
	}
	r.waiting.Store(true)
	r.qp.queues.Recv.Starve(true)
	if r.nextLocked() { // it may have come in between
		return true
	}
	return false
}

func (r *recvSide) nextLocked() bool {
	qp := r.qp
	cookie, ok, err := qp.queues.Recv.Next(&r.wr)
	if err != nil {
		qp.ctx.violation(fmt.Errorf("receive queue of QP %d: %w", qp.num, err))
		return false
	}
	if !ok {
		return false
	}
	if r.waiting.Load() {
		r.waiting.Store(false)
		qp.queues.Recv.Starve(false)
	}
	r.cookie, r.have, r.used, r.bad, r.fail, r.vendor, r.size = cookie, true, false, false, 0, 0, 0
	n, ok := mem.Total(r.wr.SGEs)
	if !ok || len(r.wr.SGEs) > qp.cfg.MaxRecvSGE {
		r.bad = true
		return true
	}
	if err := r.list.Resolve(qp.pd.PD, r.wr.SGEs, true); err != nil {
		qp.log("receive refused", "err", err)
		r.bad = true // an error once something is to be placed there
	}
	r.size = n
	return true
}

// beginLocked takes a receive for a Send.
func (r *recvSide) beginLocked() (size uint32, ok bool) {
	if r.ended != nil || !r.takeLocked() {
		return 0, false
	}
	r.used = true
	return r.size, true
}

var errBadReceive = fmt.Errorf("the receive names memory that it may not write: %w",
	rdma.ErrInvalid)

// placeLocked places octets of the Send under way.
func (r *recvSide) placeLocked(h *mem.Hold, off uint32, p []byte) error {
	err := errBadReceive
	if !r.bad {
		if err = r.list.CopyIn(h, p, off); err == nil {
			return nil
		}
	}
	return r.placeFailed(err)
}

func (r *recvSide) placeFailed(err error) error {
	r.fail = rdma.WCLocProt
	return &iwarp.LocalError{Cause: iwarp.TermDDPCatastrophic, Err: err}
}

// endLocked delivers the Send; with late its completion is kept for the next tellLocked.
func (r *recvSide) endLocked(d iwarp.Received, late bool) error {
	qp := r.qp
	wc := &r.wc
	*wc = rdma.WC{ID: r.wr.ID, Op: rdma.WCRecv, ByteLen: d.Length, QPN: qp.num}
	if d.Invalidate {
		m, err := qp.mem.RemoteInvalidate(uint32(d.STag))
		if err != nil {
			r.fail, r.vendor = rdma.WCRemInvReq, vendorErr(err.Cause)
			return err
		}
		wc.Flags |= rdma.WCWithInv
		wc.Imm = uint32(d.STag)
		if !m.Await(qp.wake) {
			r.ended, r.solicited, r.used = m, d.Solicited, false
			r.revoking.Store(true)
			return nil
		}
	}
	if d.Immediate {
		wc.Op = rdma.WCRecvImm
		wc.Flags |= rdma.WCWithImm
		wc.Imm, wc.ImmLow = uint32(d.Data>>32), uint32(d.Data)
		qp.stats.inImmediates.Add(1)
	}
	r.solicited = d.Solicited
	r.deliverLocked(late)
	return nil
}

// deliverLocked completes the receive with wc.
func (r *recvSide) deliverLocked(late bool) {
	qp := r.qp
	if r.ended != nil {
		r.ended = nil
		r.revoking.Store(false)
	}
	r.recvs++
	r.octets += uint64(r.wc.ByteLen)
	if r.solicited {
		qp.stats.solicited.Add(1)
	}
	r.have = false
	r.list.Drop()
	if !late {
		r.tellLocked(&r.wc, r.solicited)
		return
	}
	if r.late == nil {
		r.late = new([lateMost]lateRecv)
	}
	r.late[r.lates] = lateRecv{r.wc, r.cookie, r.solicited}
	r.lates++
}

// tellLocked pushes the completions that were kept, and wc, if it is not nil.
func (r *recvSide) tellLocked(wc *rdma.WC, solicited bool) {
	if r.recvs > 0 {
		r.qp.stats.recv(r.recvs, r.octets)
		r.recvs, r.octets = 0, 0
	}
	cq := r.qp.queues.RecvCQ
	cq.Lock()
	for i := range r.lates {
		k := &r.late[i]
		cq.AddRecv(&r.qp.queues, &k.wc, k.cookie, k.solicited)
	}
	r.lates = 0
	if wc != nil {
		cq.AddRecv(&r.qp.queues, wc, r.cookie, solicited)
	}
	cq.Unlock()
}

// closeRecv ends delivery: on loopback nobody comes here any more, and no receive is asked for.
func (qp *QP) closeRecv() {
	r := &qp.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from = nil
	if r.lates > 0 {
		r.tellLocked(nil, false)
	}
	if r.waiting.Load() {
		r.waiting.Store(false)
		if !qp.dead || qp.queues.Tap != nil {
			qp.queues.Recv.Starve(false)
		}
	}
	if qp.dead {
		if r.have && qp.queues.Tap != nil {
			qp.queues.Tap.GiveBack(&r.wr, r.cookie)
		}
		r.list.Drop()
		r.have, r.ended = false, nil
	}
}

// flushRecv flushes all receives: the one partly filled first. Those of an SRQ stay there. true:
// there is more.
func (qp *QP) flushRecv() (more bool) {
	r := &qp.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := 0; ; i++ {
		if !r.have && (qp.queues.Tap != nil || i >= stepMessages || !r.takeLocked()) {
			return qp.queues.Tap == nil && i >= stepMessages
		}
		if r.ended != nil { // its octets are there, and the key is gone all the same
			r.ended, r.used = nil, true
			r.revoking.Store(false)
		}
		if qp.queues.Tap != nil && !r.used {
			qp.queues.Tap.GiveBack(&r.wr, r.cookie) // taken for a Send that did not come
			r.list.Drop()
			r.have = false
			return false
		}
		wc := &r.wc
		*wc = rdma.WC{ID: r.wr.ID, Status: rdma.WCFlush, Op: rdma.WCRecv, QPN: qp.num,
			VendorErr: r.vendor}
		if r.fail != 0 {
			wc.Status = r.fail
			qp.stats.errors.Add(1)
		} else if qp.peerCode != nil {
			wc.VendorErr = vendorErr(qp.peerCode.code)
		}
		r.have, r.fail, r.vendor = false, 0, 0
		r.list.Drop()
		r.tellLocked(wc, false)
	}
}
