package vnic

import (
	"errors"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

var (
	errPeerClosed = errors.New("the peer closed the connection while work was outstanding")
	errDrain      = errors.New("what was posted before the disconnect did not go out in time")
	errNoFIN      = errors.New("the peer did not close its side in time")
	errAfterFIN   = errors.New("the peer sent data during the close")
	errTooLong    = errors.New("the Send is longer than the receive")
	errHold       = errors.New("no receive was posted in time")
	errOverrun    = errors.New("a completion queue has no room")
)

// How a local error was found.
type errOrigin uint8

const (
	errHere    errOrigin = iota // by the QP: the link has to send the Terminate
	errLink                     // by the link, which sends it
	errRefused                  // by the link, because the QP refused what a peer wanted of its memory
)

// localError ends the connection for a fault found on this side: Q5, Q6, Q7. The Terminate goes
// out, then a FIN; what is posted flushes when the link has closed.
func (qp *QP) localError(e *iwarp.LocalError, from errOrigin) {
	if qp.State() != rdma.QPRTS {
		return
	}
	code := e.Cause
	qp.endErr = termError(code, false)
	qp.log("terminate", "cause", code, "err", e.Err, "from", from)
	ev := rdma.EventQPFatal
	r := &qp.rx
	r.mu.Lock()
	// Who gets which status: docs/qp-states.md#what-the-program-sees.
	switch {
	case code == iwarp.TermMessageTooLong && r.used && r.have:
		r.fail, r.vendor = rdma.WCLocLen, vendorErr(code)
	case r.fail != 0, from == errRefused:
		ev = rdma.EventQPAccessErr
	case code.Layer == iwarp.LayerLLP:
		qp.blameSend(rdma.WCGeneral, vendorErr(code))
	case code == iwarp.TermNoBuffer, code == iwarp.TermLocalCatastrophic:
	default: // malformed traffic
		qp.blameSend(rdma.WCBadResp, vendorErr(code))
	}
	r.mu.Unlock()
	if from == errHere {
		qp.link.terminate(code, e.Err)
	}
	qp.stats.terminates.Add(1)
	qp.ctx.event(ev, qp.num, termError(code, false))
	qp.mustState(rdma.QPTerminate)
}

// peerTerminated ends the connection after a Terminate of the peer: Q9. culprit is the request
// that it is about, if it says so.
func (qp *QP) peerTerminated(code iwarp.TermCode, culprit *sqe) {
	if qp.State() != rdma.QPRTS {
		return
	}
	qp.endErr = termError(code, true)
	qp.peerCode = &termCause{code: code, remote: true}
	qp.log("terminated by the peer", "cause", code)
	v := vendorErr(code)
	ev := rdma.EventQPFatal
	switch {
	case code.Layer == iwarp.LayerRDMAP && code.Type == 1 && culprit != nil:
		culprit.blame(rdma.WCRemAccess, v)
	case code.Layer == iwarp.LayerRDMAP && code.Type == 2 && culprit != nil:
		culprit.blame(rdma.WCRemOp, v)
	case code.Layer == iwarp.LayerDDP && code.Type == 1: // a Write that was refused, complete long ago perhaps
		qp.blameSend(rdma.WCRemAccess, v)
	case code == iwarp.TermMessageTooLong:
		ev = rdma.EventQPReqErr
	}
	qp.stats.terminated.Add(1)
	qp.ctx.event(ev, qp.num, termError(code, true))
	qp.mustState(rdma.QPTerminate)
}

// lost ends the connection because the link is no More: Q10, Q14, Q15.
func (qp *QP) lost(err error) {
	if qp.link == nil {
		return
	}
	qp.endLink(true)
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

// toError moves qp to Error: Q2, Q8, Q10, Q12, Q14, Q15. What is posted flushes at the end of the step.
func (qp *QP) toError(err error) {
	if qp.State() == rdma.QPError {
		return
	}
	if qp.endErr == nil {
		qp.endErr = err
	}
	qp.endLink(false)
	qp.mustState(rdma.QPError)
}

// endLink gives the connection back.
func (qp *QP) endLink(abort bool) {
	l := qp.link
	if l == nil {
		return
	}
	qp.link = nil
	qp.peer.Store(nil)
	qp.wire.Store(nil)
	qp.peek.Store(nil)
	qp.closeRecv() // before anything of the link is given up
	qp.mem.EndWindows()
	if abort && !qp.eof {
		l.abort()
	} else {
		l.close()
	}
	qp.bound.Load().LinkEnded()
	qp.eof, qp.finSent, qp.draining = false, false, false
}

// ended tells the connection manager, once, when a connection is over and flushed.
func (qp *QP) ended() {
	if qp.attached {
		a := qp.bound.Load()
		qp.attached = false
		qp.bound.Store(nil)
		a.Ended(qp.endErr)
	}
}

// progress moves a connection on that is on its way out. true: there is more to do.
func (qp *QP) progress() (more bool) {
	switch qp.State() {
	case rdma.QPRTS:
		if !qp.eof && !qp.draining {
			return false
		}
		waiting := qp.sq.head != qp.sq.tail
		if next := qp.nextSend(); next != nil || qp.sq.head != qp.sq.tail || !qp.link.idle() {
			if qp.eof && !qp.serveOn() {
				qp.toError(errPeerClosed) // Q12
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
		if !qp.finSent && (qp.peerCode != nil || qp.link.terminated()) {
			qp.finSent = true
			qp.link.closeWrite()
		}
		if qp.eof {
			qp.toError(nil) // Q15
		}
		return false
	case rdma.QPClosing:
	default:
		return false
	}
	if !qp.finSent {
		qp.finSent = true
		qp.link.closeWrite()
	}
	if qp.eof {
		if qp.flushIdle() { // what is posted flushes in Closing, also if that state is passed at once
			return true
		}
		qp.endLink(false)
		qp.mustState(qp.endState) // Q13, or Q14
	}
	return false
}

// serveOn says that what is left can go out behind the peer's FIN, as long as a disconnect of our own may
// take: RFC 5041, section 6.2.1. Our Reads and atomics are not answered any more.
func (qp *QP) serveOn() bool {
	if !qp.halfCloses() || qp.finSent || qp.sq.reads > 0 {
		return false
	}
	qp.disconnect()
	return true
}

func (qp *QP) halfCloses() bool {
	_, wired := qp.link.(*wire)
	return wired && qp.dev.cfg.HalfClose
}

// endSend closes our half, when all is out. What the peer still sends is taken until it closes its own.
func (qp *QP) endSend() {
	if qp.finSent {
		return
	}
	qp.finSent = true
	qp.link.closeWrite()
	qp.setDeadline(deadlineDrain, 0)
	qp.setDeadline(deadlineEnd, qp.dev.cfg.Timeouts.Close)
}

// flushIdle flushes what is posted in the states that do. true: there is more.
func (qp *QP) flushIdle() (more bool) {
	if qp.dead {
		return false
	}
	switch qp.State() {
	case rdma.QPError:
		more = qp.flushSend()
		more = qp.flushRecv() || more
		if !more && qp.lastWQE {
			qp.lastWQE = false
			qp.ctx.event(rdma.EventLastWQEReached, qp.num, nil)
		}
	case rdma.QPClosing:
		more = qp.flushSend()
		return qp.flushRecv() || more
	case rdma.QPIdle:
		if !qp.served {
			return false
		}
		more = qp.flushSend() // a ring that was filled while the connection ended
	default:
		return false
	}
	if !more {
		qp.ended()
	}
	return more
}

// cqOverrun ends a QP whose completions cannot be delivered any more.
func (qp *QP) cqOverrun() {
	if qp.State() != rdma.QPError {
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

// quotaLook is how often a QP that has used its quota of an SRQ up looks whether its completions have
// been polled, where nobody says so.
const quotaLook = 2 * time.Millisecond

// terminateMost is how many times Timeouts.Terminate a peer that goes on sending gets to come to our
// Terminate.
const terminateMost = 10

// stillSending gives a peer that is not silent more time: a connection that is reset before the peer has
// read what came before the Terminate takes that with it (RDMAP-108).
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
	if !qp.held {
		qp.held = true
		qp.stats.stalls.Add(1)
		qp.setDeadline(deadlineHold, qp.dev.cfg.Timeouts.ReceiveHold)
	}
	if t := qp.queues.Tap; t != nil && t.Waits() && qp.queues.RecvCQ.Foreign() {
		qp.setDeadline(deadlineQuota, quotaLook)
	}
}

// gotReceive takes them back.
func (qp *QP) gotReceive() {
	if qp.held {
		qp.held = false
		qp.setDeadline(deadlineHold, 0)
		qp.setDeadline(deadlineQuota, 0)
	}
}

func (qp *QP) clearDeadlines() {
	qp.held = false
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
	if due(deadlineHold) && qp.rx.waiting.Load() {
		qp.localError(&iwarp.LocalError{Cause: iwarp.TermNoBuffer, Err: errHold}, errHere)
	}
	if due(deadlineDrain) {
		qp.toError(errDrain) // Q4: "on timeout Q8"
	}
	if due(deadlineEnd) {
		qp.lost(errNoFIN)
	}
	if due(deadlineLink) && qp.link != nil {
		qp.link.expire()
	}
	qp.resetTimer()
}
