package shm

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// checkPolls is after how many empty polls in a row a poll looks whether the daemon is still there:
// docs/abi.md#waiting.
const checkPolls = 1024

// A compQueue implements rdma.CQ.
type compQueue struct {
	d      *Device
	ch     *compChan
	handle uint32
	notify chan struct{} // holds the event of an Arm
	closed chan struct{} // closed by Close

	resizing sync.Mutex // serialises Resize

	mu    sync.Mutex       // guards what follows, and the consumer's Poll
	mem   *osmem.Region    // nil once closed
	ring  *ring.CQConsumer // changes with the channel's lock held too
	depth int
	bad   bool // the ring makes no sense; the session is dead
	empty int  // polls in a row that found nothing
	cqe   abi.CQE
	qps   map[uint32]*queuePair // by number
	last  *queuePair            // the one found last
	// directs are those of QPs that complete here; many has the others, if there are more than a few.
	directs   []*directPath
	many      *ring.Board[directPath]
	bits      *osmem.Region // by which it finds what comes, or nil
	come      *ring.PairBits
	manyFirst bool   // before directs, at the next poll
	manyFrom  [2]int // and from which place on, by what is looked for

	wanted atomic.Uint32 // what peers have been told that q is armed for; changes with mu held
	sleep  uint32        // what tells one time that it is armed from others, in abi.WantSleep
}

// CreateCQ implements rdma.Device.
func (d *Device) CreateCQ(depth int) (rdma.CQ, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if depth < 1 {
		return nil, errInvalid("CQ of depth %d", depth)
	}
	if depth > abi.MaxCQDepth {
		return nil, &CallError{Op: "create CQ", Errno: syscall.ENOMEM}
	}
	d.chanMu.Lock()
	defer d.chanMu.Unlock()
	ch, err := d.channel()
	if err != nil {
		return nil, err
	}
	q, err := d.newCQ(ch, depth)
	if err == nil {
		err = add(d, d.cqs, q, struct{}{})
		if err != nil {
			q.destroyed()
		}
	}
	if err != nil {
		d.releaseChannel(ch)
		return nil, err
	}
	return q, nil
}

// newCQ makes a CQ whose events come on ch.
func (d *Device) newCQ(ch *compChan, depth int) (*compQueue, error) {
	var rep rpc.CreateCQReply
	req := &rpc.CreateCQRequest{Ctx: d.ctx, CQE: uint32(1) << bits.Len(uint(depth-1)), Chan: ch.handle}
	fds, err := d.c.rpc(rpc.OpCreateCQ, "create CQ", req, &rep, -1)
	if err != nil {
		return nil, err
	}
	mem, err := osmem.MapSealed(fds[0], abi.CQHeaderLen)
	if err != nil {
		return nil, d.c.die(goneBecause(err))
	}
	ring, err := ring.OpenCQConsumer(mem.Mem)
	if err == nil && (ring.Handle() != rep.CQ || ring.Size() < depth) {
		err = errCorrupt("CQ %d of %d entries where CQ %d of %d was made", ring.Handle(), ring.Size(),
			rep.CQ, depth)
	}
	if err != nil {
		mem.Release()
		return nil, d.c.die(goneBecause(err))
	}
	q := &compQueue{
		d: d, ch: ch, handle: rep.CQ, depth: ring.Size(), mem: mem, ring: ring,
		notify: make(chan struct{}, 1), closed: make(chan struct{}), qps: make(map[uint32]*queuePair),
	}
	ch.mu.Lock()
	ch.cqs[q.handle] = q
	ch.mu.Unlock()
	return q, nil
}

// channel finds a channel for one more CQ: d.chanMu is held.
func (d *Device) channel() (*compChan, error) {
	var least *compChan
	for _, ch := range d.chans {
		if least == nil || ch.used < least.used {
			least = ch
		}
	}
	if len(d.chans) < ownChans {
		ch, err := newCompChan(d)
		if err == nil {
			d.chans = append(d.chans, ch)
			ch.used = 1
			return ch, nil
		}
		if least == nil || d.c.gone() != nil {
			return nil, err
		}
	}
	least.used++
	return least, nil
}

// releaseChannel undoes channel: d.chanMu is held.
func (d *Device) releaseChannel(ch *compChan) {
	if ch.used--; ch.used == 0 {
		d.chans = slices.DeleteFunc(d.chans, func(c *compChan) bool { return c == ch })
		ch.close()
	}
}

// Depth implements rdma.CQ.
func (q *compQueue) Depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.depth
}

