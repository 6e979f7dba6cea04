package load

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// A Pair is two connected ends, made for one Spec. One goroutine uses it.
type Pair struct {
	spec Spec
	a, b End
	seed uint64
	// SetUp is how long it took to connect all QPs.
	SetUp time.Duration
}

// Connect joins a with b, which listens at addr with any port, and has both from then on, also if
// it fails.
func Connect(ctx context.Context, a, b End, addr netip.Addr, spec Spec) (*Pair, error) {
	p := &Pair{spec: spec, a: a, b: b, seed: uint64(time.Now().UnixNano())}
	if err := p.connect(ctx, addr); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pair) connect(ctx context.Context, addr netip.Addr) error {
	at, err := p.b.Listen(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := time.Now()
	defer func() { p.SetUp = time.Since(start) }()
	return p.both(func(e End) error {
		var err error
		if e == p.b {
			err = e.Accept(ctx)
		} else {
			err = e.Connect(ctx, at)
		}
		if err != nil {
			cancel() // a listener does not see that nobody comes
		}
		return err
	})
}

// both has both ends do f at the same time.
func (p *Pair) both(f func(End) error) error {
	other := make(chan error, 1)
	go func() { other <- f(p.b) }()
	err := f(p.a)
	return both(err, <-other)
}

// Close ends the connections and gives everything back. B is first: whoever closes first has the
// TIME-WAIT, and at A, which connects, each would keep a port for a minute, of 16384 for all.
func (p *Pair) Close() {
	p.b.Close()
	p.a.Close()
}

// Verify moves each slot once with fresh content and compares: in both directions if messages go
// so.
func (p *Pair) Verify(ctx context.Context) error {
	p.seed++
	for _, step := range []func(End) error{
		func(e End) error { return e.Prepare(p.seed) },
		func(e End) error { return e.Move(ctx) },
		End.Check,
	} {
		if err := p.both(step); err != nil {
			return p.what(err)
		}
	}
	return nil
}

// Measure puts load on p for the amount.
func (p *Pair) Measure(ctx context.Context, amount Amount) (r Result, err error) {
	if p.spec.Pattern == PingPong && p.spec.Op == Write {
		// The rounds of before are not those of now.
		if err := p.both(func(e End) error { return e.Prepare(0) }); err != nil {
			return r, p.what(err)
		}
		a, ok := p.a.(*Local)
		b, okB := p.b.(*Local)
		if ok && okB {
			r, err = pingPongHere(ctx, a, b, amount)
			return r, p.what(err)
		}
	}
	results := make(chan Result, 2)
	err = p.both(func(e End) error {
		r, err := e.Run(ctx, amount)
		results <- r
		return err
	})
	if err != nil {
		return r, p.what(err)
	}
	r.Merge(<-results)
	r.Merge(<-results)
	return r, nil
}

// what says what failed.
func (p *Pair) what(err error) error {
	if err != nil {
		err = fmt.Errorf("%s of %d octets, depth %d, %d QPs: %w", p.spec.Op, p.spec.Size, p.spec.Depth,
			p.spec.QPs, err)
	}
	return err
}
