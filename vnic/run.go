package vnic

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link"
)

// A runner says who runs a QP: on which goroutine, with what in hand, for how long, and when it
// gives way. Whoever holds the token is the QP's owner, and alone with what is the owner's.
//
//	token    the QP is run by     who finds work                     the holder, when it finds none
//	idle     nobody               kick: takes the token; wake:       -
//	                              has the QP's goroutine take it
//	running  one goroutine        leaves it at again, and goes       gives it up: idle
//	again    one goroutine        goes                               looks once more: running
//
// Work is found by who posts (kick, on the poster's goroutine), by the transport (wake, with its
// locks held; or kick, without: link.QP.Run), by a timer, and by who calls the owner (call, do).
//
// A step is a turn: wqe.StepMessages, link.TurnOctets, and what cannot be parted. Somebody else's
// goroutine goes on for link.StepOctets if nobody waits for it, else for one turn, and leaves the
// rest to the QP's own. It holds no lock then, but that of a caller's handler, and touches no
// memory that can block: if the next step could, it sends what needs none, and leaves the rest. The
// QP's goroutine goes on as long as there is work, and lets others run now and then
// (link.Abilities.Yield), or after each turn while QPs that move much have half of all processors:
// then whoever has a small message waits for a processor, and finds the others in a line with a
// turn each. Who took more than a turn lets the others have as many. In a context with memory that
// can block it has one of the context's few slots while it runs, gives the token up after
// StepOctets, or after a turn if all slots are taken, and comes again.
//
// A handler of CM events is called by the owner, which lends what it owns meanwhile: a call of do,
// by the handler or by anybody else, is done in place, by one at a time. Who borrows may have a
// handler to call, too, and lends the QP on. The owner goes on when all have given it back, and
// looks for work that they have left.
type runner struct {
	token      atomic.Uint32
	hasCalls   atomic.Bool
	timerFired atomic.Bool
	lent       atomic.Bool // the owner is in a handler
	dead       bool        // die was here; the owner's
}

// A mailbox is what others have the owner do, and how they reach the QP's goroutine.
type mailbox struct {
	wakec  chan struct{} // one slot
	quit   atomic.Bool   // set by die, which then wakes the goroutine
	gone   chan struct{} // closed when the goroutine has returned and the QP is forgotten
	lendMu sync.Mutex    // held by who uses what is lent
	// borrowed is how many do, or have lent it on; returned is closed by the last, if the owner waits.
	borrowed int           // +checklocks:lendMu
	returned chan struct{} // +checklocks:lendMu
	callMu   sync.Mutex
	calls    []func() // +checklocks:callMu
	closed   bool     // +checklocks:callMu
}

// The values of a run token.
const (
	tokenIdle uint32 = iota
	tokenRunning
	tokenAgain
)

// kick runs qp on the caller's goroutine, for StepOctets and as far as that touches no memory that
// can block, unless it is being run. What is left over goes to qp's goroutine.
func (qp *QP) kick() { qp.kickBeside(nil) }

// kickBeside is kick for a goroutine that others may wait for: if waiting says that they do, it
// ends with the turn.
func (qp *QP) kickBeside(waiting func() bool) {
	if qp.acquire() {
		qp.drain(false, waiting)
	}
}

// moving is how many QPs of this process are in the midst of more than a turn, each on its own
// goroutine.
var moving atomic.Int32

// crowded reports whether QPs that move much have so many of procs, the processors that Go runs
// goroutines on, that others may wait for one.
func crowded(procs int) bool { return 2*int(moving.Load()) > procs }

