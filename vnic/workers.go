package vnic

import "time"

// A connection takes a handful of goroutines that do little and end: each begins with a small stack, which is copied to a larger
// one twice or three times before it has sent its first segment, and wakes a thread that looks for it. So a few that are done
// wait for the next, which has the stack of who was done last.

const (
	// maxIdle is how many wait: what a program has under way when it makes many connections.
	maxIdle = 32
	// idleTime is how long there is nothing to do before they end, or up to twice that.
	idleTime = 100 * time.Millisecond
)

// A worker is a goroutine that waits for something to do; nil: for nothing more.
type worker chan func()

// start runs f on a goroutine that belongs to c, unless c is closed.
func (c *Context) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.starts = true
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		w <- f // has room
		return true
	}
	c.wg.Add(1)
	go c.work(f)
	return true
}

func (c *Context) work(f func()) {
	defer c.wg.Done()
	w := make(worker, 1)
	for f != nil {
		f()
		if !c.rest(w) {
			return
		}
		f = <-w
	}
}

// rest puts w with those that wait, unless there are enough or c is closed.
func (c *Context) rest(w worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) == maxIdle {
		return false
	}
	c.idle = append(c.idle, w)
	if !c.idleDue {
		c.idleDue = true
		time.AfterFunc(idleTime, c.dismissIdle)
	}
	return true
}

// dismissIdle ends those that wait, unless something was started since it was called last.
func (c *Context) dismissIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idleDue = c.starts && !c.closed; c.idleDue {
		c.starts = false
		time.AfterFunc(idleTime, c.dismissIdle)
		return
	}
	c.dismissLocked()
}

// dismissLocked ends those that wait.
func (c *Context) dismissLocked() {
	for _, w := range c.idle {
		w <- nil
	}
	c.idle = nil
}
