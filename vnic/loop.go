package vnic

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// loopChunk is how many octets are copied at most while the peer's receive side is locked.
const loopChunk = 128 << 10

// A loopEnd is one end of a connection between two QPs of one device. The requester's owner does
// all of a request, the responder's checks and completions too, under the lock of the responder's
// receive side; what the responder must do itself it is told through its mailbox. RFC 5040 asks
// for exactly the same on both sides as a wire would give (docs/qp-states.md).
//
// Both ends may be run at once: a requester locks the other's receive side only, and nothing under
// it but MRs and CQs. Memory that can block is not touched here: at the first request that needs some, both
// ends give the connection over to wires, see loop_stage.go.
type loopEnd struct {
	qp    *QP
	peer  *loopEnd
	pair  *loopPair
	phase atomic.Uint32 // loopNew, loopOpen, loopClosed

	mail   loopMail    // guarded by pair.mu
	post   atomic.Bool // there is mail; set with pair.mu held
	quiet  bool        // guarded by pair.mu: copies nothing until the connection has moved
	stream llp.Stream  // set before pair.asked
	sent   bool        // our Terminate is in the peer's mailbox; owner only
	from   mem.Hold    // where the last Send took its octets; within send
	into   mem.Hold    // and where it put them

	// Of small messages that were posted together nobody is told one by one: a line of the cache that both sides
	// write takes as long to cross as the rest of a message. Within send.
	late       int    // messages that are done and of which nobody has been told; see recvSide.late
	sends      uint64 // of them, not counted yet
	sendOctets uint64
}

// lateMost is how many messages can wait for the one behind them, and lateLen how long they can be.
const (
	lateMost = 16
	lateLen  = 1024
)

const (
	loopNew uint32 = iota
	loopOpen
	loopClosed
)

// A loopMail is what one end tells the other.
type loopMail struct {
	fin, reset bool
	term       *iwarp.TermCode   // a Terminate
	fault      *iwarp.LocalError // what the requester found wrong at the responder
}

// newLoop makes the two ends of a connection of a and b.
func newLoop(a, b *QP) (*loopEnd, *loopEnd) {
	p := &loopPair{}
	x, y := &p.ends[0], &p.ends[1]
	x.qp, x.pair, x.peer = a, p, y
	y.qp, y.pair, y.peer = b, p, x
	return x, y
}

// open lets the peer deliver; the QP has just become RTS.
func (l *loopEnd) open() {
	l.pair.mu.Lock()
	moved := l.pair.moved
	l.phase.Store(loopOpen)
	l.pair.mu.Unlock()
	if !moved {
		r := &l.qp.rx
		r.mu.Lock()
		r.from = l.peer
		r.mu.Unlock()
	}
	l.peer.qp.wake()
}

// tell puts something into the peer's mailbox; false: the connection has moved, tell its stream.
func (l *loopEnd) tell(f func(*loopMail)) bool {
	p := l.peer
	l.pair.mu.Lock()
	if l.pair.moved {
		l.pair.mu.Unlock()
		return false
	}
	f(&p.mail)
	p.post.Store(true)
	if m := &p.mail; m.fin || m.reset || m.term != nil { // one of us is not RTS any more
		l.pair.over = true
		l.pair.settleLocked()
	}
	l.pair.mu.Unlock()
	p.qp.wake()
	return true
}

func (l *loopEnd) step() (more bool) {
	qp := l.qp
	if l.post.Load() {
		l.readMail()
		if qp.link != l || qp.State() != rdma.QPRTS {
			return false
		}
	}
	if qp.State() != rdma.QPRTS {
		return false
	}
	if l.pair.asked.Load() {
		return l.handOver()
	}
	if qp.rx.waiting.Load() || qp.held {
		l.feed()
	}
	return l.send()
}

func (l *loopEnd) readMail() {
	l.pair.mu.Lock()
	m := l.mail
	l.mail = loopMail{}
	l.post.Store(false)
	l.pair.mu.Unlock()
	qp := l.qp
	if m.fault != nil {
		from := errRefused
		if m.fault.Cause == iwarp.TermMessageTooLong {
			from = errLink
		}
		qp.localError(m.fault, from)
		l.terminate(m.fault.Cause, m.fault.Err)
	}
	if m.term != nil {
		var culprit *sqe
		if s := &qp.sq; s.next != s.tail {
			if e := s.at(s.next); isRequest(e.wr.Op) {
				culprit = e
			}
		}
		qp.peerTerminated(*m.term, culprit)
	}
	switch {
	case m.reset:
		qp.lost(errPeerClosed)
	case m.fin:
		qp.eof = true
	}
}

