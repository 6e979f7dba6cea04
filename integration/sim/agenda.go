package sim

import (
	"container/heap"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// An agenda is what will happen at a time: frames that arrive, timers of the stacks that fire. What
// is due at the same time happens in the order in which it was put down.
//
// It is a tcpip.Clock, whose time is that of the synctest bubble. Timers of the time package that
// are due at once run in any order there; these do not. Everything in it is the world's
// goroutine's, or that of whoever runs while the world waits for it: there is one processor, and no
// lock is needed for the order, but the race detector wants one.
type agenda struct {
	start time.Time
	items items
	n     uint64
	mu    sync.Mutex
	// sooner is told when something is put down, as the world may sleep for too long then.
	sooner chan struct{}
}

type item struct {
	at time.Time
	n  uint64
	i  int // in the heap; -1: it is not there
	f  func()
	// what it is, for counting
	frame bool
	a     *agenda
}

func newAgenda() *agenda {
	return &agenda{start: time.Now(), sooner: make(chan struct{}, 1)}
}

// put has f called at a time.
func (a *agenda) put(it *item, at time.Time) {
	a.mu.Lock()
	if it.i >= 0 {
		heap.Remove(&a.items, it.i)
	}
	a.n++
	it.at, it.n = at, a.n
	heap.Push(&a.items, it)
	first := it.i == 0
	a.mu.Unlock()
	if first {
		select {
		case a.sooner <- struct{}{}:
		default:
		}
	}
}

// next is when something happens; ok is false if nothing will.
func (a *agenda) next() (at time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.items) == 0 {
		return at, false
	}
	return a.items[0].at, true
}

// take gives what is due, or nil.
func (a *agenda) take(now time.Time) *item {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.items) == 0 || a.items[0].at.After(now) {
		return nil
	}
	return heap.Pop(&a.items).(*item)
}

// Now implements tcpip.Clock.
func (a *agenda) Now() time.Time { return time.Now() }

// NowMonotonic implements tcpip.Clock.
func (a *agenda) NowMonotonic() tcpip.MonotonicTime {
	return tcpip.MonotonicTime{}.Add(time.Since(a.start))
}

// AfterFunc implements tcpip.Clock.
func (a *agenda) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	t := &item{i: -1, f: f, a: a}
	t.Reset(d)
	return t
}

// Stop implements tcpip.Timer.
func (it *item) Stop() bool {
	a := it.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if it.i < 0 {
		return false
	}
	heap.Remove(&a.items, it.i)
	return true
}

// Reset implements tcpip.Timer.
func (it *item) Reset(d time.Duration) { it.a.put(it, time.Now().Add(max(d, 0))) }

type items []*item

func (h items) Len() int { return len(h) }
func (h items) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].n < h[j].n
}
func (h items) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].i, h[j].i = i, j
}
func (h *items) Push(x any) {
	it := x.(*item)
	it.i = len(*h)
	*h = append(*h, it)
}
func (h *items) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	it.i = -1
	return it
}
