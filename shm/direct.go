package shm

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// This file has the direct path: a Send to a program of the same user is put into memory that the
// two have in common, and the receiver copies it when it polls; what goes to the peer's memory by a
// key goes there at once (remote.go). The daemon says whether that may be, and has all else:
// docs/direct.md.

const (
	// longestDirect is what goes so: longer messages are the daemon's.
	longestDirect = 8192
	// fewDirect is how many QPs of a CQ that have a direct path each poll looks at. Those beyond that
	// have a place in its board.
	fewDirect = 16
	// mostPosts is how many posts there are between two that ask for a direct path, at most, and
	// againPosts before who had one asks for another.
	mostPosts  = 1 << 16
	againPosts = 16
)

// What goes by the ring has what is behind it go there, too, and a stream that never pauses would
// never come back. So a post waits for a receive, or for the ring to be drained: some microseconds,
// and if that was in vain the next ones do not.
const (
	waitYields = 8
	waitLooks  = 1024 // between two of them
	mostWaits  = 1024
)

// A directPath is a QP's part in a pair. It is set with the locks of both CQs and of the send queue
// held, and read with any of them.
type directPath struct {
	qp  *queuePair
	mem *osmem.Region

	// The send queue's lock guards these.
	out *ring.PairOut
	// Posts until one waits again for what it needs, and from one that waited in vain to the next.
	waitIn, waitEvery uint32
	ringed            uint32 // the last request that went by the ring and completes, and one
	rings             bool   // the bell is to be rung for what was sent
	from              regionFinder
	remote            *ring.PairRemote
	bits              *osmem.Region      // the bitmap of the peer's CQ, or nil
	segs              [abi.MaxSGE][]byte // of the request that is posted
	head              ring.PairHead      // likewise

	// Requests that completed here, in a ring of as many as the send queue has slots. Who posts has
	// sentProd, who polls sentCons.
	sent               []directSent
	sentProd, sentCons atomic.Uint32

	// The lock of the send CQ guards these.
	polled  uint32 // requests of the ring that have been polled
	flushed bool   // one has been flushed, on a dead session: so is what was done behind it

	// The lock of the receive CQ guards these; what in has for receives has that of their queue.
	in    *ring.PairIn
	next  uint32 // receive to complete
	ready uint32 // and up to where they have come, at the last look
	bad   bool   // nothing comes any more: what is outstanding is flushed

	// sendPlace and recvPlace are its places in the boards of its CQs, one if they are one; below 0:
	// it has none. done is its bit in that of the send CQ.
	sendPlace, recvPlace int
	done                 ring.BoardBit

	wakeEnd
}

// A directSent is a request that is done, until it is polled.
type directSent struct {
	id     uint64
	after  uint32 // the last request before it that goes by the ring and completes, and one
	octets uint32 // of what came in
	op     rdma.WCOpcode
}

// saidWho shows the daemon the namespaces of this process, once, and reports whether it has seen
// them. Nobody else can have a descriptor of one.
func (c *Client) saidWho() bool {
	if !c.offersDirect {
		return false
	}
	c.sayWho.Do(func() {
		c.known = c.showNamespace("/proc/thread-self/ns/user", rpc.NamespaceUser) == nil &&
			c.showNamespace("/proc/thread-self/ns/pid", rpc.NamespaceProcess) == nil
	})
	return c.known
}

func (c *Client) showNamespace(file string, kind uint32) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = c.rpc(rpc.OpIdentify, "show a namespace", &rpc.IdentifyRequest{Kind: kind}, &rpc.Empty{},
		int(f.Fd()))
	return err
}

// beginDirect has q, which is connected, get a direct path if it can have one.
func (q *queuePair) beginDirect() {
	q.directMu.Lock()
	defer q.directMu.Unlock()
	q.directEvery.Store(1)
	q.tryDirect()
}

// endDirect has q, which is connected no more, take part no more, nor ask.
func (q *queuePair) endDirect() {
	q.directMu.Lock()
	defer q.directMu.Unlock()
	q.leaveDirect()
	q.directIn.Store(0) // behind it: who finds the direction closed has it ask
}

// tryDirectLater has every so many posts ask for a direct path: directIn, which is not 0, counts
// them.
func (q *queuePair) tryDirectLater() {
	if n := q.directIn.Load(); n != 0 && q.directIn.CompareAndSwap(n, n-1) && n == 1 {
		q.directMu.Lock()
		defer q.directMu.Unlock()
		q.tryDirect()
	}
}

// mayPair reports whether q can have a direct path at all.
func (q *queuePair) mayPair() bool {
	return q.cfg.Type == rdma.RC && q.srq == nil && q.d.c.offersDirect
}