// mayBlock reports whether qp's next step may touch memory that can block. qp's owner asks.
func (qp *QP) mayBlock() bool {
	return qp.ctx.mem.Blocking() && qp.link != nil && qp.link.Blocking()
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
func (r *runner) acquire() bool {
	for {
		switch r.token.Load() {
		case tokenIdle:
			if r.token.CompareAndSwap(tokenIdle, tokenRunning) {
				return true
			}
		case tokenRunning:
			if r.token.CompareAndSwap(tokenRunning, tokenAgain) {
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
// goroutine; another goroutine does what kickBeside says and leaves the rest to it.
func (qp *QP) drain(own bool, waiting func() bool) {
	blocking := qp.ctx.mem.Blocking()
	left := link.StepOctets
	if own && !blocking && qp.link != nil {
		left *= qp.link.Yield()
	}
	many, procs := false, 0 // turns; processors
	for {
		moved, more := qp.step(own)
		if more && moved < link.TurnOctets {
			moved = link.StepOctets // many messages, which cost as much
		}
		left -= moved
		switch {
		case more && !own:
			if left <= 0 || blocking || waiting != nil && waiting() {
				qp.passOn()
				return
			}
		case more && blocking:
			if left <= 0 || len(qp.ctx.blocking) == cap(qp.ctx.blocking) {
				qp.passOn() // its slot goes round
				return
			}
		case more:
			if !many {
				many, procs = true, runtime.GOMAXPROCS(0)
				moving.Add(1)
			}
			left = qp.giveWay(moved, left, procs)
		case qp.token.CompareAndSwap(tokenRunning, tokenIdle):
			if many {
				moving.Add(-1)
			}
			return
		case !own && (qp.mayBlock() || beside(left, waiting)):
			qp.passOn()
			return
		default:
			left -= againOctets
			qp.token.Store(tokenRunning)
		}
	}
}

// againOctets is what it counts as, beside what it moves, to look once more for somebody who has
// found work meanwhile. Else a QP that others keep at work, each time with little, would keep the
// goroutine that runs it for its poster, too.
const againOctets = link.TurnOctets / 16

// beside reports whether somebody else's goroutine, of whose StepOctets so many are left, has done
// enough for a QP that is always found more to do.
func beside(left int, waiting func() bool) bool {
	return left <= 0 || left <= link.StepOctets-link.TurnOctets && waiting != nil && waiting()
}

// passOn gives the token up and has qp's goroutine take it.
func (qp *QP) passOn() {
	qp.token.Store(tokenIdle)
	signal(qp.wakec)
}

// giveWay lets others run, if it is time, behind a step that has moved so many octets; left of them
// may go before they have to.
func (qp *QP) giveWay(moved, left, procs int) int {
	switch {
	case crowded(procs):
		for ; moved > 0; moved -= link.TurnOctets {
			runtime.Gosched()
		}
	case left <= 0:
		runtime.Gosched()
	default:
		return left
	}
	if qp.link == nil {
		return link.StepOctets
	}
	return link.StepOctets * qp.link.Yield()
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
		limited := qp.ctx.mem.Blocking()
		if limited {
			qp.ctx.blocking <- struct{}{} // memory that hangs takes threads of the daemon
		}
		if qp.acquire() {
			qp.drain(true, nil)
		}
		if limited {
			<-qp.ctx.blocking
		}
	}
}

// call has f run by qp's owner. After qp has died it does nothing.
func (qp *QP) call(f func()) {
	if qp.addCall(f) {
		qp.kick()
	}
}

// callAsync is call, but f does not run here.
func (qp *QP) callAsync(f func()) {
	if qp.addCall(f) {
		qp.wake()
	}
}

func (qp *QP) addCall(f func()) bool {
	qp.callMu.Lock()
	defer qp.callMu.Unlock()
	if qp.closed {
		return false
	}
	qp.calls = append(qp.calls, f)
	qp.hasCalls.Store(true)
	return true
}

// do is call, and waits for it; false: qp died first.
func (qp *QP) do(f func()) bool {
	if qp.lent.Load() {
		qp.lendMu.Lock()
		lent := qp.lent.Load()
		dead := lent && qp.dead
		if lent && !dead {
			qp.borrow(f)
		}
		qp.lendMu.Unlock()
		if lent {
			return !dead
		}
	}
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

// borrow does f on a QP that is lent.
//
// +checklocks:qp.lendMu
func (qp *QP) borrow(f func()) {
	qp.borrowed++
	f()
	if qp.borrowed--; qp.borrowed == 0 && qp.returned != nil {
		close(qp.returned)
		qp.returned = nil
	}
	qp.wake() // the owner looks for what f has left to do
}

// dieLent is die for a QP that is lent, as who asks for it may be the handler that the owner waits
// for: the owner finds it dead. false: it is not lent.
func (qp *QP) dieLent() bool {
	if !qp.lent.Load() {
		return false
	}
	qp.lendMu.Lock()
	defer qp.lendMu.Unlock()
	if !qp.lent.Load() {
		return false
	}
	if !qp.dead {
		qp.borrow(qp.die)
	}
	return true
}

// lend calls a handler, which may call do. The owner calls it, or who borrows the QP, and finds the
// QP changed then.
//
// +checklocksignore: the checker does not see who has lendMu.
func (qp *QP) lend(handler func()) {
	if qp.lent.Load() { // to the caller, by do
		qp.lendMu.Unlock()
		handler()
		qp.lendMu.Lock()
		return
	}
	qp.lent.Store(true)
	handler()
	qp.lendMu.Lock()
	for qp.borrowed > 0 {
		returned := make(chan struct{})
		qp.returned = returned
		qp.lendMu.Unlock()
		<-returned
		qp.lendMu.Lock()
	}
	qp.lent.Store(false)
	qp.lendMu.Unlock()
}

// close has nothing more called, and the QP's goroutine return.
func (qp *QP) close() {
	qp.callMu.Lock()
	qp.closed, qp.calls = true, nil
	qp.callMu.Unlock()
	qp.quit.Store(true)
	signal(qp.wakec)
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

// step does a turn of the work that there is: how many octets it has moved, and whether there is
// more.
func (qp *QP) step(own bool) (moved int, more bool) {
	called := qp.runCalls()
	if qp.dead {
		return 0, false
	}
	if !own && qp.mayBlock() {
		return 0, called || !qp.sendMapped() // the rest is for the goroutine
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
		moved, more = qp.link.Step()
		qp.work.Retire()
		if qp.link != nil {
			more = qp.progress() || more
		}
	}
	more = qp.flushIdle() || more
	if !more && qp.packets != nil {
		qp.packets.settled()
	}
	return moved, more
}