// Resize implements rdma.CQ. Who polls or waits meanwhile waits for the daemon.
func (q *compQueue) Resize(depth int) error {
	if depth < 1 || depth > abi.MaxCQDepth {
		return errInvalid("CQ of depth %d", depth)
	}
	q.resizing.Lock()
	defer q.resizing.Unlock()
	var rep rpc.ResizeCQReply
	req := &rpc.ResizeCQRequest{CQ: q.handle, CQE: uint32(1) << bits.Len(uint(depth-1))}
	fds, err := q.d.c.rpc(rpc.OpResizeCQ, "resize CQ", req, &rep, -1)
	if err != nil {
		return err
	}
	mem, err := osmem.MapSealed(fds[0], abi.CQHeaderLen)
	if err != nil {
		return q.d.c.die(goneBecause(err))
	}
	if err := q.switchTo(mem, depth); err != nil {
		mem.Release()
		return err
	}
	return nil
}

// switchTo goes on in mem: docs/abi.md#resizing.
func (q *compQueue) switchTo(mem *osmem.Region, depth int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ch.mu.Lock()
	defer q.ch.mu.Unlock()
	if q.mem == nil {
		return errCQClosed
	}
	if err := q.d.c.callHandle(rpc.OpSwitchCQ, "resize CQ", q.handle); err != nil {
		return err
	}
	next, err := ring.OpenCQConsumer(mem.Mem)
	if err == nil && (next.Handle() != q.handle || next.Size() < depth) {
		err = errCorrupt("CQ %d of %d entries where CQ %d was to have %d", next.Handle(), next.Size(),
			q.handle, depth)
	}
	if err != nil {
		return q.d.c.die(goneBecause(err))
	}
	next.Follow(q.ring)
	q.mem.Release()
	q.mem, q.ring, q.depth = mem, next, next.Size()
	return nil
}

// Poll implements rdma.CQ. After polls in a row that found nothing it gives up the processor for a
// moment, so that a program may poll in a loop on a machine with few cores. On a dead session it
// completes what is posted with rdma.WCFlush, and then returns rdma.ErrDeviceGone.
func (q *compQueue) Poll(wc []rdma.WC) (int, error) {
	if len(wc) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	if q.mem == nil {
		q.mu.Unlock()
		return 0, errCQClosed
	}
	n := q.take(wc)
	if n != 0 {
		q.empty = 0
		q.mu.Unlock()
		return n, nil
	}
	if q.d.c.gone() != nil {
		if q.many != nil { // no daemon says where to look for what the last senders have left
			q.many.MarkAll()
			n = q.take(wc)
		}
		if n == 0 {
			n = q.flush(wc)
		}
		q.mu.Unlock()
		if n != 0 {
			return n, nil
		}
		return 0, q.d.c.gone()
	}
	q.empty++
	empty := q.empty
	q.mu.Unlock()
	if empty%q.d.c.yield == 0 {
		osmem.Yield()
	}
	if empty%checkPolls == 0 {
		q.d.c.checkPeer()
	}
	return 0, nil
}

// take moves completions out of the ring: q.mu is held. Nonsense in the ring ends the session.
func (q *compQueue) take(wc []rdma.WC) (n int) {
	if q.hasDirect() {
		return q.takeBoth(wc)
	}
	for n < len(wc) && !q.bad {
		ok, err := q.ring.Poll(&q.cqe)
		if err == nil && !ok {
			return n
		}
		if err == nil {
			ok, err = q.complete(&wc[n])
		}
		if err != nil {
			q.bad = true
			_ = q.d.c.corrupt(err)
			return n
		}
		if ok {
			n++
		}
	}
	return n
}

// complete makes a WC of q.cqe and frees what the completion frees; false for a QP that has been
// closed: q.mu is held.
func (q *compQueue) complete(wc *rdma.WC) (bool, error) {
	e := &q.cqe
	qp := q.last
	if qp == nil || qp.num != e.QPN {
		if qp = q.find(e.QPN); qp == nil {
			return false, nil
		}
	}
	if e.Receive() {
		if qp.recvCQ != q {
			return false, errCorrupt("a completion of QP %d, which receives elsewhere", e.QPN)
		}
		if !qp.receiver().received(e.Cookie) {
			if q.isOver(qp) {
				return false, nil
			}
			return false, errCorrupt("a completion of QP %d with cookie %#x", e.QPN, e.Cookie)
		}
		if d := qp.direct; d != nil {
			if d.next++; !d.out.IsOpen() { // it may do nothing but receive
				qp.askAgain()
			}
			if d.recvPlace >= 0 { // the next one may be there, whose bit told of this one
				q.many.Mark(d.recvPlace)
			}
		}
	} else {
		if qp.sendCQ != q || !qp.sent(e.SQDone) {
			return false, errCorrupt("a completion of QP %d with sq_done %d", e.QPN, e.SQDone)
		}
		if d := qp.direct; d != nil {
			d.polled = e.SQDone
		}
	}
	*wc = rdma.WC{
		ID: e.WRID, Status: rdma.WCStatus(e.Status), Op: rdma.WCOpcode(e.Opcode), VendorErr: e.VendorErr,
		ByteLen: e.ByteLen, Imm: e.Imm, QPN: e.QPN, Flags: rdma.WCFlags(e.WCFlags),
	}
	if wc.Flags != 0 {
		qp.flagged(wc, e)
	}
	return true, nil
}

