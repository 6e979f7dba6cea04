package wqe

import (
	"slices"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

// Lost as the delay of a doorbell: the request is seen when the next one is posted.
const Lost time.Duration = -1

// A gate is a send queue of whose requests the card learns late, as their doorbells are late or
// lost. What is behind one waits with it.
type gate struct {
	queue.SendQueue
	late func(wr *rdma.SendWR) time.Duration // 0: at once
	over func() bool                         // nothing waits any more, for good
	down func() bool                         // nothing waits: there is no connection
	wake func()

	kept  []rdma.SendWR // the oldest first: the one that waits, and one more if that was lost
	until time.Time     // of the oldest; zero: it was lost
}

// Gate has late say of each request that is posted from now on how late its doorbell is, until over
// says that this is over. Nothing waits while down says that there is no connection. The QP's owner
// calls it.
func (r *Requests) Gate(late func(wr *rdma.SendWR) time.Duration, over, down func() bool) {
	q := &r.Queues
	q.Send = &gate{SendQueue: needed(q.Send), late: late, over: over, down: down, wake: r.owner.Wake}
}

// needed is q without the gates that are over and hold nothing: else each that there ever was would
// be asked for each request.
func needed(q queue.SendQueue) queue.SendQueue {
	g, ok := q.(*gate)
	if !ok {
		return q
	}
	g.SendQueue = needed(g.SendQueue)
	if len(g.kept) == 0 && g.over() {
		return g.SendQueue
	}
	return g
}

func (g *gate) open() bool { return g.over() || g.down() }

// Next implements queue.SendQueue.
func (g *gate) Next(wr *rdma.SendWR) (ok bool, err error) {
	if len(g.kept) > 0 {
		return g.nextKept(wr)
	}
	if ok, err = g.SendQueue.Next(wr); !ok || g.open() {
		return ok, err
	}
	d := g.late(wr)
	if d == 0 {
		return true, nil
	}
	g.keep(wr)
	if g.until = (time.Time{}); d > 0 {
		g.until = time.Now().Add(d)
		time.AfterFunc(d, g.wake)
	}
	return false, nil
}

// nextKept takes the oldest of those that wait, if its time has come.
func (g *gate) nextKept(wr *rdma.SendWR) (ok bool, err error) {
	switch {
	case len(g.kept) > 1, g.open():
	case !g.until.IsZero():
		if time.Now().Before(g.until) {
			return false, nil
		}
	default:
		if ok, err = g.SendQueue.Next(wr); !ok {
			return false, err
		}
		g.keep(wr)
	}
	k := &g.kept[0]
	sges, inline := append(wr.SGEs[:0], k.SGEs...), append(wr.Inline[:0], k.Inline...)
	*wr = *k
	wr.SGEs, wr.Inline = sges, inline
	g.kept = slices.Delete(g.kept, 0, 1)
	if len(g.kept) > 0 {
		g.until = time.Unix(0, 1) // its own doorbell has come
	}
	return true, nil
}

// keep has wr wait.
func (g *gate) keep(wr *rdma.SendWR) {
	k := *wr
	k.SGEs, k.Inline = slices.Clone(wr.SGEs), slices.Clone(wr.Inline)
	g.kept = append(g.kept, k)
}
