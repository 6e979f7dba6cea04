package load

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// slotSeed is the seed of a slot's content, where role's end writes it from.
func slotSeed(seed uint64, role Role, lane, slot int) uint64 {
	s := seed + uint64(lane)<<20 + uint64(slot)
	if role == B {
		s ^= 1 << 63
	}
	return mix(s)
}

func (r Role) other() Role {
	if r == A {
		return B
	}
	return A
}

// Prepare implements End.
func (e *Local) Prepare(seed uint64) error {
	e.seed = seed
	for _, l := range e.lanes {
		l.prepare(seed)
	}
	return nil
}

func (l *lane) prepare(seed uint64) {
	at, role := l.e.layout, l.e.role
	for i := range at.sources {
		if !l.e.spec.Op.Atomic() {
			fill(l.bytes(at.source(i)), slotSeed(seed, role, l.n, i))
		}
	}
	for i := range at.targets {
		clear(l.bytes(at.target(i)))
	}
	for i := range l.values {
		l.values[i] = 0
		if seed != 0 { // each end's targets hold what the other knows
			l.values[i] = slotSeed(seed, role.other(), l.n, i)
			binary.NativeEndian.PutUint64(l.bytes(at.target(i)), slotSeed(seed, role, l.n, i))
		}
	}
}

// moves and arrives say in which directions a lap goes.
func (e *Local) moves() bool   { return e.sends() || e.spec.Pattern == PingPong }
func (e *Local) arrives() bool { return e.takes() || e.spec.Pattern == PingPong }

// Move implements End.
func (e *Local) Move(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arrived := make(chan error, 1)
	if e.arrives() {
		next := make([]int, len(e.lanes)) // message of each lane
		go func() {
			arrived <- e.take(ctx, func(l *lane, wc *rdma.WC) error {
				next[l.n]++
				return l.arrived(wc, next[l.n]-1)
			})
		}()
	} else {
		arrived <- nil
	}
	var err error
	if e.moves() {
		if err = e.moveLap(ctx); err != nil {
			e.Abort() // so that the other goroutine does not wait
			cancel()
		}
	}
	return e.over(both(err, <-arrived))
}

// moveLap posts each slot once and waits until e's queues are empty; notices go behind what the
// peer's program takes.
func (e *Local) moveLap(ctx context.Context) error {
	var wr rdma.SendWR
	var s [1]rdma.SGE
	for _, l := range e.lanes {
		for i := range e.spec.Depth {
			l.slotWR(&wr, &s, i)
			if err := l.qp.PostSend(&wr); err != nil {
				return fmt.Errorf("post: %w", err)
			}
		}
	}
	if err := e.drain(ctx, len(e.lanes)*e.spec.Depth); err != nil {
		return err
	}
	if e.spec.Op.twoWay() {
		return nil
	}
	return e.notify(ctx)
}

// arrived compares the n-th message of a lap on l, which wc tells of.
func (l *lane) arrived(wc *rdma.WC, n int) error {
	at := l.e.layout
	var where int
	switch l.e.spec.Op {
	case Send:
		if int(wc.ByteLen) != at.size {
			return fmt.Errorf("%w: Send %d has %d octets, want %d", errData, n, wc.ByteLen, at.size)
		}
		where = int(wc.ID & slotMask)
	case WriteImm:
		if wc.Flags&rdma.WCWithImm == 0 || wc.Imm != uint32(n) || wc.ImmLow != 0 {
			return fmt.Errorf("%w: immediate data %#x %#x behind Write %d", errData, wc.Imm, wc.ImmLow, n)
		}
		where = n
	default:
		return fmt.Errorf("%w: a message of %d octets where Writes go", errData, wc.ByteLen)
	}
	return l.compare(at.target(where), n)
}

// compare compares what is at off with what the peer's slot had.
func (l *lane) compare(off, slot int) error {
	if err := verify(l.bytes(off), slotSeed(l.e.seed, l.e.role.other(), l.n, slot)); err != nil {
		return fmt.Errorf("%w: %s %d of QP %d: %w", errData, l.e.spec.Op, slot, l.n, err)
	}
	return nil
}

// Check implements End.
func (e *Local) Check() error {
	for _, l := range e.lanes {
		if err := l.check(); err != nil {
			return e.over(err)
		}
	}
	return nil
}

func (l *lane) check() error {
	e, at := l.e, l.e.layout
	for i := range e.spec.Depth {
		switch {
		case e.spec.Op == Read && e.sends(), e.spec.Op == Write && e.arrives():
			if err := l.compare(at.target(i), i); err != nil {
				return err
			}
		case e.spec.Op.Atomic():
			if e.sends() {
				if err := l.atomicDone(i); err != nil {
					return err
				}
			}
			if e.role == B || e.spec.Bidir {
				got := binary.NativeEndian.Uint64(l.bytes(at.target(i)))
				if want := afterAtomic(e.spec.Op, slotSeed(e.seed, e.role, l.n, i)); got != want {
					return fmt.Errorf("%w: a %s has left %016x at slot %d, want %016x", errData, e.spec.Op,
						got, i, want)
				}
			}
		}
	}
	return nil
}
