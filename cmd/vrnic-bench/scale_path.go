package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/progress"
	"github.com/vrnic/vrnic/rdma"
)

// The targets of the project.
const (
	targetRSS     = 4.0 // GiB, of all QPs and registrations
	targetConnect = 2000.0
	targetFlat    = 1.5 // the dearest by the cheapest
	targetIdle    = 1.0 // % of a core
	gib           = 1 << 30
)

// A scaling has the figures.
type scaling struct {
	c        *cli.Context
	qps, mrs int
	time     time.Duration
	idle     time.Duration
	roce     bool
	quiet    bool
	progress *progress.Line
	figures  []figure
}

func (s *scaling) add(path, name string, value float64, unit string, target float64, atLeast bool) {
	f := figure{path, name, value, unit, target, atLeast}
	s.figures = append(s.figures, f)
	if !s.quiet {
		s.progress.Clear()
		fmt.Fprintln(s.c.App.Writer, f.line())
	}
}

// onPath measures all on one path, which it opens for that. The regions stay while QPs are
// connected.
func (s *scaling) onPath(name string) error {
	runtime.GC()
	debug.FreeOSMemory() // of the path before
	path, err := paths.Open(name, paths.Options{Vrnic: s.c.String("vrnic"), RoCE: s.roce})
	if err != nil {
		return err
	}
	defer path.Close()
	drop, err := s.register(path)
	if err != nil {
		return fmt.Errorf("registrations: %w", err)
	}
	defer drop()
	most, err := s.connect(path)
	if err != nil {
		return err
	}
	s.add(name, "memory with all of it", float64(most)/gib, "GiB", targetRSS, false)
	return s.messages(path)
}

// register makes the regions, each of some octets of one buffer.
func (s *scaling) register(path *paths.Path) (drop func(), err error) {
	drop = func() {}
	if s.mrs == 0 {
		return drop, nil
	}
	s.progress.Step(fmt.Sprintf("%s: %d registrations", path.Name, s.mrs))
	dev, err := path.Device()
	if err != nil {
		return drop, err
	}
	const size, slots = 64, 4096
	buf, err := dev.AllocBuffer(size * slots)
	if err != nil {
		return drop, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return drop, err
	}
	before, err := meter.RSS(path.DevicePIDs())
	if err != nil {
		return drop, err
	}
	mrs := make([]rdma.MR, 0, s.mrs)
	drop = func() {
		for _, mr := range mrs {
			mr.Close()
		}
		pd.Close()
		buf.Close()
	}
	start := time.Now()
	for i := range s.mrs {
		at := i % slots * size
		mr, err := pd.RegisterMemory(buf.Bytes()[at:at+size], rdma.LocalWrite|rdma.RemoteWrite)
		if err != nil {
			return drop, fmt.Errorf("number %d: %w", i+1, err)
		}
		mrs = append(mrs, mr)
		if i%4096 == 0 && s.c.Context.Err() != nil {
			return drop, s.c.Context.Err()
		}
	}
	took := time.Since(start)
	after, err := meter.RSS(path.DevicePIDs())
	if err != nil {
		return drop, err
	}
	s.add(path.Name, fmt.Sprintf("%d registrations", s.mrs), float64(s.mrs)/took.Seconds(), "a second",
		0, false)
	s.add(path.Name, "memory of a registration", float64(int64(after)-int64(before))/float64(s.mrs),
		"octets", 0, false)
	return drop, nil
}

// spec is a 64-octet message on each of n QPs.
func (s *scaling) spec(op load.Op, n int, pattern load.Pattern) load.Spec {
	return load.Spec{Op: op, Size: 64, Depth: 1, QPs: n, Pattern: pattern, Wait: load.Adaptive,
		RoCE: s.roce}
}

