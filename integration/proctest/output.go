// Package proctest starts processes for tests, waits for what they print and for their end, and
// counts what a daemon holds.
package proctest

import (
	"bytes"
	"fmt"
	"sync"
	"time"
)

// An Output is what a process has printed, as it came. The zero Output is ready: it is for an
// exec.Cmd's Stdout and Stderr.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer // +checklocks:mu
	// +checklocks:mu
	more chan struct{} // closed when there is more; nil if nobody waits
}

// Write takes what the process prints.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.b.Write(b)
}

// String is what has been printed.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Wait waits until the process has printed s n times, for at most limit. ended is closed when
// nothing more comes. An error says what the process did instead.
func (o *Output) Wait(s string, n int, ended <-chan struct{}, limit time.Duration) error {
	late := time.After(limit)
	count := tally{what: []byte(s)}
	for {
		over := false
		select {
		case <-ended: // before the look: the output is whole then
			over = true
		default:
		}
		found, more := o.look(&count)
		switch {
		case found >= n:
			return nil
		case over:
			return fmt.Errorf("ended without saying %q %d times", s, n)
		}
		select {
		case <-more:
		case <-ended:
		case <-late:
			return fmt.Errorf("has not said %q %d times within %v", s, n, limit)
		}
	}
}

// look counts, and returns what is closed when there is more to look at.
func (o *Output) look(c *tally) (n int, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return c.look(o.b.Bytes()), o.more
}

// A tally counts a text in an output that grows, without looking at all of it again each time: a
// program that prints fast would wait for the one who counts.
type tally struct {
	what []byte
	n    int
	seen int // octets that cannot be part of another one
}

// look counts in out, which begins with what it was before.
func (c *tally) look(out []byte) int {
	for {
		i := bytes.Index(out[c.seen:], c.what)
		if i < 0 {
			c.seen = max(c.seen, len(out)-len(c.what)+1)
			return c.n
		}
		c.n++
		c.seen += i + len(c.what)
	}
}