// flagged fills what wc has by its flags.
func (q *queuePair) flagged(wc *rdma.WC, e *abi.CQE) {
	if wc.Flags&rdma.WCWithImm != 0 {
		wc.Imm, wc.ImmLow = abi.ImmWord(e.Imm), abi.ImmWord(e.SrcQP)
	}
	if wc.Flags&rdma.WCGRH != 0 {
		wc.SrcQP, wc.ImmLow = e.SrcQP, 0
	}
	if wc.Flags&rdma.WCWithInv != 0 {
		q.pd.regions.remove(e.Imm)
	}
}

// find finds a QP that completes here, by its number: q.mu is held.
func (q *compQueue) find(num uint32) *queuePair {
	qp := q.qps[num]
	if qp != nil {
		q.last = qp
	}
	return qp
}

// flush makes up completions for what is posted: q.mu is held and the session is dead.
func (q *compQueue) flush(wc []rdma.WC) (n int) {
	for _, qp := range q.qps {
		if n == len(wc) {
			break
		}
		if qp.sendCQ == q {
			n += qp.flushSends(wc[n:])
		}
		switch d := qp.direct; {
		case qp.recvCQ != q || qp.srq != nil: // receives of an SRQ belong to no QP
		case d != nil:
			d.bad = true
			n += d.flush(wc[n:])
		default:
			n += qp.rq.flush(wc[n:], qp.num)
		}
	}
	return n
}

// Arm implements rdma.CQ.
func (q *compQueue) Arm(solicitedOnly bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mem == nil {
		return errCQClosed
	}
	if err := q.d.c.gone(); err != nil {
		return err
	}
	if !q.hasDirect() {
		q.ring.Arm(solicitedOnly)
		return nil
	}
	if !q.ring.Armed() {
		q.begin()
	}
	q.ring.Arm(solicitedOnly)
	q.tellWanted()
	if q.many != nil {
		q.many.MarkSome()
	}
	return nil
}

// Wait implements rdma.CQ.
func (q *compQueue) Wait(ctx context.Context) error { return q.ch.wait(ctx, q) }

// attach and detach add and remove a QP whose completions come here.
func (q *compQueue) attach(qp *queuePair) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mem == nil {
		return errCQClosed
	}
	q.qps[qp.num] = qp
	return nil
}

func (q *compQueue) detach(qp *queuePair) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.qps, qp.num)
	q.last = nil
	if qp.srq == nil || qp.recvCQ != q || q.mem == nil || q.bad || q.d.c.gone() != nil {
		return
	}
	// Nobody will poll them any more, and nothing comes after them, but the SRQ goes on.
	err := q.ring.Each(func(e *abi.CQE) {
		if e.QPN == qp.num && e.Receive() {
			qp.srq.rq.received(e.Cookie)
		}
	})
	if err != nil {
		q.bad = true
		_ = q.d.c.corrupt(err)
	}
}

// Close implements rdma.CQ.
func (q *compQueue) Close() error {
	q.d.chanMu.Lock()
	defer q.d.chanMu.Unlock()
	select {
	case <-q.closed:
		return nil
	default:
	}
	q.mu.Lock()
	n := len(q.qps)
	q.mu.Unlock()
	if n != 0 {
		return errCQBusy
	}
	if err := q.d.c.destroy(rpc.OpDestroyCQ, "destroy CQ", q.handle); err != nil {
		return err
	}
	q.destroyed()
	remove(q.d, q.d.cqs, q)
	q.d.releaseChannel(q.ch)
	return nil
}

// destroyed ends q on this side: the daemon writes to it no more.
func (q *compQueue) destroyed() {
	close(q.closed)
	q.ch.drop(q)
	q.ch.pipe.Kick()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mem.Release()
	if q.bits != nil {
		q.bits.Release()
	}
	q.mem, q.bits, q.come, q.many = nil, nil, nil, nil
}
