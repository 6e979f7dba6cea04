package vnic

import (
	"errors"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

var (
	errDrain    = errors.New("what was posted before the disconnect did not go out in time")
	errNoFIN    = errors.New("the peer did not close its side in time")
	errHold     = errors.New("no receive was posted in time")
	errUnheard  = errors.New("the peer closed the connection behind a Send that found no receive")
	errConsumer = errors.New("the program asked for it")
	errOverrun  = errors.New("a completion queue has no room")
	errMade     = wqe.ErrMade
)

// localError ends the connection for a fault found on this side: Q5, Q6, Q7. The Terminate goes
// out, then a FIN; what is posted flushes when the link has closed.
func (qp *QP) localError(e *iwarp.LocalError, by link.Origin) {
	if qp.State() != rdma.QPRTS {
		return
	}
	code := e.Cause
	if errors.Is(e.Err, wqe.ErrByPeer) {
		qp.peerTerminated(code, nil)
		return
	}
	qp.endErr = termError(code, false)
	qp.log("terminate", "cause", code, "err", e.Err, "by", by)
	ev := rdma.EventQPFatal
	r := &qp.work.Recv
	// Who gets which status: docs/qp-states.md.
	switch {
	case errors.Is(e.Err, wqe.ErrMade): // who has asked for it has said with which status
	case code == iwarp.TermMessageTooLong && r.FailSend(rdma.WCLocLen, wqe.VendorErr(code)):
	case by == link.Refused, r.Failing(), errors.Is(e, wqe.ErrSink):
		ev = rdma.EventQPAccessErr
	case code.Layer == iwarp.LayerLLP:
		qp.work.BlameSend(rdma.WCGeneral, wqe.VendorErr(code))
	case code == iwarp.TermNoBuffer, code == iwarp.TermLocalCatastrophic:
	default: // malformed traffic
		qp.work.BlameSend(rdma.WCBadResp, wqe.VendorErr(code))
	}
	if by == link.ByQP {
		qp.link.Terminate(code, e.Err)
	}
	qp.work.Stats.Terminates.Add(1)
	qp.ctx.event(ev, qp.num, termError(code, false))
	qp.mustState(rdma.QPTerminate)
}

// peerTerminated ends the connection after a Terminate of the peer: Q9. culprit is the request
// that it is about, if it says so. What cannot be invalidated is of a Send, which is complete: a
// Read or an atomic behind it has done nothing wrong.
func (qp *QP) peerTerminated(code iwarp.TermCode, culprit *wqe.Request) {
	if qp.State() != rdma.QPRTS {
		return
	}
	qp.endErr = termError(code, true)
	qp.peerCode = &code
	qp.log("terminated by the peer", "cause", code)
	v := wqe.VendorErr(code)
	ev := rdma.EventQPFatal
	switch {
	case code == iwarp.TermCannotInvalidate, code == iwarp.TermInvalidateNotAssociated:
	case code.Layer == iwarp.LayerRDMAP && code.Type == 1 && culprit != nil:
		culprit.Blame(rdma.WCRemAccess, v)
	case code.Layer == iwarp.LayerRDMAP && code.Type == 2 && culprit != nil:
		culprit.Blame(rdma.WCRemOp, v)
	case code.Layer == iwarp.LayerDDP && code.Type == 1:
		// a Write that was refused, complete long ago perhaps
		qp.work.BlameSend(rdma.WCRemAccess, v)
	case code == iwarp.TermMessageTooLong:
		ev = rdma.EventQPReqErr
	}
	qp.work.Stats.Terminated.Add(1)
	qp.ctx.event(ev, qp.num, termError(code, true))
	qp.mustState(rdma.QPTerminate)
}

// lost ends the connection because the link is no more: Q10, Q14, Q15.
func (qp *QP) lost(err error) {
	if qp.link == nil {
		return
	}
	qp.endLink(link.Link.Abort)
	qp.toError(err)
}

// disconnect begins a graceful end: Q3 and Q4.
func (qp *QP) disconnect() {
	if qp.State() != rdma.QPRTS || qp.draining {
		return
	}
	qp.draining = true
	qp.setDeadline(deadlineDrain, qp.dev.cfg.Timeouts.Drain)
}

// toError moves qp to Error: Q2, Q8, Q10, Q12, Q14, Q15. What is posted flushes at the end of the
// step.
func (qp *QP) toError(err error) {
	if s := qp.State(); s == rdma.QPError || s == rdma.QPReset {
		return
	}
	if qp.endErr == nil {
		qp.endErr = err
	}
	qp.abortLink()
	qp.mustState(rdma.QPError)
}

// abortLink ends the connection at once: the peer sees a reset, and what it has not taken is
// dropped. Only a Terminate of ours that is on its way is waited for, for the time that the peer
// would have had to answer it by its end.
func (qp *QP) abortLink() {
	if qp.packets != nil {
		qp.unlink()
		return
	}
	if qp.State() == rdma.QPTerminate && qp.peerCode == nil && qp.link != nil && qp.link.Terminated() {
		qp.endLink(func(l link.Link) { l.CloseWithin(qp.dev.cfg.Timeouts.Terminate) })
		return
	}
	qp.endLink(link.Link.Abort)
}

// endLink gives the connection back by end, or by Close if the peer has closed before.
func (qp *QP) endLink(end func(link.Link)) {
	l := qp.link
	if l == nil {
		return
	}
	qp.link = nil
	qp.seen.Store(nil)
	qp.peek.Store(nil)
	qp.work.Recv.Close(qp.dead) // before anything of the link is given up
	qp.work.Memory.EndWindows()
	if qp.eof {
		end = link.Link.Close
	}
	end(l)
	if a := qp.bound.Load(); a != nil {
		a.LinkEnded()
	}
	qp.eof, qp.draining = false, false
	qp.work.Begin(false, false)
}

// ended tells the connection manager, once, when a connection is over and flushed.
func (qp *QP) ended() {
	if qp.attached {
		a, err := qp.bound.Load(), qp.endErr
		qp.attached = false
		qp.bound.Store(nil)
		qp.lend(func() { a.Ended(err) })
	}
}

// progress moves a connection on that is on its way out. true: there is more to do.
func (qp *QP) progress() (more bool) {
	switch qp.State() {
	case rdma.QPRTS:
		if !qp.eof && !qp.draining {
			return false
		}
		waiting := qp.work.SendsLeft()
		if next := qp.work.Next(); next != nil || qp.work.SendsLeft() || !qp.link.Idle() {
			if qp.eof && !qp.serveOn() {
				qp.toError(link.ErrPeerClosed) // Q12
				return false
			}
			return next != nil && !waiting
		}
		if !qp.eof && qp.halfCloses() {
			qp.endSend()
			return false
		}
		qp.mustState(rdma.QPClosing) // Q3, Q11
	case rdma.QPTerminate:
		if qp.peerCode != nil || qp.link.Terminated() {
			qp.finish()
		}
		if qp.eof {
			qp.toError(nil) // Q15
		}
		return false
	case rdma.QPClosing:
	default:
		return false
	}
	qp.finish()
	if qp.eof {
		if qp.flushIdle() { // what is posted flushes in Closing, also if that state is passed at once
			return true
		}
		qp.endLink(link.Link.Close)
		qp.mustState(qp.endState) // Q13, or Q14
	}
	return false
}

// serveOn says that what is left can go out behind the peer's FIN, as long as a disconnect of our
// own may take: RFC 5041, section 6.2.1. Our Reads and atomics are not answered any more.
func (qp *QP) serveOn() bool {
	if !qp.halfCloses() || qp.work.SendsFinished() || qp.work.AwaitsAnswers() {
		return false
	}
	qp.disconnect()
	return true
}

func (qp *QP) halfCloses() bool {
	return qp.dev.cfg.HalfClose && qp.link.HalfCloses()
}

// endSend closes our half, when all is out. What the peer still sends is taken until it closes its
// own.
func (qp *QP) endSend() {
	if !qp.finish() {
		return
	}
	qp.setDeadline(deadlineDrain, 0)
	qp.setDeadline(deadlineEnd, qp.dev.cfg.Timeouts.Close)
}

// finish tells the peer, once, that nothing more comes.
func (qp *QP) finish() (first bool) {
	if qp.work.SendsFinished() {
		return false
	}
	qp.work.FinishSends()
	qp.link.CloseWrite()
	return true
}

// vendorErr is how what flushes tells of a Terminate of the peer.
func (qp *QP) vendorErr() uint32 {
	if qp.peerCode == nil {
		return 0
	}
	return wqe.VendorErr(*qp.peerCode)
}

// flushIdle flushes what is posted in the states that do. true: there is more.
func (qp *QP) flushIdle() (more bool) {
	if qp.dead {
		return false
	}
	switch qp.State() {
	case rdma.QPError:
		more = qp.work.FlushSends(qp.vendorErr())
		more = qp.work.Recv.Flush(qp.vendorErr()) || more
		if !more && qp.lastWQE {
			qp.lastWQE = false
			qp.ctx.event(rdma.EventLastWQEReached, qp.num, nil)
		}
	case rdma.QPSQE:
		return qp.work.FlushSends(0)
	case rdma.QPClosing:
		more = qp.work.FlushSends(qp.vendorErr())
		return qp.work.Recv.Flush(qp.vendorErr()) || more
	case rdma.QPIdle:
		if !qp.served {
			return false
		}
		more = qp.work.FlushSends(qp.vendorErr()) // a ring that was filled while the connection ended
	default:
		return false
	}
	if !more {
		qp.ended()
	}
	return more
}

// Break ends the connection of qp as a fault of the card does, if there is one: of iWARP by a
// Terminate with that code, of RoCE without a word. It does not wait; done is called behind it.
func (qp *QP) Break(code iwarp.TermCode, done func()) {
	qp.callAsync(func() {
		switch {
		case qp.packets != nil:
			qp.ctx.event(rdma.EventQPFatal, qp.num, nil)
			qp.toError(errMade)
		default:
			qp.localError(&iwarp.LocalError{Cause: code, Err: errMade}, link.ByQP)
		}
		done()
	})
}

// Refuse has qp, of a reliable connection of RoCE, answer the next request of its peer with a NAK.
// It does not wait.
func (qp *QP) Refuse(s packet.Syndrome) {
	qp.callAsync(func() {
		if qp.packets == nil {
			return
		}
		if l := qp.packets.peer.Load(); l != nil {
			l.Refuse(s)
			(*linked)(qp).Parted()
		}
	})
}

// Lost as the delay of a doorbell: its request is seen when the next one is posted.
const Lost = wqe.Lost

// LateBells has late say of each send request that is posted how late its doorbell is, 0: it is
// not. Nothing waits when over says so, which it does for good, or the connection is over;
// Device.Look then has qp look. It does not wait.
func (qp *QP) LateBells(late func(wr *rdma.SendWR) time.Duration, over func() bool) {
	qp.callAsync(func() {
		qp.work.Gate(late, over, func() bool { return qp.State() != rdma.QPRTS })
	})
}

// BreakCQs has the completion queues of qp lose a completion: all queue pairs that complete there
// go to Error. It does not wait.
func (qp *QP) BreakCQs() {
	qp.callAsync(func() {
		qp.work.Queues.SendCQ.Break()
		qp.work.Queues.RecvCQ.Break()
	})
}

// EndKey ends what a key of qp's protection domain gives, as if its region had been deregistered.
func (qp *QP) EndKey(key uint32) { qp.pd.EndKey(key) }

// cqOverrun ends a QP whose completions cannot be delivered any more.
func (qp *QP) cqOverrun() {
	if s := qp.State(); s != rdma.QPError && s != rdma.QPReset {
		qp.ctx.event(rdma.EventQPFatal, qp.num, nil)
		qp.toError(errOverrun)
	}
}

// The deadlines of a QP.
const (
	deadlineHold  = iota // for a receive to be posted
	deadlineDrain        // for a graceful disconnect
	deadlineEnd          // for the peer's FIN
	deadlineLink         // the link's own
	deadlineQuota        // to look again whether the program has polled what this QP holds of an SRQ
	nDeadlines
)

// quotaLook is how often a QP that has used its quota of an SRQ up looks whether its completions
// have been polled, where nobody says so.
const quotaLook = 2 * time.Millisecond

// terminateMost is how many times Timeouts.Terminate a peer that goes on sending gets to come to
// our Terminate.
const terminateMost = 10

// stillSending gives a peer that is not silent more time: a connection that is reset before the
// peer has read what came before the Terminate takes that with it (RDMAP-108). The answers to what
// it asked for before its fault are part of that.
func (qp *QP) stillSending() {
	if qp.State() != rdma.QPTerminate || qp.deadlines[deadlineEnd].IsZero() {
		return
	}
	if d := min(qp.dev.cfg.Timeouts.Terminate, time.Until(qp.terminateBy)); d > 0 {
		qp.setDeadline(deadlineEnd, d)
	}
}

// awaitReceive sets the deadlines of a Send that waits for a receive.
func (qp *QP) awaitReceive() {
	if !qp.work.Recv.Stalled {
		qp.work.Recv.Stalled = true
		qp.work.Stats.Stalls.Add(1)
		qp.setDeadline(deadlineHold, qp.dev.cfg.Timeouts.ReceiveHold)
	}
	if t := qp.work.Queues.Tap; t != nil && t.Waits() && qp.work.Queues.RecvCQ.Foreign() {
		qp.setDeadline(deadlineQuota, quotaLook)
	}
}

// lastCall is how long a Send waits for a receive behind which the peer has closed the connection.
// Programs whose receives are late, or who have as many as they like to take at once, get it; and
// nobody is kept waiting for the end of a connection that is over: docs/decisions.md#A29.
const lastCall = 250 * time.Millisecond

// peerEnds shortens the time that a Send may wait.
func (qp *QP) peerEnds() {
	if !qp.work.Recv.Stalled || qp.lastCall {
		return
	}
	qp.lastCall = true
	if at := qp.deadlines[deadlineHold]; at.IsZero() || time.Until(at) > lastCall {
		qp.setDeadline(deadlineHold, lastCall)
	}
}

// gotReceive takes them back.
func (qp *QP) gotReceive() {
	if qp.work.Recv.Stalled {
		qp.work.Recv.Stalled, qp.lastCall = false, false
		qp.setDeadline(deadlineHold, 0)
		qp.setDeadline(deadlineQuota, 0)
	}
}

func (qp *QP) clearDeadlines() {
	qp.work.Recv.Stalled, qp.lastCall = false, false
	clear(qp.deadlines[:])
	qp.resetTimer()
}

// setDeadline sets one of qp's deadlines to d from now; 0 or less: none.
func (qp *QP) setDeadline(which int, d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	if at.Equal(qp.deadlines[which]) {
		return
	}
	qp.deadlines[which] = at
	qp.resetTimer()
}

func (qp *QP) resetTimer() {
	var first time.Time
	for _, t := range qp.deadlines {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	switch {
	case first.IsZero():
		if qp.timer != nil {
			qp.timer.Stop()
		}
	case qp.timer == nil:
		qp.timer = time.AfterFunc(time.Until(first), func() {
			qp.timerFired.Store(true)
			qp.wake()
		})
	default:
		qp.timer.Reset(time.Until(first))
	}
}

// expire does what is due.
func (qp *QP) expire() {
	now := time.Now()
	due := func(which int) bool {
		t := qp.deadlines[which]
		if t.IsZero() || now.Before(t) {
			return false
		}
		qp.deadlines[which] = time.Time{}
		return true
	}
	due(deadlineQuota) // the step that follows looks
	switch {
	case !due(deadlineHold), !qp.work.Recv.Waiting():
	case qp.lastCall && qp.State() == rdma.QPRTS:
		qp.endErr = errUnheard
		qp.disconnect()
	default:
		qp.localError(&iwarp.LocalError{Cause: iwarp.TermNoBuffer, Err: errHold}, link.ByQP)
	}
	if due(deadlineDrain) {
		qp.toError(errDrain) // Q4: "on timeout Q8"
	}
	if due(deadlineEnd) {
		qp.lost(errNoFIN)
	}
	if due(deadlineLink) && qp.link != nil {
		qp.link.Expire()
	}
	qp.resetTimer()
}
