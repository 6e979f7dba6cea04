package porttest

import (
	"container/heap"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// quiet is how long, of the host's time, nothing may have happened before a Clock moves on.
const quiet = 500 * time.Microsecond

// A Clock is a tcpip.Clock on which waiting takes no time: whenever nothing has happened for a
// moment, no timer set and no frame carried, and no goroutine of the process runs or could, it goes
// to the time of the next timer. So seconds of retransmission pass in milliseconds, and in the
// order in which they would, however long the host makes a goroutine wait for a processor.
//
// Its timers run one after the other, on a goroutine that ends with the test.
type Clock struct {
	mu     sync.Mutex
	now    time.Duration // guarded by mu: since the Clock was made
	timers timerHeap     // guarded by mu
	set    uint64        // guarded by mu: timers so far; those of the same time run in that order
	busy   uint64        // guarded by mu: counts what happens
	stop   chan struct{}
}

var _ tcpip.Clock = (*Clock)(nil)

// NewStepClock makes a Clock that stands still but for Step: what happens on it hangs on no
// processor's speed.
func NewStepClock() *Clock { return &Clock{} }

// NewClock starts a Clock, which is stopped when the test ends.
func NewClock(tb testing.TB) *Clock {
	c := &Clock{stop: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run()
	}()
	tb.Cleanup(func() { close(c.stop); <-done })
	return c
}

// run lets time pass.
func (c *Clock) run() {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	var seen uint64
	var look idle
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		c.mu.Lock()
		if c.busy != seen || len(c.timers) == 0 {
			seen = c.busy
			c.mu.Unlock()
			continue
		}
		c.mu.Unlock()
		if !look.now() {
			continue
		}
		c.mu.Lock()
		if c.busy != seen || len(c.timers) == 0 { // stopped or set while it looked
			c.mu.Unlock()
			continue
		}
		due := c.timers[0].due
		for len(c.timers) > 0 && c.timers[0].due <= due { // also what comes meanwhile
			f := c.popLocked()
			c.mu.Unlock()
			f()
			c.mu.Lock()
		}
		c.mu.Unlock()
	}
}

// idle tells whether goroutines have something to do.
type idle [2]metrics.Sample

// now reports whether none but the caller runs or waits for a processor.
func (i *idle) now() bool {
	i[0].Name = "/sched/goroutines/runnable:goroutines"
	i[1].Name = "/sched/goroutines/running:goroutines"
	metrics.Read(i[:])
	return i[0].Value.Uint64() == 0 && i[1].Value.Uint64() <= 1
}

// Step goes on to the next timer, and runs it; false: there is none.
func (c *Clock) Step() bool {
	c.mu.Lock()
	if len(c.timers) == 0 {
		c.mu.Unlock()
		return false
	}
	f := c.popLocked()
	c.mu.Unlock()
	f()
	return true
}

// popLocked goes on to the next timer, which is there, and says what it runs.
//
// +checklocks:c.mu
func (c *Clock) popLocked() func() {
	t := heap.Pop(&c.timers).(*timer)
	t.at = -1
	c.now = max(c.now, t.due)
	return t.f
}

// happened keeps time from passing for a moment.
func (c *Clock) happened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy++
}

// Now implements tcpip.Clock.
func (c *Clock) Now() time.Time { return time.Unix(0, 0).Add(c.Elapsed()) }

// NowMonotonic implements tcpip.Clock.
func (c *Clock) NowMonotonic() tcpip.MonotonicTime { return tcpip.MonotonicTime{}.Add(c.Elapsed()) }

// Elapsed is how much time has passed since the Clock was made.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc implements tcpip.Clock.
func (c *Clock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	t := &timer{c: c, f: f, at: -1}
	t.Reset(d)
	return t
}

// A timer is a tcpip.Timer.
type timer struct {
	c   *Clock
	f   func()
	due time.Duration
	n   uint64 // of the Clock's timers
	at  int    // in the heap; -1: it is not there
}

// Stop implements tcpip.Timer.
func (t *timer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.stopLocked()
}

func (t *timer) stopLocked() bool {
	if t.at < 0 {
		return false
	}
	heap.Remove(&t.c.timers, t.at)
	t.at = -1
	return true
}

// Reset implements tcpip.Timer.
func (t *timer) Reset(d time.Duration) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.stopLocked()
	t.c.busy++
	t.c.set++
	t.due, t.n = t.c.now+max(d, 0), t.c.set
	heap.Push(&t.c.timers, t)
}

// A timerHeap has the next timer first.
type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].n < h[j].n
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.at = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}
