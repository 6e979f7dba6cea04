package vnic

import (
	"runtime"

	"github.com/vrnic/vrnic/rdma"
)

// The values of a run token. Who finds work takes it from idle to running, or leaves it at again
// and goes; the holder gives it up only from running to idle, and runs once more if that fails.
const (
	tokenIdle uint32 = iota
	tokenRunning
	tokenAgain
)

// kick runs qp on the caller's goroutine, for one step and as far as that touches no memory that
// can block, unless it is being run. What is left over goes to qp's goroutine.
func (qp *QP) kick() {
	if qp.acquire() {
		qp.drain(false)
	}
}

// near reports whether qp's next step touches no memory that can block. qp's owner asks.
func (qp *QP) near() bool {
	if !qp.ctx.mem.Blocking() || qp.link == nil {
		return true
	}
	return !qp.link.Blocking()
}

// sendMapped sends what is posted to a connection that is well, without touching memory that can
// block. true: there is nothing else to do.
func (qp *QP) sendMapped() bool {
	if qp.link == nil || qp.State() != rdma.QPRTS || qp.eof || qp.draining || qp.work.Recv.Waiting() ||
		!qp.link.SendMapped() {
		return false
	}
	qp.work.Retire()
	return true
}

// acquire takes the run token, or sees to it that its holder looks again.
func (qp *QP) acquire() bool {
	for {
		switch qp.token.Load() {
		case tokenIdle:
			if qp.token.CompareAndSwap(tokenIdle, tokenRunning) {
				return true
			}
		case tokenRunning:
			if qp.token.CompareAndSwap(tokenRunning, tokenAgain) {
				return false
			}
		default:
			return false
		}
	}
}

// wake has qp run, by its goroutine or by who is running it. It never blocks and takes no lock, so
// it is what the transport may call.
func (qp *QP) wake() {
	for {
		switch qp.token.Load() {
		case tokenIdle:
			signal(qp.wakec)
			return
		case tokenRunning:
			if qp.token.CompareAndSwap(tokenRunning, tokenAgain) {
				return
			}
		default:
			return
		}
	}
}

// drain runs qp until there is nothing to do, and gives the token up. own says that this is qp's
// goroutine; another goroutine does one step and leaves the rest to it.
func (qp *QP) drain(own bool) {
	for n := 1; ; n++ {
		more := qp.step(own)
		switch {
		case more && (!own || qp.ctx.mem.Blocking()): // a slot of a staged context goes round
			qp.token.Store(tokenIdle)
			signal(qp.wakec)
			return
		case more:
			if qp.link == nil || n%qp.link.Yield() == 0 {
				runtime.Gosched()
			}
		case qp.token.CompareAndSwap(tokenRunning, tokenIdle):
			return
		default:
			if !own && !qp.near() {
				qp.token.Store(tokenIdle)
				signal(qp.wakec)
				return
			}
			qp.token.Store(tokenRunning)
		}
	}
}

// run is qp's goroutine.
func (qp *QP) run() {
	for {
		// One channel for all there is: the runtime needs a record of each channel that a goroutine waits
		// for, and allocates more of them whenever it goes from processor to processor.
		<-qp.wakec
		if qp.quit.Load() {
			return
		}
		staged := qp.ctx.mem.Blocking()
		if staged {
			// "at most 8 at once": memory that hangs takes threads of the daemon.
			qp.ctx.touching <- struct{}{}
		}
		if qp.acquire() {
			qp.drain(true)
		}
		if staged {
			<-qp.ctx.touching
		}
	}
}

// call has f run by qp's owner. After qp has died it does nothing.
func (qp *QP) call(f func()) {
	if qp.addCall(f) {
		qp.kick()
	}
}

// callLater is call, but f does not run here.
func (qp *QP) callLater(f func()) {
	if qp.addCall(f) {
		qp.wake()
	}
}

func (qp *QP) addCall(f func()) bool {
	qp.callMu.Lock()
	defer qp.callMu.Unlock()
	if qp.callsClosed {
		return false
	}
	qp.calls = append(qp.calls, f)
	qp.hasCalls.Store(true)
	return true
}

// do is call, and waits for it; false: qp died first.
func (qp *QP) do(f func()) bool {
	done := make(chan struct{})
	qp.call(func() { defer close(done); f() })
	select {
	case <-done:
		return true
	case <-qp.gone:
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// runCalls reports whether there were any.
func (qp *QP) runCalls() (any bool) {
	for qp.hasCalls.Load() {
		any = true
		qp.callMu.Lock()
		calls := qp.calls
		qp.calls = nil
		qp.hasCalls.Store(false)
		qp.callMu.Unlock()
		for _, f := range calls {
			if !qp.dead {
				f()
			}
		}
	}
	return any
}

// step does a bounded amount of the work that there is; true: there is more.
func (qp *QP) step(own bool) (more bool) {
	called := qp.runCalls()
	if qp.dead {
		return false
	}
	if !own && !qp.near() {
		return called || !qp.sendMapped() // the rest is for the goroutine
	}
	if qp.work.Queues.Overrun() {
		qp.cqOverrun()
	}
	if qp.timerFired.Swap(false) {
		qp.expire()
	}
	if qp.work.Recv.Revoking() && qp.work.Recv.Revoked() && qp.link != nil {
		qp.link.Delivered()
	}
	if qp.link != nil {
		more = qp.link.Step()
		qp.work.Retire()
		if qp.link != nil {
			more = qp.progress() || more
		}
	}
	return qp.flushIdle() || more
}
