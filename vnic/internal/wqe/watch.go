package wqe

import (
	"slices"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A Watcher hears of the requests of one queue pair. Who moves messages calls it: it waits for
// nothing, keeps nothing of what it is given, and calls nothing of the queue pair.
type Watcher interface {
	// Taken: a send request was taken from its queue. So many before it have not completed.
	Taken(at time.Time, wr *rdma.SendWR, behind int)
	// Completed: it has ended as st, so long after that. Not all of them the program hears of.
	Completed(at time.Time, wr *rdma.SendWR, st rdma.WCStatus, took time.Duration)
	// Received: a receive has completed.
	Received(at time.Time, wc *rdma.WC)
}

// A watch is who watches a queue pair. It does not change, but for the times.
type watch struct {
	by       []Watcher
	spoilers []Spoiler // of them
	began    time.Time
	taken    []time.Duration // the owner's, by slot: when, counted from began; 0: nobody watched then
}

// find sets which of those who watch are spoilers.
func (w *watch) find() {
	w.spoilers = nil
	for _, by := range w.by {
		if s, ok := by.(Spoiler); ok {
			w.spoilers = append(w.spoilers, s)
		}
	}
}

// Watch has w hear of r's requests from now on, until stop is called; what is on its way may still
// come then. Who calls one of the two calls no other meanwhile.
func (r *Requests) Watch(w Watcher) (stop func()) {
	next := &watch{by: []Watcher{w}}
	if old := r.watch.Load(); old != nil {
		next.by = append(slices.Clone(old.by), w)
		next.began, next.taken = old.began, old.taken
	} else {
		next.began, next.taken = time.Now(), make([]time.Duration, r.Depth())
	}
	next.find()
	r.watch.Store(next)
	r.watched.Store(true)
	return func() {
		now := *r.watch.Load()
		now.by = slices.DeleteFunc(slices.Clone(now.by), func(v Watcher) bool { return v == w })
		if len(now.by) == 0 {
			r.watched.Store(false)
			r.watch.Store(nil)
			return
		}
		now.find()
		r.watch.Store(&now)
	}
}

// Watched reports whether somebody hears of r's requests. Any goroutine may ask.
func (r *Requests) Watched() bool { return r.watched.Load() }

// watching is who watches r; nil: nobody.
func (r *Requests) watching() *watch {
	if !r.watched.Load() {
		return nil
	}
	return r.watch.Load()
}

// now is the time, counted from began; never 0.
func (w *watch) now() time.Duration { return time.Since(w.began) + 1 }

// take notes that a request was taken into a slot.
func (w *watch) take(slot uint32, wr *rdma.SendWR, behind int) {
	now := w.now()
	w.taken[slot] = now
	for _, by := range w.by {
		by.Taken(w.began.Add(now-1), wr, behind)
	}
}

// complete says that the request of a slot has ended.
func (w *watch) complete(slot uint32, wr *rdma.SendWR, st rdma.WCStatus) {
	since := w.taken[slot]
	if since == 0 {
		return
	}
	now := w.now()
	for _, by := range w.by {
		by.Completed(w.began.Add(now-1), wr, st, now-since)
	}
}

// receive says that a receive has completed.
func (w *watch) receive(wc *rdma.WC) {
	if len(w.spoilers) > 0 {
		w.spoilReceive(wc)
	}
	at := time.Now()
	for _, by := range w.by {
		by.Received(at, wc)
	}
}