// feed looks for the receive that the peer's Send waits for. That may have found one by itself meanwhile: one that nobody waits for
// would be kept from the other QPs of an SRQ.
func (l *loopEnd) feed() {
	qp := l.qp
	r := &qp.rx
	r.mu.Lock()
	ok := !r.waiting.Load() || r.takeLocked()
	r.mu.Unlock()
	if ok {
		qp.gotReceive()
		l.peer.qp.wake()
	} else {
		qp.awaitReceive()
	}
}

// send carries requests out.
func (l *loopEnd) send() (more bool) {
	more = l.sendSome()
	l.settle()
	l.dropHolds()
	return more
}

// waits reports whether e, which is done, can wait for the message behind it before anybody is told.
func (l *loopEnd) waits(e *sqe) bool {
	q := l.qp.queues.Local
	return e.total <= lateLen && l.late < lateMost && (e.wr.Op == rdma.OpSend || e.wr.Op == rdma.OpWrite) && q != nil && q.More()
}

// settle tells of what is done.
func (l *loopEnd) settle() {
	if l.late == 0 {
		return
	}
	l.retire()
	r := &l.peer.qp.rx
	r.mu.Lock()
	if r.lates > 0 {
		r.tellLocked(nil, false)
	}
	r.mu.Unlock()
}

// retire tells the QP's own side.
func (l *loopEnd) retire() {
	l.late = 0
	if l.sends > 0 {
		l.qp.stats.sends.Add(l.sends)
		l.qp.stats.sentOctets.Add(l.sendOctets)
		l.sends, l.sendOctets = 0, 0
	}
	l.qp.retire()
}

func (l *loopEnd) dropHolds() {
	l.from.Drop()
	l.into.Drop()
}

func (l *loopEnd) sendSome() (more bool) {
	qp := l.qp
	if l.peer.phase.Load() != loopOpen {
		return false
	}
	left := uint64(stepOctets)
	for range stepMessages {
		e := qp.nextSend()
		if e == nil {
			return false
		}
		if op := e.wr.Op; op == rdma.OpLocalInv || op == rdma.OpBindMW || op == rdma.OpRegMR {
			l.dropHolds() // one may be of what ends
			l.settle()
		} else if e.state == sqeFailed || e.total > lateLen {
			l.settle()
		}
		if e.off == 0 && !qp.ready(e) {
			if e.state == sqeDone && qp.State() == rdma.QPRTS {
				continue // it needed no link
			}
			return false
		}
		for {
			before := e.off
			ok := l.exec(e)
			if !ok {
				return false
			}
			left -= min(left, uint64(e.off-before))
			if e.state == sqeDone {
				break
			}
			if left == 0 {
				return true
			}
		}
		switch {
		case isSend(e.wr.Op): // deliver has done it
		case l.waits(e):
			l.late++
		default:
			l.settle()
			qp.retire()
		}
		if left == 0 {
			return true
		}
	}
	return true
}

