package main

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"runtime/debug"
	"runtime/metrics"
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
	onRun  func(load.Amount) // if not nil
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

func (e *fakeEnd) Listen(netip.Addr) (a netip.AddrPort, err error) { return a, nil }
func (e *fakeEnd) Accept(context.Context) error                    { return nil }
func (e *fakeEnd) Connect(context.Context, netip.AddrPort) error   { return nil }
func (e *fakeEnd) Prepare(uint64) error                            { return e.step("prepare") }
func (e *fakeEnd) Move(context.Context) error                      { return e.step("move") }
func (e *fakeEnd) Check() error                                    { return e.step("check") }
func (e *fakeEnd) Close()                                          {}

func (e *fakeEnd) Run(_ context.Context, a load.Amount) (load.Result, error) {
	if e.onRun != nil {
		e.onRun(a)
	}
	return e.r, e.step("run")
}

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
		// the first start to the last end
		if want := (11 - 3) * time.Nanosecond; row.Seconds != want.Seconds() {
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
		// and what happens here meanwhile
		if most := want + 50; err != nil || row.Allocs < want || row.Allocs > most && want > 0 {
			t.Errorf("%v, less %d for the run: %v a message, %v; want %v", 10000, once, row.Allocs,
				err, want)
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

// The run behind the first one that allocates nothing counts, whatever it allocates; there is one
// in any case. What fails ends it.
func TestFilled(t *testing.T) {
	for _, tt := range []struct {
		name string
		runs []uint64
	}{
		{"nothing", []uint64{0, 0}},
		{"nothing but in the run that counts", []uint64{0, 5}},
		{"pools at first", []uint64{30, 2, 0, 1}},
		{"something in each", []uint64{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 4}},
	} {
		n := 0
		got, err := filled(func() (tally, error) {
			n++
			return tally{objects: tt.runs[n-1], messages: 10}, nil
		})
		if want := (tally{tt.runs[len(tt.runs)-1], 10}); err != nil || n != len(tt.runs) || got != want {
			t.Errorf("%s: %v after %d runs, %v; want %v after %d", tt.name, got, n, err, want, len(tt.runs))
		}
	}
	for failAt := 1; failAt <= 2; failAt++ {
		n := 0
		if _, err := filled(func() (tally, error) {
			if n++; n == failAt {
				return tally{}, errFake
			}
			return tally{}, nil
		}); err != errFake || n != failAt {
			t.Errorf("run %d fails: %v after %d", failAt, err, n)
		}
	}
}

// All objects count but those of a run of one message; all ends' of as many messages as were asked
// for.
func TestCountAllocs(t *testing.T) {
	b, ends := fakeBench(t, 1)
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	for _, e := range ends {
		e.onRun = func(a load.Amount) {
			percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
			if metrics.Read(percent); percent[0].Value.Uint64() != math.MaxUint64 || !a.KeepPools {
				t.Errorf("%+v with a collection at %d percent", a, percent[0].Value.Uint64())
			}
			e.r.Allocs = 1000
			if a.Messages == 500 {
				e.r.Allocs += 1e6
			}
		}
	}
	got, err := b.countAllocs(t.Context(), 500)
	// and what happens here meanwhile
	if err != nil || got.messages != 10 || got.objects < 2e6-200 || got.objects > 2e6+200 {
		t.Errorf("%+v, %v", got, err)
	}
	if got := debug.SetGCPercent(77); got != 77 {
		t.Errorf("%d percent behind it", got)
	}
}

// What daemons allocate counts, too.
func TestDaemonsAllocationsCount(t *testing.T) {
	path, err := paths.Open("ring", paths.Options{Vrnic: vrnicProgram(t), Processes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer path.Close()
	dev, err := path.Device()
	if err != nil {
		t.Fatal(err)
	}
	b, ends := fakeBench(t, 1)
	b.path = path
	const objects = 100
	cost := func(n int) uint64 {
		t.Helper()
		ends[0].onRun = func(load.Amount) {
			for range n {
				if _, err := dev.AllocPD(); err != nil {
					t.Error(err)
				}
			}
		}
		_, c, err := b.costOf(t.Context(), load.Amount{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Allocs
	}
	cost(0) // the first one makes what the others keep
	if nothing, some := cost(0), cost(objects); some < nothing+objects {
		t.Errorf("%d objects for %d protection domains, %d for none", some, objects, nothing)
	}
}
