package vnic

import (
	"fmt"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// qpNext holds, for each state, the states that may follow it: docs/qp-states.md.
//
//	          connect Q1            disconnect Q3, Q11          LLP closed Q13
//	Idle ───────────────────▶ RTS ───────────────────▶ Closing ────────────────▶ Idle
//	 │ Q2                      │ Q5-Q7, Q9               │ Q14
//	 │                         ▼                         ▼
//	 │                     Terminate ──── Q15 ───────▶ Error ──── reset Q16 ───▶ Idle
//	 └──────────────────────── RTS ── Q8, Q10, Q12 ─────▶┘
var qpNext = [...]uint16{
	rdma.QPIdle:      1<<rdma.QPRTS | 1<<rdma.QPError,
	rdma.QPRTS:       1<<rdma.QPClosing | 1<<rdma.QPTerminate | 1<<rdma.QPError,
	rdma.QPClosing:   1<<rdma.QPIdle | 1<<rdma.QPError,
	rdma.QPTerminate: 1 << rdma.QPError,
	rdma.QPError:     1 << rdma.QPIdle,
}

// roceNext is qpNext of a QP of RoCE: InfiniBand's states. Modify holds to the table of package
// attr, which has fewer, and more to say.
//
//	Reset ──▶ Init ──▶ RTR ──▶ RTS ◀──▶ SQD       a Send of UC or UD fails
//	  ▲                        ▲ └────── SQE ◀── RTS, SQD
//	  │                        └──────────┘
//	  └── all   all but Reset ──▶ Error
var roceNext = [...]uint16{
	rdma.QPReset: 1 << rdma.QPInit,
	rdma.QPInit:  1<<rdma.QPRTR | 1<<rdma.QPReset | 1<<rdma.QPError,
	rdma.QPRTR:   1<<rdma.QPRTS | 1<<rdma.QPReset | 1<<rdma.QPError,
	rdma.QPRTS:   1<<rdma.QPSQD | 1<<rdma.QPSQE | 1<<rdma.QPReset | 1<<rdma.QPError,
	rdma.QPSQD:   1<<rdma.QPRTS | 1<<rdma.QPSQE | 1<<rdma.QPReset | 1<<rdma.QPError,
	rdma.QPSQE:   1<<rdma.QPRTS | 1<<rdma.QPReset | 1<<rdma.QPError,
	rdma.QPError: 1 << rdma.QPReset,
}

// setState moves qp to state to; it is called by qp's owner, and nothing else assigns qp.state. An
// error says that there is no such transition, and nothing was done.
func (qp *QP) setState(to rdma.QPState) error {
	from := qp.State()
	if to == from {
		return nil
	}
	next := qpNext[:]
	if qp.packets != nil {
		next = roceNext[:]
	}
	if next[from]&(1<<to) == 0 {
		return fmt.Errorf("vnic: QP %d: no transition %v to %v", qp.num, from, to)
	}
	qp.state.Store(uint32(to))
	qp.log("state", "from", from, "to", to)
	if f := qp.tells.onState; f != nil {
		f(to)
	}
	if qp.packets != nil {
		qp.entered(to)
		return nil
	}
	t := &qp.dev.cfg.Timeouts
	switch to { // entry actions
	case rdma.QPRTS:
		qp.served, qp.tellDrained = true, false
	case rdma.QPClosing:
		qp.clearDeadlines()
		qp.setDeadline(deadlineEnd, t.Close)
		qp.work.Recv.Close(qp.dead)
		for range qp.work.Config().MaxRecvWR/wqe.StepMessages + 1 {
			if !qp.work.Recv.Flush(qp.vendorErr()) {
				break
			}
		}
		if qp.tellDrained { // a peer that has disconnected has drained nothing
			qp.ctx.event(rdma.EventSQDrained, qp.num, nil)
		}
	case rdma.QPTerminate:
		qp.clearDeadlines()
		qp.setDeadline(deadlineEnd, t.Terminate)
		qp.terminateBy = time.Now().Add(terminateMost * t.Terminate)
		qp.work.Recv.Close(qp.dead)
	case rdma.QPError, rdma.QPIdle:
		qp.clearDeadlines()
		qp.work.Recv.Close(qp.dead)
		qp.lastWQE = to == rdma.QPError && qp.work.Queues.Tap != nil
	case rdma.QPReset, rdma.QPInit, rdma.QPRTR, rdma.QPSQD, rdma.QPSQE: // of RoCE: see packets.go
	}
	return nil
}

// mustState is setState for a transition that the caller has checked.
func (qp *QP) mustState(to rdma.QPState) {
	if err := qp.setState(to); err != nil {
		panic(err)
	}
}

// entered does what a QP of RoCE has to do in state to.
func (qp *QP) entered(to rdma.QPState) {
	switch to {
	case rdma.QPError:
		qp.unlink()
		qp.lastWQE = qp.work.Queues.Tap != nil
	case rdma.QPReset:
		qp.unlink()
		qp.work.Discard()
		qp.endErr, qp.lastWQE = nil, false
	default:
	}
}
