package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

var addrB = netip.MustParseAddr("10.0.0.2")

// specOf is a good Spec.
func specOf(op Op, size, depth int) Spec {
	if op.Atomic() {
		size = MinSize
	}
	return Spec{Op: op, Size: size, Depth: depth, QPs: 1, Pattern: PatternFor(op, depth),
		Wait: Adaptive}
}

// separate hides that an End is a Local, as one in another process is hidden.
type separate struct{ End }

// locals are the ends of spec on two devices of n.
func locals(t *testing.T, n *fakeNet, spec Spec) (a, b *Local) {
	t.Helper()
	a, err := NewLocal(n.device("a"), spec, A)
	if err != nil {
		t.Fatal(err)
	}
	b, err = NewLocal(n.device("b"), spec, B)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func connect(t *testing.T, n *fakeNet, spec Spec, apart bool) *Pair {
	t.Helper()
	a, b := locals(t, n, spec)
	var ends [2]End = [2]End{a, b}
	if apart {
		ends = [2]End{separate{a}, separate{b}}
	}
	p, err := Connect(ctxOf(t), ends[0], ends[1], addrB, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// variants are all Specs with these operations, depths and numbers of QPs that can be.
func variants(ops []Op, depths, qps []int) (specs []Spec) {
	for _, op := range ops {
		for _, depth := range depths {
			for _, n := range qps {
				for _, pattern := range Patterns {
					for _, bidir := range []bool{false, true} {
						for _, wait := range Waits {
							s := specOf(op, 64, depth)
							s.QPs, s.Pattern, s.Bidir, s.Wait = n, pattern, bidir, wait
							if s.Check() == nil {
								specs = append(specs, s)
							}
						}
					}
				}
			}
		}
	}
	return specs
}

func (s Spec) name() string {
	return fmt.Sprintf("%s depth %d %s QPs %d bidir %v %s", s.Op, s.Depth, s.Pattern, s.QPs,
		s.Bidir, s.Wait)
}

// verified is what a run with its comparisons is.
func verified(t *testing.T, ctx context.Context, p *Pair, a Amount) (r Result, err error) {
	if err := p.Verify(ctx); err != nil {
		return r, fmt.Errorf("before: %w", err)
	}
	if r, err = p.Measure(ctx, a); err != nil {
		return r, err
	}
	settled(t, p)
	if err := p.Verify(ctx); err != nil {
		return r, fmt.Errorf("after: %w", err)
	}
	return r, nil
}

func TestRun(t *testing.T) {
	all := variants(Ops, []int{1, 2, 16}, []int{1, 3})
	if len(all) != 216+16 { // streams, and ping-pongs, less those that Check refuses
		t.Errorf("%d variants", len(all))
	}
	for _, spec := range all {
		for _, apart := range []bool{false, true} {
			for _, messages := range []int{2, 200} {
				t.Run(fmt.Sprintf("%s apart %v, %d messages", spec.name(), apart, messages),
					func(t *testing.T) {
						p := connect(t, &fakeNet{}, spec, apart)
						for range 2 { // a Pair can run more than once
							r, err := verified(t, ctxOf(t), p, Amount{Messages: messages})
							if err != nil {
								t.Fatal(err)
							}
							want := uint64(messages)
							if spec.Bidir {
								want *= 2
							}
							if r.Messages != want || r.Octets != want*uint64(spec.Size) || r.Elapsed() <= 0 ||
								r.BitsPerSecond() <= 0 {
								t.Errorf("%+v", r)
							}
							if spec.Pattern == PingPong {
								want /= 2
							}
							if r.Times.Count() != want {
								t.Errorf("%d times, want %d", r.Times.Count(), want)
							}
						}
					})
			}
		}
	}
}

// settled looks that nothing of a run is left for the next one to stumble over.
func settled(t *testing.T, p *Pair) {
	t.Helper()
	for _, end := range []End{p.a, p.b} {
		if s, ok := end.(separate); ok {
			end = s.End
		}
		e := end.(*Local)
		if n, err := e.sendCQ.Poll(e.sendWC[:]); n != 0 || err != nil || e.drained != 0 {
			t.Errorf("end %s: %d completions are left, and %d that nobody has asked for: %v", e.role, n,
				e.drained, err)
		}
		if n, err := e.recvCQ.Poll(e.recvWC[:]); n != 0 || err != nil {
			t.Errorf("end %s: %d messages that nobody has taken: %v", e.role, n, err)
		}
		for _, l := range e.lanes {
			if l.quiet != 0 || len(l.free) != e.spec.Depth {
				t.Errorf("end %s, QP %d: %d requests unaccounted for, %d slots free", e.role, l.n, l.quiet,
					len(l.free))
			}
		}
	}
}

// A run that is to last a time does that.
func TestRunForATime(t *testing.T) {
	for _, spec := range variants(Ops, []int{1, 4}, []int{1}) {
		p := connect(t, &fakeNet{}, spec, false)
		const d = 5 * time.Millisecond
		r, err := verified(t, ctxOf(t), p, Amount{Time: d})
		if err != nil || r.Elapsed() < d || r.Messages == 0 {
			t.Errorf("%s: %v for %v: %+v", spec.name(), err, d, r)
		}
	}
}

// A time that is over before it begins has a message, of whichever kind: a row is made of that.
func TestRunForNoTime(t *testing.T) {
	for _, spec := range variants([]Op{Write, Send, Read, FetchAdd}, []int{1, 4}, []int{1, 3}) {
		p := connect(t, &fakeNet{}, spec, false)
		if r, err := p.Measure(ctxOf(t), Amount{Time: 1}); err != nil || r.Messages == 0 ||
			r.Times.Count() == 0 {
			t.Errorf("%s: %+v, %v", spec.name(), r, err)
		}
	}
}

// Each octet that arrives changed is seen: before, and after.
func TestDamageIsSeen(t *testing.T) {
	for _, op := range Ops {
		for _, when := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%s %s", op, when), func(t *testing.T) {
				n := &fakeNet{}
				spec := specOf(op, 4096, 4)
				p := connect(t, n, spec, false)
				bad := 3
				if when == "after" { // a lap, the messages, their notices
					bad += 4 + 8
					if !op.twoWay() {
						bad += 2
					}
				}
				n.damage = func(i int, _ rdma.Opcode, b []byte) {
					if i == bad {
						b[len(b)-1] ^= 0x80
					}
				}
				_, err := verified(t, ctxOf(t), p, Amount{Messages: 8})
				if !errors.Is(err, errData) || !strings.HasPrefix(err.Error(), when) {
					t.Errorf("%v, want changed data %s", err, when)
				}
			})
		}
	}
}