// tryDirect is a call to the daemon: directMu is held, and no other lock.
func (q *queuePair) tryDirect() {
	if !q.mayPair() || !q.d.c.saidWho() {
		return
	}
	switch err := q.askDirect(); {
	case errors.Is(err, syscall.EAGAIN):
		q.directEvery.Store(min(2*q.directEvery.Load(), mostPosts))
		q.directIn.Store(q.directEvery.Load())
	case err == nil:
		q.directEvery.Store(againPosts)
	default:
		q.directEvery.Store(mostPosts)
	}
}

// askAgain is for when the direction that q had has been found closed: its peer may have left the
// pair and come back, or nobody looks at what they send any more. Any lock may be held.
func (q *queuePair) askAgain() { q.directIn.CompareAndSwap(0, q.directEvery.Load()) }

// askDirect asks for the pair; EAGAIN: there is none now.
func (q *queuePair) askDirect() error {
	c := q.d.c
	if has, movesOn := q.movesOn(); has {
		return nil
	} else if !movesOn || !q.sendCQ.makePlace(q) || !q.recvCQ.makePlace(q) {
		return syscall.EAGAIN
	}
	var rep rpc.DirectReply
	fds, err := c.rpc(rpc.OpDirect, "ask for a direct path", &rpc.HandleRequest{Handle: q.handle},
		&rep, -1)
	if err != nil {
		return err
	}
	if rep.Covered == 0 { // a CQ could run over: of what goes directly the daemon would not know
		osmem.CloseFD(fds[0])
		return nil
	}
	mem, err := osmem.MapSealed(fds[0], abi.PairHeaderLen)
	if err != nil {
		return c.die(goneBecause(err))
	}
	d := &directPath{qp: q, mem: mem, from: regionFinder{table: &q.pd.regions},
		sent: make([]directSent, len(q.sq.wrs)), wakeEnd: wakeEnd{waker: -1, sleeper: -1}}
	d.out, d.in, err = ring.OpenPair(mem.Mem, int(rep.Second&1), q.m.Layout.RQSize)
	if err != nil { // the peer can write there, too: all goes by the daemon
		mem.Release()
		return err
	}
	d.remote = ring.NewPairRemote(d.out, d)
	// Others may have got theirs meanwhile. It has its own now, place or not.
	_, _ = q.sendCQ.makePlace(q), q.recvCQ.makePlace(q)
	if err = q.attach(d); err != nil {
		mem.Release()
		if abi.IsViolation(err) || errors.Is(err, rdma.ErrDeviceGone) {
			return c.corrupt(err)
		}
	}
	return err
}

