package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

// A fakeEnd notes what it is told to do, and fails at a step if it should.
type fakeEnd struct {
	mu     sync.Mutex
	steps  []string
	failAt int // this step, counted from 1
	r      load.Result
}

var errFake = errors.New("as it was told")

func (e *fakeEnd) step(s string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.steps = append(e.steps, s); len(e.steps) == e.failAt {
		return errFake
	}
	return nil
}

func (e *fakeEnd) Listen(netip.Addr) (a netip.AddrPort, err error)       { return a, nil }
func (e *fakeEnd) Accept(context.Context) error                          { return nil }
func (e *fakeEnd) Connect(context.Context, netip.AddrPort) error         { return nil }
func (e *fakeEnd) Prepare(uint64) error                                  { return e.step("prepare") }
func (e *fakeEnd) Move(context.Context) error                            { return e.step("move") }
func (e *fakeEnd) Check() error                                          { return e.step("check") }
func (e *fakeEnd) Run(context.Context, load.Amount) (load.Result, error) { return e.r, e.step("run") }
func (e *fakeEnd) Close()                                                {}

// fakeBench measures with n pairs of such ends.
func fakeBench(t *testing.T, n int) (b *bench, ends []*fakeEnd) {
	t.Helper()
	spec := load.Spec{Op: load.Send, Size: 64, Depth: 1, QPs: 1, Pattern: load.Stream, Wait: load.Poll}
	b = &bench{path: &paths.Path{Name: "pair"}, spec: spec, verify: true}
	for i := range n {
		a, z := &fakeEnd{}, &fakeEnd{}
		times := hist.New()
		times.Add(time.Microsecond)
		a.r = load.Result{Messages: 10, Octets: 640, Times: times, Start: time.Duration(5 - i), End: 6}
		z.r = load.Result{Times: hist.New(), End: time.Duration(9 + i)}
		p, err := load.Connect(t.Context(), a, z, netip.Addr{}, spec)
		if err != nil {
			t.Fatal(err)
		}
		b.pairs, ends = append(b.pairs, p), append(ends, a, z)
	}
	return b, ends
}

// The data of all pairs are compared before and behind what is measured, which is all pairs' sum.
func TestMeasure(t *testing.T) {
	for _, verify := range []bool{true, false} {
		b, ends := fakeBench(t, 3)
		b.verify = verify
		row, err := b.measure(t.Context(), load.Amount{Messages: 1})
		if err != nil || row.Messages != 30 || row.Times.Count() != 3 || row.Verified != verify {
			t.Errorf("%+v, %v", row, err)
		}
		if want := (11 - 3) * time.Nanosecond; row.Seconds != want.Seconds() { // the first start to the last end
			t.Errorf("%v seconds, want %v", row.Seconds, want)
		}
		want := []string{"prepare", "move", "check", "run", "prepare", "move", "check"}
		if !verify {
			want = []string{"run"}
		}
		for i, e := range ends {
			if !slices.Equal(e.steps, want) {
				t.Errorf("end %d: %q, want %q", i, e.steps, want)
			}
		}
	}
}

// What a run allocates for itself is no message's; what ends in other processes allocate is added.
func TestAllocationsOfAMessage(t *testing.T) {
	for once, want := range map[uint64]float64{0: 1000, 1000: 900, 1 << 40: 0} {
		b, ends := fakeBench(t, 1)
		b.verify = false
		ends[0].r.Allocs, ends[1].r.Allocs = 6000, 4000 // of 10 messages
		b.once = once
		row, err := b.measure(t.Context(), load.Amount{Messages: 1})
		if most := want + 50; err != nil || row.Allocs < want || row.Allocs > most && want > 0 { // and what happens here meanwhile
			t.Errorf("%v, less %d for the run: %v a message, %v; want %v", 10000, once, row.Allocs, err, want)
		}
	}
	b, ends := fakeBench(t, 1)
	ends[0].r.Allocs, ends[1].r.Allocs = 3000, 2000
	if err := b.calibrate(t.Context()); err != nil || b.once < 5000 {
		t.Errorf("%d, %v", b.once, err)
	}
}

// Whatever fails, at whichever end: there is no row.
func TestMeasureFails(t *testing.T) {
	for end := range 4 {
		for step := range 7 {
			b, ends := fakeBench(t, 2)
			ends[end].failAt = step + 1
			if _, err := b.measure(t.Context(), load.Amount{Messages: 1}); !errors.Is(err, errFake) {
				t.Errorf("end %d fails at step %d: %v", end, step+1, err)
			}
		}
	}
}

// What is in every run counts, what is in some does not; what fails ends it.
func TestLeast(t *testing.T) {
	for _, tt := range []struct {
		name string
		runs []float64
		want float64
		n    int // how many there are
	}{
		{"none", []float64{0}, 0, 1},
		{"none in the third", []float64{0.2, 0.1, 0}, 0, 3},
		{"in each", []float64{1.2, 1, 1.1}, 1, 3},
	} {
		n := 0
		v, err := least(3, func() (float64, error) {
			n++
			return tt.runs[n-1], nil
		})
		if err != nil || v != tt.want || n != tt.n {
			t.Errorf("%s: %v after %d runs, %v; want %v after %d", tt.name, v, n, err, tt.want, tt.n)
		}
	}
	if _, err := least(3, func() (float64, error) { return 0, errFake }); err != errFake {
		t.Errorf("a run that fails: %v", err)
	}
}
