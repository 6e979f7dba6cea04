package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/rdma"
)

// A Pair is two connected ends, made for one Spec. One goroutine uses it.
type Pair struct {
	spec Spec
	a, b *end
	seed uint64
	send sendBatch
}

// Connect makes everything that spec needs on devices a and b and connects a to b's address addr.
func Connect(ctx context.Context, a, b rdma.Device, addr netip.Addr, spec Spec, param rdma.ConnParam) (p *Pair, err error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	p = &Pair{spec: spec, seed: uint64(time.Now().UnixNano())}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.a, err = newEnd("end A", a, spec); err != nil {
		return nil, err
	}
	if p.b, err = newEnd("end B", b, spec); err != nil {
		return nil, err
	}
	for _, e := range []*end{p.a, p.b} {
		for i := range e.layout.targets {
			if err := e.postRecv(uint64(i), e.layout.target(i), e.layout.size); err != nil {
				return nil, err
			}
		}
	}
	return p, connectEnds(ctx, p.a, p.b, addr, param)
}

// Close ends the connection and gives everything back.
func (p *Pair) Close() {
	for _, e := range []*end{p.a, p.b} {
		if e != nil {
			e.close()
		}
	}
}

// Run measures p's Spec once, and compares the data before and after.
func (p *Pair) Run(ctx context.Context) (r Result, err error) {
	if err := p.Verify(ctx); err != nil {
		return r, fmt.Errorf("before: %w", err)
	}
	if r, err = p.Measure(ctx); err != nil {
		return r, err
	}
	if err := p.Verify(ctx); err != nil {
		return r, fmt.Errorf("after: %w", err)
	}
	return r, nil
}

// Measure is Run without the comparisons.
func (p *Pair) Measure(ctx context.Context) (r Result, err error) {
	r.Times = new(hist.Hist)
	switch {
	case !p.spec.PingPong():
		err = p.stream(ctx, &r)
	case p.spec.Op == Write:
		err = p.pingPongWrite(ctx, &r)
	default:
		err = p.pingPongSend(ctx, &r)
	}
	if err != nil {
		err = fmt.Errorf("%s of %d octets, depth %d: %w", p.spec.Op, p.spec.Size, p.spec.Depth, err)
	}
	return r, err
}

// Verify moves each slot once with fresh content and compares.
func (p *Pair) Verify(ctx context.Context) error {
	if err := p.lap(ctx, p.a, p.b); err != nil {
		return err
	}
	if p.spec.PingPong() {
		return p.lap(ctx, p.b, p.a)
	}
	return nil
}

// lap moves each slot from one end to the other, or by Reads of from the other way round.
func (p *Pair) lap(ctx context.Context, from, to *end) error {
	src, dst := from, to
	if p.spec.Op == Read {
		src, dst = to, from
	}
	l := src.layout
	p.seed += 1 << 32
	for i := range p.spec.Depth {
		fill(src.bytes(l.source(i), l.size), p.seed+uint64(i)<<16)
	}
	if p.spec.Op != Send {
		clear(dst.bytes(l.target(0), l.targets*l.size))
	}
	arrived := make(chan error, 1)
	go func() { arrived <- p.arrive(ctx, to) }()
	err := p.moveLap(ctx, from)
	if err != nil {
		from.qp.Abort() // so that the other end does not wait
	}
	err = both(err, <-arrived)
	if err != nil || p.spec.Op == Send {
		return err
	}
	for i := range p.spec.Depth {
		if err := verify(dst.bytes(l.target(i), l.size), p.seed+uint64(i)<<16); err != nil {
			return fmt.Errorf("%w: %s %d: %w", errData, p.spec.Op, i, err)
		}
	}
	return nil
}

// both is the errors of both ends: the one's may only be a consequence of the other's.
func both(a, b error) error {
	if a != nil && b != nil {
		return fmt.Errorf("%w; %w", a, b)
	}
	return errors.Join(a, b)
}

var errData = errors.New("the data arrived changed")

// moveLap posts each slot once and waits until e's queue is empty; a notice goes behind Writes.
func (p *Pair) moveLap(ctx context.Context, e *end) error {
	var wr rdma.SendWR
	var s [1]rdma.SGE
	for i := range p.spec.Depth {
		e.slotWR(&wr, &s, p.spec.Op, i)
		if err := e.qp.PostSend(&wr); err != nil {
			return fmt.Errorf("post: %w", err)
		}
	}
	if err := e.drain(ctx, p.spec.Depth); err != nil || p.spec.Op == Send {
		return err
	}
	return e.notify(ctx)
}

// drain waits for n completions of e's send queue.
func (e *end) drain(ctx context.Context, n int) error {
	for n > 0 {
		wcs, err := e.poll(ctx, e.sendCQ, &e.sendIdle)
		if err != nil {
			return err
		}
		n -= len(wcs)
	}
	return nil
}

// notify sends the notice: a Send of nothing, so that the other end knows that all before it has
// arrived.
func (e *end) notify(ctx context.Context) error {
	if err := e.qp.PostSend(&rdma.SendWR{ID: idNotice, Op: rdma.OpSend, Flags: rdma.Signaled}); err != nil {
		return fmt.Errorf("post notice: %w", err)
	}
	return e.drain(ctx, 1)
}

// arrive waits at e for a lap: the notice, or each Send, which it compares.
func (p *Pair) arrive(ctx context.Context, e *end) error {
	want := 1
	if p.spec.Op == Send {
		want = p.spec.Depth
	}
	for got := 0; got < want; {
		wcs, err := e.poll(ctx, e.recvCQ, &e.recvIdle)
		if err != nil {
			return err
		}
		for i := range wcs {
			if err := p.arrived(e, &wcs[i], got); err != nil {
				return err
			}
			got++
		}
	}
	return nil
}

// arrived compares what the receive wc holds, the n-th of a lap, and posts it again.
func (p *Pair) arrived(e *end, wc *rdma.WC, n int) error {
	want := p.spec.Size
	if p.spec.Op != Send {
		want = 0
	}
	if int(wc.ByteLen) != want {
		return fmt.Errorf("%w: Send %d has %d octets, want %d", errData, n, wc.ByteLen, want)
	}
	off := e.layout.target(int(wc.ID))
	if err := verify(e.bytes(off, want), p.seed+uint64(n)<<16); err != nil {
		return fmt.Errorf("%w: Send %d: %w", errData, n, err)
	}
	return e.postRecv(wc.ID, off, e.layout.size)
}
