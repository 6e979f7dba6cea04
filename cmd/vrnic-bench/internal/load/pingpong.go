package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/rdma"
)

// The rounds of a ping-pong are numbered from 1; the number is in the last octets of what is
// written. lastRound in its place says that there is no round more; it is not answered.
const lastRound = ^uint32(0)

// word is the last four octets of a slot, which the RNIC may be writing.
func (l *lane) word(off int) *uint32 {
	b := l.bytes(off)
	return (*uint32)(unsafe.Pointer(&b[len(b)-4]))
}

// A serve is room for the one request of a ping-pong.
type serve struct {
	wr  rdma.SendWR
	sge [1]rdma.SGE
}

// send posts the message of round v on l.
func (s *serve) send(ctx context.Context, l *lane, v uint32) error {
	if l.e.spec.Op == Write {
		atomic.StoreUint32(l.word(l.e.layout.source(0)), v)
	}
	l.slotWR(&s.wr, &s.sge, 0)
	return l.postQuiet(ctx, &s.wr)
}

// postQuiet posts wr. In the middle of each unsignaled requests one has a completion, which is
// taken at their end, when it has long been there.
func (l *lane) postQuiet(ctx context.Context, wr *rdma.SendWR) error {
	wr.Flags = 0
	if l.quiet == unsignaled/2 {
		wr.Flags = rdma.Signaled
	}
	if err := l.qp.PostSend(wr); err != nil {
		return fmt.Errorf("post: %w", err)
	}
	if l.quiet++; l.quiet == unsignaled {
		return l.settle(ctx)
	}
	return nil
}

// settle takes the completion that postQuiet has left on some lane, if any: they are alike.
func (l *lane) settle(ctx context.Context) error {
	owed := 0
	if l.quiet > unsignaled/2 {
		owed = 1
	}
	l.quiet = 0
	return l.e.drain(ctx, owed)
}

// settleAll settles all lanes.
func (e *Local) settleAll(ctx context.Context) error {
	for _, l := range e.lanes {
		if err := l.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// turn is the lane of round v.
func (e *Local) turn(v uint32) *lane { return e.lanes[int(v-1)%len(e.lanes)] }

// watch waits until the word at l's target is v, or that of the last round.
func (l *lane) watch(ctx context.Context, v uint32) (last bool, err error) {
	w := l.word(l.e.layout.target(0))
	for n := 0; ; n++ {
		switch atomic.LoadUint32(w) {
		case v:
			return false, nil
		case lastRound:
			return true, nil
		}
		if n > looksFirst {
			osYield(n, l.e.spec.Elsewhere)
		}
		if n%checkLooks == checkLooks-1 {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-l.conn.Done():
				return false, fmt.Errorf("the connection has ended: %v", l.conn.Err())
			default:
			}
		}
	}
}

// rounds calls round until the amount is reached, and says which one was next.
func (e *Local) rounds(
	ctx context.Context, a Amount, r *Result, round func(v uint32) error,
) (next uint32, err error) {
	rec := recorder{amount: a, start: time.Now(), r: r, size: e.spec.Size}
	before := rec.start
	for v := uint32(1); v < lastRound; v++ {
		if v%64 == 0 && ctx.Err() != nil {
			return v, ctx.Err()
		}
		if err := round(v); err != nil {
			return v, err
		}
		now := time.Now()
		rec.add(2, now.Sub(before))
		before = now
		if rec.over(now) {
			return v + 1, nil
		}
	}
	return lastRound, nil
}

// ping is A's part of a ping-pong.
func (e *Local) ping(ctx context.Context, a Amount, r *Result) error {
	var s serve
	next, err := e.rounds(ctx, a, r, func(v uint32) error {
		l := e.turn(v)
		if err := s.send(ctx, l, v); err != nil {
			return err
		}
		if e.spec.Op == Write {
			_, err := l.watch(ctx, v)
			return err
		}
		_, err := e.takeOne(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if e.spec.Op == Write {
		if err := s.send(ctx, e.turn(next), lastRound); err != nil {
			return err
		}
		return e.settleAll(ctx)
	}
	// One on the first lane is enough for B, and a receive for it is there.
	if err := e.settleAll(ctx); err != nil {
		return err
	}
	if err := e.lanes[0].notify(); err != nil {
		return err
	}
	return e.drain(ctx, 1)
}

// pong is B's part: it answers until there is no more.
func (e *Local) pong(ctx context.Context) error {
	var s serve
	for v := uint32(1); ; v++ {
		l := e.turn(v)
		var last bool
		var err error
		if e.spec.Op == Write {
			last, err = l.watch(ctx, v)
		} else {
			last, err = e.takeOne(ctx)
		}
		if err != nil {
			return err
		}
		if last {
			return e.settleAll(ctx)
		}
		if err := s.send(ctx, l, v); err != nil {
			return err
		}
	}
}

// pingPongHere is a ping-pong of Writes by one goroutine, which is both ends, since only one of
// them can be waited for at a time: two that watch would take a processor more from the RNICs.
func pingPongHere(ctx context.Context, a, b *Local, amount Amount) (Result, error) {
	r := Result{Times: hist.New(), Start: clock()}
	var sa, sb serve
	_, err := a.rounds(ctx, amount, &r, func(v uint32) error {
		to, from := b.turn(v), a.turn(v)
		if err := sa.send(ctx, from, v); err != nil {
			return a.fail(err)
		}
		if _, err := to.watch(ctx, v); err != nil {
			return b.fail(err)
		}
		if err := sb.send(ctx, to, v); err != nil {
			return b.fail(err)
		}
		_, err := from.watch(ctx, v)
		return a.fail(err)
	})
	for _, e := range []*Local{a, b} {
		if err == nil {
			err = e.fail(e.settleAll(ctx))
		}
	}
	r.End = clock()
	return r, err
}
