// Package loop is the Link of two QPs of one device: one copy from the memory of the one to that of
// the other, and all else as it would be over a wire.
package loop

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/internal/prefetch"
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// chunk is how many octets are copied at most while the peer's receive side is locked.
const chunk = 128 << 10

// An End is one end of a connection between two QPs of one device. The requester's owner does
// all of a request, the responder's checks and completions too, under the lock of the responder's
// receive side; what the responder must do itself it is told through its mailbox. RFC 5040 asks
// for exactly the same on both sides as a wire would give (docs/qp-states.md).
//
// Both ends may be run at once: a requester locks the other's receive side only, and nothing under
// it but MRs and CQs. Memory that can block is not touched here: at the first request that needs
// some, both ends give the connection over to a pipe: handover.go.
type End struct {
	link.Basic
	qp    link.QP
	work  *wqe.Requests
	peer  *End
	pair  *pair
	front []byte        // of qp
	phase atomic.Uint32 // phaseNew, phaseOpen, phaseClosed

	mail mail        // guarded by pair.mu
	post atomic.Bool // there is mail; set with pair.mu held
	rest bool        // guarded by pair.mu: copies nothing until the connection has moved
	pipe llp.Stream  // set before pair.asked
	over bool        // Close or Abort was called, or the QP has another link; owner only
	sent bool        // our Terminate is in the peer's mailbox; owner only
	left bool        // that we are leaving is; owner only
	ends bool        // the peer is leaving; owner only
	from mem.Hold    // where the last Send took its octets; within send
	into mem.Hold    // and where it put them

	// Of small messages that were posted together nobody is told one by one: a line of the cache
	// that both sides write takes as long to cross as the rest of a message. Within send.
	moved      int    // octets, in this step
	untold     int    // messages that are done and of which nobody has been told
	sends      uint64 // of them, not counted yet
	sendOctets uint64

	atomic *iwarp.Atomic // scratch: a local one would escape; nil until there was one
}

// untoldLen is how long messages can be that wait for the one behind them before anybody is told;
// how many can is wqe.DeferMost.
const untoldLen = 1024

const (
	phaseNew uint32 = iota
	phaseOpen
	phaseClosed
)

// A mail is what one end tells the other.
type mail struct {
	fin, reset bool
	leaving    bool              // it is ending the connection, and has a Send left
	term       *iwarp.TermCode   // a Terminate
	fault      *iwarp.LocalError // what the requester found wrong at the responder
}

// New makes the two ends of a connection of a and b.
func New(a, b link.QP) (*End, *End) {
	p := &pair{}
	x, y := &p.ends[0], &p.ends[1]
	x.qp, x.work, x.front, x.pair, x.peer = a, a.Work(), a.Front(), p, y
	y.qp, y.work, y.front, y.pair, y.peer = b, b.Work(), b.Front(), p, x
	return x, y
}

// Open implements link.Link: it lets the peer deliver.
func (l *End) Open() {
	l.pair.mu.Lock()
	moved := l.pair.moved
	l.phase.Store(phaseOpen)
	l.pair.mu.Unlock()
	if !moved {
		l.work.Recv.Open(l.peer)
	}
	l.peer.qp.Wake()
}

// Near implements link.Link.
func (l *End) Near() link.QP {
	if l.pair.asked.Load() {
		return nil
	}
	return l.peer.qp
}

// Blocking implements link.Link: only the end of a hand-over can.
func (l *End) Blocking() bool { return l.pair.asked.Load() }

// Yield implements link.Link: a step copies mostly, and each time others run another thread goes on
// with it. On a wire the others are those that take what was sent.
func (l *End) Yield() int { return 8 }

// Delivered implements link.Link: the peer may have another Send.
func (l *End) Delivered() { l.peer.qp.Wake() }

// Prefetch implements link.Link.
func (l *End) Prefetch() {
	prefetch.Read(l.front)
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(l.pair)), unsafe.Sizeof(*l.pair)))
	prefetch.Read(l.peer.front)
}

// tell puts something into the peer's mailbox; false: the connection has moved, tell its stream.
func (l *End) tell(f func(*mail)) bool {
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
	unused := l.pair.over && l.pair.asked.Load()
	l.pair.mu.Unlock()
	if unused {
		l.pipe.Abort()
		p.pipe.Abort()
	}
	p.qp.Wake()
	return true
}

// Step implements link.Link.
func (l *End) Step() (moved int, more bool) {
	l.moved = 0
	more = l.step()
	return l.moved, more
}