// withCQs calls f with the locks of q's CQs held, and the send queue's behind them.
func (q *queuePair) withCQs(f func() error) error {
	a, b := q.sendCQ, q.recvCQ
	if a.handle > b.handle {
		a, b = b, a
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if b != a {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	return f()
}

// attach has q take part in d's pair; EAGAIN: not all is polled that came by the pair of the
// connection before.
func (q *queuePair) attach(d *directPath) error {
	if err := add(q.d, q.d.direct, q, struct{}{}); err != nil {
		return err
	}
	return q.withCQs(func() error { return q.attachLocked(d) })
}

// attachLocked is for withCQs.
func (q *queuePair) attachLocked(d *directPath) error {
	if q.sendCQ.qps[q.num] != q || q.recvCQ.qps[q.num] != q || q.mem == nil {
		remove(q.d, q.d.direct, q)
		return errQPClosed
	}
	was := q.direct
	if was != nil && !was.isOver() {
		return syscall.EAGAIN
	}
	if was != nil {
		q.dropLocked(was)
		q.direct = nil
	}
	d.sendPlace = q.sendCQ.give(d)
	if d.recvPlace = d.sendPlace; q.recvCQ != q.sendCQ {
		d.recvPlace = q.recvCQ.give(d)
	}
	// Before anything can come.
	d.in.Want(q.recvCQ.ring.Wants())
	if d.recvPlace >= 0 {
		d.in.WantBit(d.recvPlace)
	}
	if d.sendPlace >= 0 {
		d.done = q.sendCQ.many.Done(d.sendPlace)
	}
	var err error
	if d.next, err = q.rq.join(d.in, &q.pd.regions); err != nil {
		q.takePlaces(d)
		return err // the session is over
	}
	s := &q.sq
	d.ringed, d.polled = q.m.SQ.Posted(), s.done
	for d.ringed != s.done && !s.at(d.ringed-1).signaled {
		d.ringed--
	}
	d.out.Wake, d.out.Bits = d.wake, d.peerBits
	q.direct = d
	if d.recvPlace < 0 { // else the daemon wakes who waits
		q.recvCQ.ch.join(d)
	}
	for _, cq := range slices.Compact([]*compQueue{q.sendCQ, q.recvCQ}) {
		cq.tellWanted()
	}
	return nil
}

// leaveDirect has q take part no more.
func (q *queuePair) leaveDirect() {
	_ = q.withCQs(func() error {
		q.rq.mu.Lock()
		q.rq.in = nil
		q.rq.mu.Unlock()
		if q.direct != nil {
			q.dropLocked(q.direct)
			q.direct = nil
		}
		return nil
	})
	remove(q.d, q.d.direct, q)
}

// dropLocked lets d go, which nobody finds any more when the locks of withCQs are given back: the
// receive queue has left it.
func (q *queuePair) dropLocked(d *directPath) {
	q.takePlaces(d)
	q.recvCQ.ch.leave(d)
	d.release()
}

// takePlaces has the CQs not look at d any more.
func (q *queuePair) takePlaces(d *directPath) {
	q.sendCQ.takeBack(d, d.sendPlace)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.takeBack(d, d.recvPlace)
	}
}

// isOver reports whether nothing that went by d is left to be polled, nor anything comes.
func (d *directPath) isOver() bool {
	return !d.out.IsOpen() && d.outstanding() == 0 && !d.in.Stamped(d.next)
}

// release unmaps what d has.
func (d *directPath) release() {
	d.remote.Close()
	d.closeWaker()
	if d.bits != nil {
		d.bits.Release()
	}
	d.mem.Release()
}

// movesOn reports whether q has a pair that is open, or else may have one: it has none, or all that
// came by the one before has been polled.
func (q *queuePair) movesOn() (has, ok bool) {
	q.recvCQ.mu.Lock()
	was := q.direct
	has = was != nil && was.out.IsOpen()
	over := was != nil && was.isOver()
	q.recvCQ.mu.Unlock()
	return has, over || was == nil
}

// askBits asks the daemon for the bitmap of q's receive CQ, or its peer's, by op; nil: it cannot be
// had.
func (q *queuePair) askBits(op rpc.Op) (*osmem.Region, *ring.PairBits) {
	c := q.d.c
	fds, err := c.rpc(op, "ask for a bitmap", &rpc.HandleRequest{Handle: q.handle}, &rpc.Empty{}, -1)
	if err != nil {
		return nil, nil
	}
	mem, err := osmem.MapSealed(fds[0], ring.BitsMemSize)
	if err != nil {
		_ = c.die(goneBecause(err))
		return nil, nil
	}
	return mem, ring.OpenPairBits(mem.Mem)
}

// peerBits is the bitmap in which d's peer looks for its messages: the send queue's lock is held.
func (d *directPath) peerBits() (b *ring.PairBits) {
	d.bits, b = d.qp.askBits(rpc.OpDirectPeerBits)
	return b
}

// outstanding is how many requests are outstanding that did not go by the ring: the send queue's
// lock is held.
func (d *directPath) outstanding() uint32 { return d.sentProd.Load() - d.sentCons.Load() }

// post does w, of so many octets, if that can be done here. The send queue's lock is held.
func (d *directPath) post(w *abi.SendWQE, octets uint64, signaled bool) bool {
	if !d.out.IsOpen() {
		d.qp.askAgain()
		return false
	}
	if !d.qp.m.SQ.Committed() {
		return false
	}
	switch rdma.Opcode(w.Op) {
	case rdma.OpSend, rdma.OpSendImm:
		return d.send(w, octets, signaled)
	case rdma.OpWriteImm:
		return d.writeImm(w, octets, signaled)
	case rdma.OpWrite, rdma.OpRead, rdma.OpCompareSwap, rdma.OpFetchAdd:
		return d.reach(w, octets, signaled)
	default:
		return false
	}
}

func (d *directPath) send(w *abi.SendWQE, octets uint64, signaled bool) bool {
	if octets > longestDirect || !d.may(true) && !d.await(true) {
		return false
	}
	segs := d.gather(w, 0)
	if segs == nil {
		return false
	}
	h := d.headOf(w, octets)
	to := d.out.Begin(h)
	if to == nil {
		return false
	}
	for _, b := range segs {
		to = to[copy(to, b):]
	}
	d.end(w, h, signaled)
	return true
}

// headOf is that of the message that w is, or that tells of it: docs/decisions.md#X15.
func (d *directPath) headOf(w *abi.SendWQE, octets uint64) *ring.PairHead {
	h := &d.head
	*h = ring.PairHead{Length: uint32(octets), Flags: uint32(w.Flags & abi.SQSolicited)}
	op := rdma.Opcode(w.Op)
	if op == rdma.OpSend {
		return h
	}
	h.Flags |= abi.SlotImm
	h.Imm = w.Imm
	if op == rdma.OpWriteImm {
		h.Flags |= abi.SlotWrite
	}
	// In iWARP it is a message of its own, of eight octets, and completes as one: RFC 7306, section 6.
	if !d.qp.d.attr.RoCE {
		h.Flags |= abi.SlotWrite
		h.Length, h.ImmLow = 0, w.ImmLow()
	}
	return h
}

// end is for when all octets of w are where they go, of whose message the head is h.
func (d *directPath) end(w *abi.SendWQE, h *ring.PairHead, signaled bool) {
	if signaled { // before the stamp: an answer comes after it
		d.complete(w, 0)
	}
	d.out.End(h)
	// Behind the stamp, which a fence follows, as all that is stored atomically.
	own := signaled && d.qp.sendCQ.wanted.Load() != 0
	if d.out.Wanted(h.Flags&abi.SQSolicited != 0, own) {
		d.rings = true
	}
}

// complete records w as complete, with so many octets that came in.
func (d *directPath) complete(w *abi.SendWQE, octets uint32) {
	i := d.sentProd.Load()
	d.sent[i&uint32(len(d.sent)-1)] = directSent{id: w.WRID, after: d.ringed, octets: octets,
		op: sendOps[w.Op].wc}
	d.sentProd.Store(i + 1)
	if d.sendPlace >= 0 {
		d.done.Set()
	}
}

// gather finds the octets of w; nil leaves it to the daemon.
func (d *directPath) gather(w *abi.SendWQE, access rdma.Access) [][]byte {
	if w.Flags&abi.SQInline != 0 {
		d.segs[0] = w.Inline()
		return d.segs[:1]
	}
	for i := range w.SGEs() {
		var ok bool
		if d.segs[i], ok = d.from.octets(&w.SGE[i], access); !ok {
			return nil
		}
	}
	return d.segs[:w.NumSGE]
}

// may reports whether the direction is the sender's and, if that is needed, a receive seems to be
// posted.
func (d *directPath) may(room bool) bool {
	sq := &d.qp.m.SQ
	return sq.Done() == sq.Posted() && (!room || d.out.HasRoom())
}

// await waits a bounded time for it to be so, and reports whether it is.
func (d *directPath) await(room bool) bool {
	if d.waitIn != 0 {
		d.waitIn--
		return false
	}
	for range waitYields {
		for range waitLooks {
			if d.may(room) {
				d.waitEvery = 0
				return true
			}
		}
		osmem.Yield()
	}
	d.waitEvery = min(2*d.waitEvery+1, mostWaits)
	d.waitIn = d.waitEvery
	return false
}

// tellWanted tells peers what q is armed for: q.mu is held.
func (q *compQueue) tellWanted() {
	want := q.ring.Wants()
	q.wanted.Store(want)
	asleep := want
	if want != 0 {
		q.sleep += abi.WantSleep
		asleep |= abi.WantAsleep | q.sleep
	}
	for _, d := range q.directs {
		switch {
		case d.qp.recvCQ != q:
		case d.sleeps:
			d.in.Want(asleep)
		default:
			d.in.Want(want)
		}
	}
	if q.come != nil {
		q.come.Want(want)
	}
}

// takeBoth is take where QPs complete that have a direct path: q.mu is held.
func (q *compQueue) takeBoth(wc []rdma.WC) (n int) {
	q.turn()
	if q.bad || q.isEmpty() {
		return 0
	}
	q.look(uint32(len(wc))) // first: docs/direct.md#receiving
	come, err := q.ring.Come()
	if err == nil {
		n = q.sends(wc)
		n += q.receives(wc[n:])
	}
	for err == nil && n < len(wc) && q.ring.Peek(&q.cqe, come) {
		if qp := q.find(q.cqe.QPN); qp != nil && qp.direct != nil {
			if n += q.before(qp.direct, wc[n:]); n == len(wc) {
				break
			}
		}
		q.ring.Next()
		var ok bool
		if ok, err = q.complete(&wc[n]); ok {
			n++
		}
	}
	if err != nil {
		q.bad = true
		_ = q.d.c.corrupt(err)
	}
	if n != 0 && q.wanted.Load() != 0 {
		q.tellWanted() // it may be armed no more
	}
	return n
}

// isEmpty reports whether nothing seems to have come or completed, as most polls find: q.mu is
// held.
func (q *compQueue) isEmpty() bool {
	if !q.ring.IsEmpty() {
		return false
	}
	for _, d := range q.directs {
		if d.qp.sendCQ == q && d.sentProd.Load() != d.sentCons.Load() ||
			d.qp.recvCQ == q && (d.bad || d.in.Stamped(d.next)) {
			return false
		}
	}
	return q.many == nil || q.many.IsEmpty()
}

// look says up to where receives have come, of the next ones up to most.
func (d *directPath) look(most uint32) {
	d.ready = d.next
	for most = min(most, d.qp.m.Layout.RQSize); d.ready-d.next < most && d.in.Stamped(d.ready); {
		d.ready++
	}
}

// sends takes requests that have completed here.
func (d *directPath) sends(wc []rdma.WC) (n int) {
	cons, prod := d.sentCons.Load(), d.sentProd.Load()
	if cons == prod {
		return 0
	}
	for n < len(wc) && cons != prod {
		s := &d.sent[cons&uint32(len(d.sent)-1)]
		if int32(d.polled-s.after) < 0 {
			break
		}
		wc[n] = rdma.WC{ID: s.id, Op: s.op, QPN: d.qp.num, ByteLen: s.octets}
		if d.flushed {
			wc[n].Status = rdma.WCFlush
		}
		n++
		cons++
	}
	d.sentCons.Store(cons)
	return n
}

// receives takes receives that have come by the last look.
func (d *directPath) receives(wc []rdma.WC) (n int) {
	for !d.bad && n < len(wc) && d.next != d.ready {
		if d.receive(&wc[n]) {
			n++
		}
	}
	if d.bad {
		n += d.flush(wc[n:])
	}
	return n
}

// receive takes the next one, which is stamped; false if that makes no sense. Where its memory is
// there no more the connection ends, as with the daemon.
func (d *directPath) receive(wc *rdma.WC) bool {
	*wc = rdma.WC{Op: rdma.WCRecv, QPN: d.qp.num}
	m, ok := d.in.Message(d.next)
	if ok {
		ok = d.qp.rq.take(d.next, &m, wc)
	}
	if ok {
		d.next++
	}
	if !ok || wc.Status != rdma.WCSuccess {
		d.spoil()
	}
	return ok
}

// flush completes the receives that are outstanding of a pair that makes no sense.
func (d *directPath) flush(wc []rdma.WC) (n int) {
	for n < len(wc) {
		id, ok := d.qp.rq.give(d.next)
		if !ok {
			break
		}
		wc[n] = rdma.WC{ID: id, Status: rdma.WCFlush, Op: rdma.WCRecv, QPN: d.qp.num}
		n++
		d.next++
	}
	return n
}

// spoil ends the connection: the peer has written what makes no sense, and what it might have said
// of receives is worth nothing. All that are outstanding are flushed here. The daemon is told by a
// bell: a call would have others wait for the CQ's lock.
func (d *directPath) spoil() {
	if d.bad {
		return
	}
	d.bad = true
	if d.recvPlace >= 0 { // what is posted later is flushed, too
		d.qp.recvCQ.many.Mark(d.recvPlace)
	}
	d.in.Spoil()
	_ = d.qp.d.ring(d.qp.bell) // fails when the session is over
}

// before takes completions that come before q.cqe, which is of d's QP, and that the daemon has not
// made.
func (q *compQueue) before(d *directPath, wc []rdma.WC) (n int) {
	if !q.cqe.Receive() {
		if d.qp.sendCQ == q {
			n = d.sends(wc)
		}
		return n
	}
	if d.qp.recvCQ != q {
		return 0
	}
	for !d.bad && n < len(wc) && !d.qp.rq.isNext(d.next, q.cqe.Cookie) {
		if !d.in.Stamped(d.next) {
			d.spoil()
		} else if d.receive(&wc[n]) {
			n++
		}
	}
	if d.bad {
		n += d.flush(wc[n:])
	}
	return n
}

// isOver reports whether q.cqe, of qp, may be of a receive that has completed here already: what a
// sender stamped late the daemon has flushed, and of what it did not tell the daemon, that uses it
// for another message. The sender may have a pair before qp has it, or that makes no sense to qp.
func (q *compQueue) isOver(qp *queuePair) bool {
	d := qp.direct
	if d != nil && rdma.WCStatus(q.cqe.Status) != rdma.WCFlush {
		d.spoil()
	}
	return d != nil || qp.mayPair()
}