// An atomic that brings back what it should not is seen in the midst of a run.
func TestWrongAtomicIsSeen(t *testing.T) {
	for _, op := range []Op{FetchAdd, CompareSwap} {
		n := &fakeNet{}
		p := connect(t, n, specOf(op, 8, 4), false)
		n.damage = func(i int, _ rdma.Opcode, b []byte) {
			if i == 10 {
				b[3] ^= 1
			}
		}
		if _, err := p.Measure(ctxOf(t), Amount{Messages: 20}); !errors.Is(err, errData) {
			t.Errorf("%s: %v, want changed data", op, err)
		}
	}
}

// One that leaves what it should not is seen by whoever it was left at.
func TestWrongResultOfAnAtomicIsSeen(t *testing.T) {
	for _, op := range []Op{FetchAdd, CompareSwap} {
		p := connect(t, &fakeNet{wrongAtomic: 4}, specOf(op, 8, 4), false) // the last one of a lap
		if err := p.Verify(ctxOf(t)); !errors.Is(err, errData) || !strings.Contains(err.Error(),
			"end B") {
			t.Errorf("%s: %v, want changed data", op, err)
		}
	}
}

func TestWrongImmediateDataIsSeen(t *testing.T) {
	p := connect(t, &fakeNet{wrongImm: 0x100}, specOf(WriteImm, 64, 4), false)
	if err := p.Verify(ctxOf(t)); !errors.Is(err, errData) || !strings.Contains(err.Error(),
		"immediate data") {
		t.Errorf("%v, want changed data", err)
	}
}

// A request that fails ends the run at both ends.
func TestFailureEndsTheRun(t *testing.T) {
	for _, spec := range variants(Ops, []int{1, 8}, []int{1, 2}) {
		for _, at := range []int{1, 5, 30, 60} {
			for _, apart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s message %d apart %v", spec.name(), at, apart), func(t *testing.T) {
					p := connect(t, &fakeNet{failAt: at}, spec, apart)
					if _, err := verified(t, ctxOf(t), p, Amount{Messages: 200}); err == nil {
						t.Error("the run succeeded")
					} else if !strings.Contains(err.Error(), "end ") {
						t.Errorf("%v does not say where", err)
					}
				})
			}
		}
	}
}

func TestCancelEndsTheRun(t *testing.T) {
	for _, spec := range variants(Ops, []int{1, 8}, []int{1, 2}) {
		for _, apart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s apart %v", spec.name(), apart), func(t *testing.T) {
				n := &fakeNet{}
				p := connect(t, n, spec, apart)
				ctx, cancel := context.WithCancel(t.Context())
				n.damage = func(i int, _ rdma.Opcode, _ []byte) {
					if i == 1000 {
						cancel()
					}
				}
				done := make(chan error)
				go func() {
					_, err := p.Measure(ctx, Amount{Time: time.Hour})
					done <- err
				}()
				select {
				case err := <-done:
					if err == nil {
						t.Error("no error")
					}
				case <-time.After(30 * time.Second):
					t.Fatal("the run goes on")
				}
			})
		}
	}
}

// A connection that is refused ends the waiting of the listener, too.
func TestRefusedConnection(t *testing.T) {
	spec := specOf(Send, 64, 2)
	spec.QPs = 3
	n := &fakeNet{refuse: true}
	a, b := locals(t, n, spec)
	if _, err := Connect(ctxOf(t), a, b, addrB, spec); err == nil || !strings.Contains(err.Error(),
		"refused") {
		t.Errorf("%v", err)
	}
}