func (l *End) step() (more bool) {
	qp := l.qp
	if l.post.Load() {
		l.readMail()
		if l.over || qp.State() != rdma.QPRTS {
			return false
		}
	}
	if qp.State() != rdma.QPRTS {
		return false
	}
	if l.pair.asked.Load() {
		return l.moveOver()
	}
	if l.work.Recv.Waiting() || l.work.Recv.Stalled {
		l.Feed()
	}
	return l.send()
}

func (l *End) readMail() {
	l.pair.mu.Lock()
	m := l.mail
	l.mail = mail{}
	l.post.Store(false)
	l.pair.mu.Unlock()
	qp := l.qp
	if m.fault != nil {
		from := link.Refused
		if m.fault.Cause == iwarp.TermMessageTooLong {
			from = link.ByLink
		}
		qp.Fail(m.fault, from)
		l.Terminate(m.fault.Cause, m.fault.Err)
	}
	if m.term != nil {
		var culprit *wqe.Request
		if e := l.work.Current(); e != nil && wqe.IsAnswered(e.WR.Op) {
			culprit = e
		}
		qp.PeerTerminated(*m.term, culprit)
	}
	l.ends = l.ends || m.leaving
	switch {
	case m.reset:
		qp.Lost(link.ErrPeerClosed)
	case m.fin:
		qp.EOF()
	}
}

// Feed looks for the receive that the peer's Send waits for. That may have found one by itself
// meanwhile: one that nobody waits for would be kept from the other QPs of an SRQ.
func (l *End) Feed() {
	r := &l.work.Recv
	r.Lock()
	ok := !r.Waiting() || r.TakeLocked()
	r.Unlock()
	if ok {
		l.qp.GotReceive()
		l.peer.qp.Wake()
	} else {
		l.qp.AwaitReceive()
		if l.ends {
			l.qp.PeerEnds()
		}
	}
}

// send carries requests out.
func (l *End) send() (more bool) {
	more = l.sendSome()
	l.settle()
	l.dropHolds()
	return more
}

// canWait reports whether e, which is done, can wait for the message behind it before anybody is
// told.
func (l *End) canWait(e *wqe.Request) bool {
	q := l.work.Queues.Local
	return e.Total <= untoldLen && l.untold < wqe.DeferMost && (e.WR.Op == rdma.OpSend ||
		e.WR.Op == rdma.OpWrite) && q != nil && q.More()
}

// settle tells of what is done.
func (l *End) settle() {
	if l.untold == 0 {
		return
	}
	l.retire()
	l.peer.work.Recv.Tell()
}

// retire tells the QP's own side.
func (l *End) retire() {
	l.untold = 0
	if l.sends > 0 {
		l.work.Stats.Sends.Add(l.sends)
		l.work.Stats.SentOctets.Add(l.sendOctets)
		l.sends, l.sendOctets = 0, 0
	}
	l.work.Retire()
}

func (l *End) dropHolds() {
	l.from.Drop()
	l.into.Drop()
}

func (l *End) sendSome() (more bool) {
	qp := l.qp
	if l.peer.phase.Load() != phaseOpen {
		return false
	}
	left := uint64(link.TurnOctets)
	for range wqe.StepMessages {
		e := l.work.Next()
		if e == nil {
			return false
		}
		if op := e.WR.Op; op == rdma.OpLocalInv || op == rdma.OpBindMW || op == rdma.OpRegMR {
			l.dropHolds() // one may be of what ends
			l.settle()
		} else if e.Failed() || e.Total > untoldLen {
			l.settle()
		}
		if e.Moved == 0 {
			if ok, err := l.work.Ready(e); err != nil {
				qp.Fail(err, link.ByQP)
				return false
			} else if !ok {
				if e.Done() {
					continue // it needed no link
				}
				return false
			}
		}
		for {
			before := e.Moved
			ok := l.exec(e)
			if !ok {
				return false
			}
			left -= min(left, uint64(e.Moved-before))
			l.moved += int(e.Moved - before)
			if e.Done() {
				break
			}
			if left == 0 {
				return true
			}
		}
		switch {
		case wqe.IsSend(e.WR.Op): // deliver has done it
		case l.canWait(e):
			l.untold++
		default:
			l.settle()
			l.work.Retire()
		}
		if left == 0 {
			return true
		}
	}
	return true
}