// exec moves one chunk of e; false: it cannot go on now, or never.
func (l *loopEnd) exec(e *sqe) bool {
	qp, peer := l.qp, l.peer.qp
	r := &peer.rx
	r.mu.Lock()
	if r.from != l || l.pair.asked.Load() {
		r.mu.Unlock()
		return false // it is closing, and the mail says so; or the connection is being handed over
	}
	var fault error // at the responder
	var own error   // with our own memory
	n := min(e.total-e.off, loopChunk)
	wait := false // for a receive
	part := false // the Write of a Write with immediate data
	switch e.wr.Op {
	case rdma.OpWrite:
		own, fault = l.write(e, n)
	case rdma.OpRead:
		own, fault = l.read(e, n)
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		own, fault = l.atomic(e)
	case rdma.OpWriteImm:
		if part = n > 0; part {
			own, fault = l.write(e, n)
			break
		}
		if _, ok := r.beginLocked(); !ok {
			wait = true
		} else {
			fault = l.deliver(e, 0)
		}
	default:
		var size uint32
		var ok bool
		if r.have && r.used {
			size, ok = r.size, true
		} else {
			size, ok = r.beginLocked()
		}
		switch {
		case !ok:
			wait = true
		case e.total > size:
			// The Send itself is complete on the wire by the time the responder finds out.
			fault = &iwarp.LocalError{Cause: iwarp.TermMessageTooLong, Err: errTooLong}
			n = e.total - e.off
		default:
			own, fault = l.sendChunk(e, n)
		}
	}
	if own == mem.ErrBlocking {
		r.mu.Unlock()
		l.hand()
		return false
	}
	if fault != nil {
		r.from = nil // nothing more is placed
	}
	if own == nil && fault == nil && !wait && e.off+n == e.total && !isSend(e.wr.Op) && part == (e.wr.Op == rdma.OpWriteImm) {
		peer.stats.inbound(e.wr.Op, e.total)
	}
	done := own == nil && !wait && !part && e.off+n == e.total && (fault == nil || isSend(e.wr.Op))
	r.mu.Unlock()

	switch {
	case wait:
		l.settle()
		peer.wake() // it starts the timer
		return false
	case own != nil:
		e.status = rdma.WCLocProt
		qp.log("send request failed", "op", e.wr.Op, "err", own)
		if isRequest(e.wr.Op) {
			// As on the wire: the response cannot be placed.
			qp.stats.errors.Add(1)
			qp.localError(&iwarp.LocalError{Cause: iwarp.TermDDPCatastrophic, Err: own}, errHere)
			return false
		}
		qp.localError(&iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic, Err: own}, errHere)
		return false
	}
	e.off += n
	if fault != nil && !done {
		e.off -= n
	}
	if done && e.state != sqeDone {
		qp.posted(e)
		qp.sendDone(e)
	}
	if fault != nil {
		l.settle()
		qp.retire()
		le := fault.(*iwarp.LocalError)
		l.tell(func(m *loopMail) { m.fault = le })
		return false
	}
	return true
}

func isSend(op rdma.Opcode) bool {
	return op == rdma.OpSend || op == rdma.OpSendInv || op == rdma.OpSendImm
}

// write carries the chunk of n octets of a Write out.
func (l *loopEnd) write(e *sqe, n uint32) (own, fault error) {
	peer := l.peer.qp
	if e.total == 0 {
		return nil, nil // "zero-length tagged segments skip all checks"
	}
	var dst *mem.MR
	if dst, fault = peer.mem.Find(mem.PeerWrite, e.wr.RKey, e.wr.RemoteAddr, e.total); fault != nil {
		return nil, fault
	}
	if dst.Blocking() || e.list.Blocking() {
		return mem.ErrBlocking, nil
	}
	to := e.wr.RemoteAddr + uint64(e.off)
	last := e.off+n == e.total
	if e.wr.Flags&rdma.Inline != 0 {
		if err := dst.Write(e.wr.Inline[e.off:e.off+n], to, last); err != nil {
			return nil, mem.PeerWrite.Gone(dst, err)
		}
		return nil, nil
	}
	for off := e.off; n > 0; {
		src, from, k := e.list.Piece(off)
		how := mem.CopyMode{Long: e.total >= mem.LongMessage, More: k > n}
		k = min(k, n)
		how.Last = last && k == n
		dstErr, srcErr := mem.Copy(dst, to, src, from, k, how)
		if srcErr != nil {
			return srcErr, nil
		}
		if dstErr != nil {
			return nil, mem.PeerWrite.Gone(dst, dstErr)
		}
		to, off, n = to+uint64(k), off+k, n-k
	}
	return nil, nil
}

// read carries the chunk of n octets of a Read out.
func (l *loopEnd) read(e *sqe, n uint32) (own, fault error) {
	peer := l.peer.qp
	if e.total == 0 {
		return nil, nil
	}
	var src *mem.MR
	if src, fault = peer.mem.Find(mem.PeerRead, e.wr.RKey, e.wr.RemoteAddr, e.total); fault != nil {
		return nil, fault
	}
	if src.Blocking() || e.list.Blocking() {
		return mem.ErrBlocking, nil
	}
	from := e.wr.RemoteAddr + uint64(e.off)
	for off := e.off; n > 0; {
		dst, to, k := e.list.Piece(off)
		k = min(k, n)
		how := mem.CopyMode{Last: true, Long: e.total >= mem.LongMessage, More: off+k < e.total}
		dstErr, srcErr := mem.Copy(dst, to, src, from, k, how)
		if dstErr != nil {
			return dstErr, nil
		}
		if srcErr != nil {
			return nil, mem.PeerRead.Gone(src, srcErr)
		}
		from, off, n = from+uint64(k), off+k, n-k
	}
	return nil, nil
}