// What is measured is what was asked for: SCTP, if that. The fake network has whatever it is asked
// for, or never.
func TestTransportIsTheOneAskedFor(t *testing.T) {
	spec := specOf(Send, 64, 2)
	spec.SCTP = true
	connect(t, &fakeNet{}, spec, false)
	n := &fakeNet{noSCTP: true}
	a, b := locals(t, n, spec)
	if _, err := Connect(ctxOf(t), a, b, addrB, spec); err == nil || !strings.Contains(err.Error(),
		"SCTP") {
		t.Errorf("%v", err)
	}
}

// Whoever connects says which QP it is; nonsense is refused.
func TestHello(t *testing.T) {
	spec := specOf(Send, 64, 2)
	spec.QPs = 2
	e, err := NewLocal((&fakeNet{}).device("a"), spec, A)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, l := range e.lanes {
		got, r, err := e.takeHello(append(l.hello(), 0, 0)) // padded
		if err != nil || got != l || r.addr != e.mr.Addr() || r.rkey != e.mr.RKey() {
			t.Errorf("lane %d: %v, %+v, %v", i, got, r, err)
		}
	}
	good := e.lanes[1].hello()
	for name, b := range map[string][]byte{
		"nothing": nil, "short": good[:helloLen-1], "another program": append([]byte("GET "),
			good[4:]...),
		"no such lane": append(append(good[:4:4], 0, 0, 0, 2), good[8:]...),
	} {
		if _, _, err := e.takeHello(b); err == nil {
			t.Errorf("%s is good", name)
		}
	}
}

func TestSpecCheck(t *testing.T) {
	ok := specOf(Write, 64, 1)
	if err := ok.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Spec){
		"op":                 func(s *Spec) { s.Op = "bind" },
		"wait":               func(s *Spec) { s.Wait = "" },
		"pattern":            func(s *Spec) { s.Pattern = "" },
		"size 0":             func(s *Spec) { s.Size = 0 },
		"size 12":            func(s *Spec) { s.Size = 12 },
		"too large":          func(s *Spec) { s.Size = MaxSize + 8 },
		"large atomic":       func(s *Spec) { s.Op, s.Pattern = FetchAdd, Stream },
		"depth 0":            func(s *Spec) { s.Depth = 0 },
		"too deep":           func(s *Spec) { s.Depth, s.Pattern = MaxDepth+1, Stream },
		"no QP":              func(s *Spec) { s.QPs = 0 },
		"too many QPs":       func(s *Spec) { s.QPs = MaxQPs + 1 },
		"too many slots":     func(s *Spec) { s.QPs, s.Depth, s.Pattern = 1000, 31, Stream },
		"memory":             func(s *Spec) { s.Size, s.Depth, s.Pattern = MaxSize, 16, Stream },
		"pingpong of reads":  func(s *Spec) { s.Op = Read },
		"deep pingpong":      func(s *Spec) { s.Depth = 2 },
		"pingpong, bidir":    func(s *Spec) { s.Bidir = true },
		"writes, unobserved": func(s *Spec) { s.Wait = Event },
	} {
		s := ok
		if change(&s); s.Check() == nil {
			t.Errorf("%s: %+v is good", name, s)
		}
	}
	if (Amount{}).Check() == nil || (Amount{Time: -1}).Check() == nil {
		t.Error("an amount without an end is good")
	}
}

func TestPatternFor(t *testing.T) {
	for op, want := range map[Op]Pattern{Write: PingPong, Send: PingPong, WriteImm: PingPong,
		Read: Stream, FetchAdd: Stream, CompareSwap: Stream} {
		if got := PatternFor(op, 1); got != want {
			t.Errorf("%s at depth 1 is a %s", op, got)
		}
		if got := PatternFor(op, 2); got != Stream {
			t.Errorf("%s at depth 2 is a %s", op, got)
		}
	}
}

func TestResultMerge(t *testing.T) {
	result := func(start, end time.Duration, n int) Result {
		p := connect(t, &fakeNet{}, specOf(Read, 64, 1), false)
		r, err := p.Measure(ctxOf(t), Amount{Messages: n})
		if err != nil {
			t.Fatal(err)
		}
		r.Start, r.End = start, end
		return r
	}
	a := result(10, 20, 3)
	a.Allocs = 5
	a.Merge(result(8, 15, 4))
	a.Merge(result(12, 14, 1))
	a.Merge(Result{Start: 1, End: 30, Allocs: 2}) // one that has only taken
	if a.Start != 8 || a.End != 30 || a.Messages != 8 || a.Octets != 8*64 || a.Times.Count() != 8 ||
		a.Allocs != 7 {
		t.Errorf("%+v", a)
	}
}

func TestContent(t *testing.T) {
	b := make([]byte, 1024)
	fill(b, 7)
	if err := verify(b, 7); err != nil {
		t.Error(err)
	}
	if verify(b, 8) == nil {
		t.Error("another seed has the same content")
	}
	for i := range b {
		b[i] ^= 1
		if verify(b, 7) == nil {
			t.Errorf("a change of octet %d is not seen", i)
		}
		b[i] ^= 1
	}
}
