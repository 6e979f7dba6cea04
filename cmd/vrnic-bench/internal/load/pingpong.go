package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/rdma"
)

// The rounds of a ping-pong are numbered; the number is in the last octets of what is written.

// word is the last four octets of a slot, which the RNIC may be writing.
func (e *end) word(off int) *uint32 {
	b := e.bytes(off+e.layout.size-4, 4)
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}

// postQuiet posts wr. In the middle of each unsignaled requests one has a completion, which is
// taken at their end, when it has long been there.
func (e *end) postQuiet(ctx context.Context, wr *rdma.SendWR) error {
	wr.Flags = 0
	if e.quiet == unsignaled/2 {
		wr.Flags = rdma.Signaled
	}
	if err := e.qp.PostSend(wr); err != nil {
		return fmt.Errorf("%s: post: %w", e.name, err)
	}
	if e.quiet++; e.quiet == unsignaled {
		return e.settle(ctx)
	}
	return nil
}

// settle takes the completion that postQuiet has left, if any.
func (e *end) settle(ctx context.Context) error {
	owed := 0
	if e.quiet > unsignaled/2 {
		owed = 1
	}
	e.quiet = 0
	return e.drain(ctx, owed)
}

// watch waits until the word at e's target is v.
func (e *end) watch(ctx context.Context, v uint32) error {
	w := e.word(e.layout.target(0))
	for n := 0; atomic.LoadUint32(w) != v; n++ {
		if n > looksFirst {
			osYield(n, e.sendIdle.elsewhere)
		}
		if n%1024 == 1023 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-e.conn.Done():
				return fmt.Errorf("%s: the connection has ended: %v", e.name, e.conn.Err())
			default:
			}
		}
	}
	return nil
}

// number makes v the word of e's source.
func (e *end) number(v uint32) { atomic.StoreUint32(e.word(e.layout.source(0)), v) }

// pingPongWrite has a write to b and b write back, in turn. One goroutine is both, since only one
// of them can be waited for at a time: two that watch would take a processor more from the RNICs.
func (p *Pair) pingPongWrite(ctx context.Context, r *Result) error {
	ends := [2]*end{p.a, p.b}
	var wrs [2]rdma.SendWR
	var sges [2][1]rdma.SGE
	for i, e := range ends {
		atomic.StoreUint32(e.word(e.layout.target(0)), 0)
		e.slotWR(&wrs[i], &sges[i], Write, 0)
	}
	err := p.pingPong(ctx, r, func(v uint32) error {
		for i, e := range ends {
			e.number(v)
			if err := e.postQuiet(ctx, &wrs[i]); err != nil {
				return err
			}
			if err := e.peer.watch(ctx, v); err != nil {
				return err
			}
		}
		return nil
	})
	for _, e := range ends {
		if err == nil {
			err = e.settle(ctx)
		}
	}
	return err
}

// pingPong has rounds, numbered from 1, until the spec is fulfilled.
func (p *Pair) pingPong(ctx context.Context, r *Result, round func(v uint32) error) error {
	start := time.Now()
	before := start
	for v := uint32(1); v != 0; v++ {
		if v%64 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := round(v); err != nil {
			return err
		}
		now := time.Now()
		r.Times.Add(now.Sub(before))
		r.Messages += 2
		before = now
		r.Elapsed = now.Sub(start)
		if p.spec.Messages > 0 {
			if r.Messages >= uint64(p.spec.Messages) {
				return nil
			}
		} else if r.Elapsed >= p.spec.Time {
			return nil
		}
	}
	return nil
}

// pingPongSend has a send to b and b send back, in turn.
func (p *Pair) pingPongSend(ctx context.Context, r *Result) error {
	a := p.a
	back := make(chan error, 1)
	go func() { back <- p.b.sendBack(ctx) }()
	var wr rdma.SendWR
	var s [1]rdma.SGE
	a.slotWR(&wr, &s, Send, 0)
	err := p.pingPong(ctx, r, func(uint32) error {
		if err := a.postQuiet(ctx, &wr); err != nil {
			return err
		}
		_, err := a.takeOne(ctx)
		return err
	})
	if err == nil {
		err = a.settle(ctx)
	}
	if err == nil {
		err = a.notify(ctx)
	}
	if err != nil {
		a.qp.Abort()
	}
	return both(err, <-back)
}

// takeOne waits for a Send, posts its receive again, and returns its length.
func (e *end) takeOne(ctx context.Context) (uint32, error) {
	wcs, err := e.poll(ctx, e.recvCQ, &e.recvIdle)
	if err != nil {
		return 0, err
	}
	if len(wcs) != 1 {
		return 0, fmt.Errorf("%s: %d Sends at once in a ping-pong", e.name, len(wcs))
	}
	n := wcs[0].ByteLen
	if err := e.postRecv(wcs[0].ID, e.layout.target(int(wcs[0].ID)), e.layout.size); err != nil {
		return 0, fmt.Errorf("%s: post receive: %w", e.name, err)
	}
	return n, nil
}

// sendBack answers each Send with one, until the notice.
func (e *end) sendBack(ctx context.Context) error {
	var wr rdma.SendWR
	var s [1]rdma.SGE
	e.slotWR(&wr, &s, Send, 0)
	for {
		n, err := e.takeOne(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			return e.settle(ctx)
		}
		if err := e.postQuiet(ctx, &wr); err != nil {
			return err
		}
	}
}