// leave is for a QP that disconnects while its Send waits: the peer hears of it, once. true: the
// peer disconnects as well, its own Send waits, and neither takes a receive any more; so nobody
// waits.
func (l *End) leave() (over bool) {
	if l.ends {
		l.dropHolds()
		l.qp.Lost(link.ErrPeerClosed)
		return true
	}
	if !l.left {
		l.left = true
		l.tell(func(m *mail) { m.leaving = true })
	}
	return false
}

// exec moves one chunk of e; false: it cannot go on now, or never.
func (l *End) exec(e *wqe.Request) bool {
	qp, peer := l.qp, l.peer.work
	r := &peer.Recv
	r.Lock()
	if r.OpenedLocked() != any(l) || l.pair.asked.Load() {
		r.Unlock()
		return false // it is closing, and the mail says so; or the connection is being handed over
	}
	knows := r.Waiting() // the peer, that a Send waits
	var fault error      // at the responder
	var own error        // with our own memory
	n := min(e.Total-e.Moved, chunk)
	wait := false // for a receive
	part := false // the Write of a Write with immediate data
	switch e.WR.Op {
	case rdma.OpWrite:
		own, fault = l.write(e, n)
	case rdma.OpRead:
		own, fault = l.read(e, n)
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		own, fault = l.execAtomic(e)
	case rdma.OpWriteImm:
		if part = n > 0; part {
			own, fault = l.write(e, n)
			break
		}
		if _, ok := r.BeginLocked(); !ok {
			wait = true
		} else {
			fault = l.deliver(e, 0)
		}
	default:
		size, ok := r.BeginLocked()
		switch {
		case !ok:
			wait = true
		case e.Total > size:
			// The Send itself is complete on the wire by the time the responder finds out.
			fault = &iwarp.LocalError{Cause: iwarp.TermMessageTooLong, Err: link.ErrTooLong}
			n = e.Total - e.Moved
		default:
			own, fault = l.sendChunk(e, n)
		}
	}
	if own == mem.ErrBlocking {
		r.Unlock()
		l.HandOver()
		return false
	}
	if fault != nil {
		r.OpenLocked(nil) // nothing more is placed
	}
	if own == nil && fault == nil && !wait && e.Moved+n == e.Total && !wqe.IsSend(e.WR.Op) &&
		part == (e.WR.Op == rdma.OpWriteImm) {
		peer.Stats.Inbound(e.WR.Op, e.Total)
	}
	knows = knows || !r.Waiting()
	done := own == nil && !wait && !part && e.Moved+n == e.Total && (fault == nil ||
		wqe.IsSend(e.WR.Op))
	r.Unlock()

	switch {
	case wait:
		l.settle()
		if qp.Leaving() && l.leave() {
			return false
		}
		if !knows { // if both ends wait they would wake each other for ever
			l.peer.qp.Wake() // it starts the timer
		}
		return false
	case own != nil:
		e.Status = rdma.WCLocProt
		l.work.Log("send request failed", "op", e.WR.Op, "err", own)
		if wqe.IsAnswered(e.WR.Op) {
			// As on the wire: the response cannot be placed.
			l.work.Stats.Errors.Add(1)
			own = fmt.Errorf("%w: %w", wqe.ErrSink, own)
			qp.Fail(&iwarp.LocalError{Cause: iwarp.TermDDPCatastrophic, Err: own}, link.ByQP)
			return false
		}
		qp.Fail(&iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic, Err: own}, link.ByQP)
		return false
	}
	e.Moved += n
	if fault != nil && !done {
		e.Moved -= n
	}
	if done && !e.Done() {
		l.work.Posted(e)
		l.work.Finish(e)
	}
	if fault != nil {
		l.settle()
		l.work.Retire()
		le := fault.(*iwarp.LocalError)
		l.tell(func(m *mail) { m.fault = le })
		return false
	}
	return true
}

// write carries the chunk of n octets of a Write out.
func (l *End) write(e *wqe.Request, n uint32) (own, fault error) {
	if e.Total == 0 {
		return nil, nil // "zero-length tagged segments skip all checks"
	}
	var dst *mem.MR
	if dst, fault = l.peer.work.Memory.Find(mem.PeerWrite, e.WR.RKey, e.WR.RemoteAddr,
		e.Total); fault != nil {
		return nil, fault
	}
	if dst.Blocking() || e.List.Blocking() {
		return mem.ErrBlocking, nil
	}
	own, err := e.CopyTo(dst, e.WR.RemoteAddr+uint64(e.Moved), e.Moved, n)
	if err != nil {
		return nil, mem.PeerWrite.Gone(dst, err)
	}
	return own, nil
}

