package load

import (
	"context"
	"fmt"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A sendBatch is room for requests that are posted together, kept from one post to the next.
type sendBatch struct {
	wrs    []rdma.SendWR
	sges   [][1]rdma.SGE
	posted []time.Time // when each slot was, lane by lane
	ready  []*lane     // those with free slots
}

func (b *sendBatch) room(lanes, depth int) {
	if len(b.wrs) == 0 {
		b.wrs, b.sges = make([]rdma.SendWR, depth), make([][1]rdma.SGE, depth)
		b.posted, b.ready = make([]time.Time, lanes*depth), make([]*lane, 0, lanes)
	}
}

// stream sends, takes, or both at once.
func (e *Local) stream(ctx context.Context, a Amount, r *Result) error {
	if !e.sends() {
		if !e.takes() {
			return nil
		}
		return e.take(ctx, nil)
	}
	cancel := func() {} // one end alone needs no context of its own, which waiting would allocate for
	taken := make(chan error, 1)
	if e.takes() {
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() {
			err := e.take(ctx, nil)
			if err != nil {
				cancel()
			}
			taken <- err
		}()
	} else {
		taken <- nil
	}
	err := e.pump(ctx, &recorder{amount: a, start: time.Now(), r: r, size: e.spec.Size})
	if err == nil && !e.spec.Op.twoWay() {
		err = e.notify(ctx)
	}
	if err != nil {
		e.Abort()
		cancel()
	}
	return both(err, <-taken)
}

// pump keeps the spec's depth of requests outstanding on each lane until the amount is posted, and
// then waits until all has completed.
func (e *Local) pump(ctx context.Context, rec *recorder) error {
	depth := e.spec.Depth
	b := &e.send
	b.room(len(e.lanes), depth)
	b.ready = append(b.ready[:0], e.lanes...)
	left, out := rec.amount.Messages, 0
	stop := false
	for turn := 0; ; turn++ {
		if rec.amount.Messages > 0 {
			stop = stop || left == 0
		} else { // a run has a message, how short ever it is
			stop = stop || turn > 0 && time.Since(rec.start) >= rec.amount.Time
		}
		stop = stop || ctx.Err() != nil
		for _, l := range b.ready {
			l.touched = false
			if stop {
				continue
			}
			n := len(l.free)
			if rec.amount.Messages > 0 {
				n = min(n, left)
				left -= n
			}
			if err := e.postSlots(l, n); err != nil {
				return err
			}
			out += n
		}
		b.ready = b.ready[:0]
		if out == 0 {
			return ctx.Err()
		}
		wcs, err := e.poll(ctx, e.sendCQ, &e.sendIdle, e.sendWC[:])
		if err != nil {
			return err
		}
		now := time.Now()
		for i := range wcs {
			l, slot := e.lanes[wcs[i].ID>>laneShift], int(wcs[i].ID&slotMask)
			rec.add(1, now.Sub(b.posted[l.n*depth+slot]))
			out--
			if l.values != nil {
				if err := l.atomicDone(slot); err != nil {
					return err
				}
			}
			l.free = append(l.free, slot)
			if !l.touched {
				l.touched = true
				b.ready = append(b.ready, l)
			}
		}
	}
}

// postSlots posts n free slots of l with one doorbell.
func (e *Local) postSlots(l *lane, n int) error {
	if n == 0 {
		return nil
	}
	b := &e.send
	now := time.Now()
	for i := range n {
		slot := l.free[len(l.free)-1-i]
		l.slotWR(&b.wrs[i], &b.sges[i], slot)
		b.posted[l.n*e.spec.Depth+slot] = now
	}
	l.free = l.free[:len(l.free)-n]
	if _, err := l.qp.PostSends(b.wrs[:n]); err != nil {
		return fmt.Errorf("post: %w", err)
	}
	return nil
}
