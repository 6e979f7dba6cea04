package load

import (
	"context"
	"fmt"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A sendBatch is room for requests that are posted together, kept from one post to the next.
type sendBatch struct {
	wrs  []rdma.SendWR
	sges [][1]rdma.SGE
}

func (b *sendBatch) room(n int) {
	if len(b.wrs) < n {
		b.wrs, b.sges = make([]rdma.SendWR, n), make([][1]rdma.SGE, n)
	}
}

// stream keeps spec.Depth requests outstanding at a.
func (p *Pair) stream(ctx context.Context, r *Result) error {
	depth := p.spec.Depth
	p.send.room(depth)
	posted := make([]time.Time, depth) // when each slot was
	free := make([]int, depth)
	for i := range free {
		free[i] = i
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	taken := make(chan error, 1)
	if p.spec.Op != Read {
		go func() { taken <- p.take(ctx) }()
	}

	start := time.Now()
	err := p.pump(ctx, r, start, posted, free)
	if p.spec.Op != Read {
		if err == nil {
			err = p.a.notify(ctx)
		}
		if err != nil {
			cancel()
			p.a.qp.Abort()
		}
		err = both(err, <-taken)
	}
	r.Elapsed = time.Since(start)
	return err
}

// pump posts and polls until it is time to stop, and then until all has completed.
func (p *Pair) pump(ctx context.Context, r *Result, start time.Time, posted []time.Time, free []int) error {
	e := p.a
	left := p.spec.Messages
	stop := false
	for {
		now := time.Now()
		if p.spec.Messages == 0 && now.Sub(start) >= p.spec.Time || ctx.Err() != nil {
			stop = true
		}
		n := 0
		for !stop && len(free) > 0 {
			if p.spec.Messages > 0 {
				if left == 0 {
					stop = true
					break
				}
				left--
			}
			slot := free[len(free)-1]
			free = free[:len(free)-1]
			e.slotWR(&p.send.wrs[n], &p.send.sges[n], p.spec.Op, slot)
			posted[slot] = now
			n++
		}
		if n > 0 {
			if _, err := e.qp.PostSends(p.send.wrs[:n]); err != nil {
				return fmt.Errorf("post: %w", err)
			}
		}
		if len(free) == len(posted) {
			return ctx.Err()
		}
		wcs, err := e.poll(ctx, e.sendCQ, &e.sendIdle)
		if err != nil {
			return err
		}
		now = time.Now()
		for i := range wcs {
			slot := int(wcs[i].ID)
			r.Times.Add(now.Sub(posted[slot]))
			r.Messages++
			free = append(free, slot)
		}
	}
}

// take is what the other end does: it posts each receive again, until the notice.
func (p *Pair) take(ctx context.Context) error {
	e := p.b
	recvs := make([]rdma.RecvWR, len(e.wc))
	sges := make([][1]rdma.SGE, len(e.wc))
	for ended := false; !ended; {
		wcs, err := e.poll(ctx, e.recvCQ, &e.recvIdle)
		if err != nil {
			return err
		}
		for i := range wcs {
			slot := int(wcs[i].ID)
			recvs[i] = rdma.RecvWR{ID: wcs[i].ID, SGEs: e.sge(&sges[i], e.layout.target(slot), e.layout.size)}
			ended = ended || wcs[i].ByteLen == 0
		}
		if _, err := e.qp.PostRecvs(recvs[:len(wcs)]); err != nil {
			return fmt.Errorf("%s: post receives: %w", e.name, err)
		}
	}
	return nil
}