// read carries the chunk of n octets of a Read out.
func (l *End) read(e *wqe.Request, n uint32) (own, fault error) {
	if e.Total == 0 {
		return nil, nil
	}
	var src *mem.MR
	if src, fault = l.peer.work.Memory.Find(mem.PeerRead, e.WR.RKey, e.WR.RemoteAddr,
		e.Total); fault != nil {
		return nil, fault
	}
	if src.Blocking() || e.List.Blocking() {
		return mem.ErrBlocking, nil
	}
	own, err := e.CopyFrom(src, e.WR.RemoteAddr+uint64(e.Moved), e.Moved, n)
	if err != nil {
		return nil, mem.PeerRead.Gone(src, err)
	}
	return own, nil
}

// sendChunk places the chunk of n octets of a Send, and delivers it with the last. The lock of the
// peer's receive side is held.
func (l *End) sendChunk(e *wqe.Request, n uint32) (own, fault error) {
	if n > 0 {
		own, fault = l.peer.work.Recv.CopyLocked(e, e.Moved, n, 0, &l.from, &l.into)
		if own != nil || fault != nil {
			return own, fault
		}
	}
	if e.Moved+n < e.Total {
		return nil, nil
	}
	return nil, l.deliver(e, e.Total)
}

// deliver ends a Send of n octets, or immediate data. The lock of the peer's receive side is held.
func (l *End) deliver(e *wqe.Request, n uint32) error {
	// Programs rely on it that the completion of a Send comes before that of the answer to it, and the
	// answer can be under way as soon as the peer knows.
	waits := l.canWait(e)
	if e.WR.Op == rdma.OpSend {
		l.work.UnderWay(e)
		l.sends++
		l.sendOctets += uint64(n)
	} else {
		l.work.Posted(e)
	}
	l.work.Finish(e)
	if waits {
		l.untold++
	} else {
		l.retire()
	}
	if e.WR.Op == rdma.OpSendInv {
		l.dropHolds() // one may be of what is invalidated
	}
	return l.peer.work.Recv.EndLocked(iwarp.Received{
		Length: n, Solicited: e.WR.Flags&rdma.Solicited != 0,
		Invalidate: e.WR.Op == rdma.OpSendInv, STag: iwarp.STag(e.WR.InvKey),
		Immediate: wqe.IsImmediate(e.WR.Op), Data: e.Immediate(),
	}, waits)
}

// Idle implements link.Link.
func (l *End) Idle() bool { return true }

// Expire implements link.Link.
func (l *End) Expire() {}

// Terminate implements link.Link.
func (l *End) Terminate(code iwarp.TermCode, err error) {
	if !l.sent {
		l.sent = true
		if !l.tell(func(m *mail) { m.term = &code }) {
			l.takePipe().Terminate(code, err)
		}
	}
}

// Terminated implements link.Link.
func (l *End) Terminated() bool { return l.sent }

// CloseWrite implements link.Link.
func (l *End) CloseWrite() {
	if !l.tell(func(m *mail) { m.fin = true }) {
		l.takePipe().CloseWrite()
	}
}

// Close implements link.Link.
func (l *End) Close() {
	l.over = true
	if l.phase.Swap(phaseClosed) != phaseClosed && !l.tell(func(m *mail) { m.fin = true }) {
		l.pipe.Close()
	}
}

// CloseWithin implements link.Link: what was sent is there.
func (l *End) CloseWithin(time.Duration) { l.Close() }

// Abort implements link.Link.
func (l *End) Abort() {
	l.over = true
	if l.phase.Swap(phaseClosed) != phaseClosed && !l.tell(func(m *mail) { m.reset = true }) {
		l.pipe.Abort()
	}
}

// execAtomic carries e out. The lock of the peer's receive side is held.
func (l *End) execAtomic(e *wqe.Request) (own, fault error) {
	if l.atomic == nil {
		l.atomic = new(iwarp.Atomic)
	}
	a := l.atomic
	*a = e.Atomic()
	m, err := l.peer.work.Memory.Find(mem.PeerAtomic, uint32(a.STag), a.TO, mem.AtomicLen)
	if err == nil && (m.Blocking() || e.List.Blocking()) {
		return mem.ErrBlocking, nil
	}
	old, err := l.peer.work.Memory.Atomic(a)
	if err != nil {
		return nil, err
	}
	var h mem.Hold
	err = e.PutOld(&h, old)
	h.Drop()
	return err, nil
}