// sendChunk places the chunk of n octets of a Send, and delivers it with the last. The lock of the
// peer's receive side is held.
func (l *loopEnd) sendChunk(e *sqe, n uint32) (own, fault error) {
	r := &l.peer.qp.rx
	if n > 0 && r.bad {
		return nil, r.placeFailed(errBadReceive)
	}
	if n > 0 && (r.list.Blocking() || e.list.Blocking()) {
		return mem.ErrBlocking, nil
	}
	if e.wr.Flags&rdma.Inline != 0 {
		if fault = r.placeLocked(&l.into, e.off, e.wr.Inline[e.off:e.off+n]); fault != nil {
			return nil, fault
		}
	} else {
		for off, left := e.off, n; left > 0; {
			src, from, k := e.list.Piece(off)
			dst, to, kd := r.list.Piece(off)
			k = min(k, kd, left)
			if !l.into.Take(dst) {
				return nil, r.placeFailed(mem.ErrGone)
			}
			if !l.from.Take(src) {
				return mem.ErrGone, nil
			}
			dstErr, srcErr := mem.CopyPinned(dst, to, src, from, k, mem.CopyMode{Long: e.total >= mem.LongMessage, More: off+k < e.total})
			if srcErr != nil {
				return srcErr, nil
			}
			if dstErr != nil {
				return nil, r.placeFailed(dstErr)
			}
			off, left = off+k, left-k
		}
	}
	if e.off+n < e.total {
		return nil, nil
	}
	return nil, l.deliver(e, e.total)
}

// deliver ends a Send of n octets, or immediate data. The lock of the peer's receive side is held.
func (l *loopEnd) deliver(e *sqe, n uint32) error {
	// Programs rely on it that the completion of a Send comes before that of the answer to it, and the
	// answer can be under way as soon as the peer knows.
	late := l.waits(e)
	if e.wr.Op == rdma.OpSend {
		l.qp.underWay(e)
		l.sends++
		l.sendOctets += uint64(n)
	} else {
		l.qp.posted(e)
	}
	l.qp.sendDone(e)
	if late {
		l.late++
	} else {
		l.retire()
	}
	if e.wr.Op == rdma.OpSendInv {
		l.dropHolds() // one may be of what is invalidated
	}
	return l.peer.qp.rx.endLocked(iwarp.Received{
		Length: n, Solicited: e.wr.Flags&rdma.Solicited != 0,
		Invalidate: e.wr.Op == rdma.OpSendInv, STag: iwarp.STag(e.wr.InvKey),
		Immediate: isImmediate(e.wr.Op), Data: e.immediate(),
	}, late)
}

func (l *loopEnd) idle() bool { return true }

func (l *loopEnd) expire() {}

func (l *loopEnd) terminate(code iwarp.TermCode, err error) {
	if !l.sent {
		l.sent = true
		if !l.tell(func(m *loopMail) { m.term = &code }) {
			l.takeWire().terminate(code, err)
		}
	}
}

func (l *loopEnd) terminated() bool { return l.sent }

func (l *loopEnd) closeWrite() {
	if !l.tell(func(m *loopMail) { m.fin = true }) {
		l.takeWire().closeWrite()
	}
}

func (l *loopEnd) close() {
	if l.phase.Swap(loopClosed) != loopClosed && !l.tell(func(m *loopMail) { m.fin = true }) {
		l.stream.Close()
	}
}

func (l *loopEnd) abort() {
	if l.phase.Swap(loopClosed) != loopClosed && !l.tell(func(m *loopMail) { m.reset = true }) {
		l.stream.Abort()
	}
}

// linkInfo describes a link to others than the owner; it does not change.
type linkInfo struct {
	loop          bool
	since         time.Time
	extensions    bool // atomics and immediate data: always on loopback
	local, remote netip.AddrPort
	param         iwarp.Params
	stream        llp.Stream // nil on loopback
	emss          int        // at the start
}
