package shm

import (
	"slices"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// This file has who polls a CQ find what has come and completed directly: each poll looks at a few
// paths, and at those of the others of which a board says that they have something.
// docs/direct.md#many.

// makePlace has q have a place for one more of whose direct paths it is to be found whether they
// have something, qp: false if it cannot. It may be a call to the daemon.
func (q *compQueue) makePlace(qp *queuePair) bool {
	q.mu.Lock()
	few := len(q.directs) < fewDirect
	if !few && q.many == nil {
		q.many = ring.NewBoard[directPath]()
	}
	ready := few || qp.recvCQ != q || q.many.Comes()
	full := !few && q.many.IsFull()
	q.mu.Unlock()
	if ready || full {
		return !full
	}
	mem, bits := qp.askBits(rpc.OpDirectBits)
	if mem == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mem == nil || q.many.Comes() { // closed, or another one has it by now
		mem.Release()
		return q.mem != nil
	}
	q.many.Use(bits)
	q.come, q.bits = bits, mem
	return true
}

// give has q look at d, by a place in its board, or else with each poll: q.mu is held. Where others
// have come first since makePlace it may have no board, and looks at some more.
func (q *compQueue) give(d *directPath) (place int) {
	if m := q.many; m != nil && len(q.directs) >= fewDirect && (d.qp.recvCQ != q || m.Comes()) {
		if place, ok := m.Add(d); ok {
			return place
		}
	}
	q.directs = append(q.directs, d)
	return -1
}

// takeBack undoes give: q.mu is held.
func (q *compQueue) takeBack(d *directPath, place int) {
	if place >= 0 {
		if q.many != nil { // else q is closed
			q.many.Remove(place)
		}
		return
	}
	q.directs = slices.DeleteFunc(q.directs, func(x *directPath) bool { return x == d })
}

// hasDirect reports whether something may come or complete directly: q.mu is held.
func (q *compQueue) hasDirect() bool { return len(q.directs) != 0 || q.many != nil }

// turn has one of many be looked at although nothing says so, now and then: q.mu is held.
func (q *compQueue) turn() {
	if q.many == nil {
		return
	}
	if place, d := q.many.Turn(); d != nil && d.qp.recvCQ == q && d.in.Stamped(d.next) {
		q.many.Mark(place)
	}
}

// look finds what has come of the next receives, up to most of each: q.mu is held.
func (q *compQueue) look(most uint32) {
	for _, d := range q.directs {
		if d.qp.recvCQ == q {
			d.look(most)
		}
	}
	m := q.many
	if m == nil {
		return
	}
	m.Take(ring.BoardCome)
	for p := m.Next(ring.BoardCome, 0); p >= 0; p = m.Next(ring.BoardCome, p+1) {
		if d := m.At(p); d != nil && d.qp.recvCQ == q {
			d.look(most)
		} else {
			m.Clear(ring.BoardCome, p)
		}
	}
}

// sends and receives take what has completed, and what has come by look. Who has had a place in wc
// last waits for all others: q.mu is held.
func (q *compQueue) sends(wc []rdma.WC) (n int) {
	if q.many != nil {
		q.many.Take(ring.BoardDone)
		n = q.fromMany(ring.BoardDone, wc)
	}
	for _, d := range q.directs {
		if d.qp.sendCQ == q {
			n += d.sends(wc[n:])
		}
	}
	return n
}

func (q *compQueue) receives(wc []rdma.WC) (n int) {
	if q.many != nil && q.manyFirst {
		n = q.fromMany(ring.BoardCome, wc)
	}
	for _, d := range q.directs {
		if d.qp.recvCQ == q {
			n += d.receives(wc[n:])
		}
	}
	if q.many != nil && !q.manyFirst {
		n += q.fromMany(ring.BoardCome, wc[n:])
	}
	q.manyFirst = !q.manyFirst
	return n
}

func (q *compQueue) fromMany(kind int, wc []rdma.WC) (n int) {
	m, from := q.many, q.manyFrom[kind]
	for pass := range 2 { // from there on, and then up to there
		for p := m.Next(kind, from*(1-pass)); p >= 0 && (pass == 0 || p < from); p = m.Next(kind, p+1) {
			if n == len(wc) {
				q.manyFrom[kind] = p
				return n
			}
			if d := m.At(p); kind == ring.BoardCome {
				n += d.receives(wc[n:])
				if !d.bad && !d.in.Stamped(d.next) {
					m.Clear(kind, p)
				}
			} else {
				if d != nil && d.qp.sendCQ == q {
					n += d.sends(wc[n:])
				}
				if d == nil || d.sentProd.Load() == d.sentCons.Load() {
					m.Clear(kind, p)
				}
			}
		}
	}
	return n
}