// connect connects all QPs, looks how busy they are with nothing to do, and says what memory all
// takes.
func (s *scaling) connect(path *paths.Path) (rss uint64, err error) {
	s.progress.Step(fmt.Sprintf("%s: %d connections", path.Name, s.qps))
	ctx, cancel := context.WithTimeout(s.c.Context, setUpTime)
	defer cancel()
	before, err := meter.RSS(path.DevicePIDs())
	if err != nil {
		return 0, err
	}
	m, err := meter.New(path.PIDs(), nil)
	if err != nil {
		return 0, err
	}
	pairs, err := path.Connect(ctx, s.spec(load.Send, s.qps, load.Stream))
	if err != nil {
		return 0, err
	}
	defer pairs[0].Close()
	cost, err := m.Read()
	if err != nil {
		return 0, err
	}
	if rss, err = meter.RSS(path.DevicePIDs()); err != nil {
		return 0, err
	}
	s.add(path.Name, fmt.Sprintf("%d connections", s.qps), float64(s.qps)/pairs[0].SetUp.Seconds(),
		"a second", targetConnect, true)
	s.add(path.Name, "making and connecting two QPs", float64(cost.CPU.Microseconds())/float64(s.qps),
		"us of CPU", 0, false)
	s.add(path.Name, "memory of a connection, both ends", float64(int64(rss)-int64(before))/float64(
		s.qps)/1024, "KiB", 0, false)
	// They work, all of them.
	if err := pairs[0].Verify(ctx); err != nil {
		return 0, err
	}
	s.progress.Step(path.Name + ": idle")
	left, idle, err := idleShare(ctx, path.DevicePIDs(), s.idle)
	if err != nil {
		return 0, err
	}
	s.add(path.Name, "work behind the last message", float64(left.Microseconds())/1000, "ms of CPU",
		0, false)
	s.add(path.Name, fmt.Sprintf("processor when idle, %d QPs", s.qps), 100*idle, "% of a core",
		targetIdle, false)
	return rss, nil
}

// idleShare is how much of a processor the processes take while nothing happens, for d. Before that
// it waits half as long, for acknowledgements and timers behind the last message, which take left.
func idleShare(
	ctx context.Context, pids []int, d time.Duration,
) (left time.Duration, share float64, err error) {
	if slices.Contains(pids, os.Getpid()) {
		runtime.GC()
	}
	sum := func() (d time.Duration, err error) {
		for _, pid := range pids {
			t, err := meter.CPUTime(pid)
			if err != nil {
				return 0, err
			}
			d += t
		}
		return d, nil
	}
	before, err := sum()
	if err != nil {
		return 0, 0, err
	}
	if err := meter.Pause(ctx, d/2); err != nil {
		return 0, 0, err
	}
	begin, err := sum()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := meter.Pause(ctx, d); err != nil {
		return 0, 0, err
	}
	end, err := sum()
	return begin - before, (end - begin).Seconds() / time.Since(start).Seconds(), err
}

// messages measures what one costs with more and more QPs.
func (s *scaling) messages(path *paths.Path) error {
	turns := s.spec(load.Send, 1, load.PingPong)
	// the work alone: whoever looks for a message takes processor time as long as it does not come
	turns.Wait = load.Event
	for _, kind := range []struct {
		name string
		spec load.Spec
	}{
		{"64 B Send, turns", turns},
		{"64 B Send, all", s.spec(load.Send, 1, load.Stream)},
		{"64 B Write, all", s.spec(load.Write, 1, load.Stream)},
	} {
		var costs []float64
		for n := 1; ; n = min(10*n, s.qps) {
			s.progress.Step(fmt.Sprintf("%s: %s of %d QPs", path.Name, kind.name, n))
			kind.spec.QPs = n
			cost, err := s.cost(path, kind.spec)
			if err != nil {
				return fmt.Errorf("%s, %d QPs: %w", kind.name, n, err)
			}
			costs = append(costs, cost)
			s.add(path.Name, fmt.Sprintf("%s, %d QPs", kind.name, n), cost, "us of CPU", 0, false)
			if n == s.qps {
				break
			}
		}
		if kind.spec.Pattern == load.PingPong { // else many QPs share what a wake-up costs
			s.add(path.Name, kind.name+": dearest / cheapest", slices.Max(costs)/slices.Min(costs), "times",
				targetFlat, false)
		}
	}
	return nil
}

// scaleRounds are measured of each cost, and the median taken.
const scaleRounds = 3

// cost is the processor time of a message, in microseconds.
func (s *scaling) cost(path *paths.Path, spec load.Spec) (float64, error) {
	b, err := newBench(s.c.Context, path, spec, plan{})
	if err != nil {
		return 0, err
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(s.c.Context, setUpTime)
	defer cancel()
	if _, err := b.run(ctx, load.Amount{Messages: 4 * spec.QPs}); err != nil { // every QP, both ways
		return 0, err
	}
	runtime.GC() // what making them has left is not a message's cost
	var costs []float64
	for range scaleRounds {
		row, err := b.measure(s.c.Context, load.Amount{Time: s.time})
		if err != nil {
			return 0, err
		}
		costs = append(costs, row.CPUPerMsg)
	}
	return spreadOf(costs).median, nil
}
