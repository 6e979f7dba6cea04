package cm

import (
	"sync"
	"time"
)

// A connection takes a handful of goroutines that do little and end: each begins with a small
// stack, which is copied to a larger one twice or three times before it has sent its first segment,
// and wakes a thread that looks for it. So a few that are done wait for the next, which has the
// stack of who was done last.

const (
	// maxIdle is how many wait: what a program has under way when it makes many connections.
	maxIdle = 32
	// idleTime is how long there is nothing to do before they end, or up to twice that.
	idleTime = 100 * time.Millisecond
)

// workers are the goroutines of a user. The zero value is ready.
type workers struct {
	wg sync.WaitGroup // Add with mu held and closed false

	mu     sync.Mutex
	closed bool     // +checklocks:mu
	idle   []worker // +checklocks:mu
	// due: dismissIdle will be called; started: something was started since it was called last.
	due     bool // +checklocks:mu
	started bool // +checklocks:mu
}

// A worker is a goroutine that waits for something to do; nil: for nothing more.
type worker chan func()

// start runs f on a goroutine of ws, unless ws is closed.
func (ws *workers) start(f func()) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return false
	}
	ws.started = true
	if n := len(ws.idle); n > 0 {
		w := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		w <- f // has room
		return true
	}
	ws.wg.Add(1)
	go ws.work(f)
	return true
}

func (ws *workers) work(f func()) {
	defer ws.wg.Done()
	w := make(worker, 1)
	for f != nil {
		f()
		if !ws.rest(w) {
			return
		}
		f = <-w
	}
}

// rest puts w with those that wait, unless there are enough or ws is closed.
func (ws *workers) rest(w worker) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed || len(ws.idle) == maxIdle {
		return false
	}
	ws.idle = append(ws.idle, w)
	if !ws.due {
		ws.due = true
		time.AfterFunc(idleTime, ws.dismissIdle)
	}
	return true
}

// dismissIdle ends those that wait, unless something was started since it was called last.
func (ws *workers) dismissIdle() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.due = ws.started && !ws.closed; ws.due {
		ws.started = false
		time.AfterFunc(idleTime, ws.dismissIdle)
		return
	}
	ws.dismissLocked()
}

// dismissLocked ends those that wait.
//
// +checklocks:ws.mu
func (ws *workers) dismissLocked() {
	for _, w := range ws.idle {
		w <- nil
	}
	ws.idle = nil
}

// close ends those that wait, and starts nothing more.
func (ws *workers) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	ws.dismissLocked()
}
