// Package progress shows on a terminal how far a long run is.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vrnic/vrnic/internal/terminal"
)

const (
	// longFrom is how long a run lasts of which one wants to know how far it is.
	longFrom = 3 * time.Second
	tick     = 500 * time.Millisecond
	// clear goes to the beginning of the line and wipes it.
	clearLine = "\r\x1b[K"
)

// A Line is rewritten in place. Its methods do nothing if there is no terminal, or the run is
// short.
type Line struct {
	w     io.Writer
	total time.Duration
	now   func() time.Time
	stop  chan struct{}
	wg    sync.WaitGroup

	mu    sync.Mutex // guards writing to w, too
	start time.Time  // +checklocks:mu
	text  string     // +checklocks:mu
	shown bool       // +checklocks:mu
	ended bool       // +checklocks:mu
}

// New shows a run of about total on w, if that is a terminal.
func New(w io.Writer, total time.Duration) *Line {
	if !terminal.Is(w) || total < longFrom {
		return &Line{ended: true}
	}
	l := newLine(w, total, time.Now)
	l.stop = make(chan struct{})
	l.wg.Go(func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				l.show()
			case <-l.stop:
				return
			}
		}
	})
	return l
}

func newLine(w io.Writer, total time.Duration, now func() time.Time) *Line {
	return &Line{w: w, total: total, now: now, start: now()}
}

// Step says what is being done now.
func (l *Line) Step(text string) {
	l.mu.Lock()
	l.text = text
	l.mu.Unlock()
	l.show()
}

func (l *Line) show() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.shown = true
	fmt.Fprintf(l.w, "%s%s (%v of about %v)", clearLine, l.text,
		l.now().Sub(l.start).Round(time.Second), l.total.Round(time.Second))
}

// Clear takes the line away, for something else to be printed there.
func (l *Line) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clearLocked()
}

// +checklocks:l.mu
func (l *Line) clearLocked() {
	if l.shown {
		_, _ = io.WriteString(l.w, clearLine)
		l.shown = false
	}
}

// Done ends it. It may be called twice.
func (l *Line) Done() {
	l.mu.Lock()
	ended := l.ended
	l.ended = true
	l.clearLocked()
	l.mu.Unlock()
	if !ended && l.stop != nil {
		close(l.stop)
		l.wg.Wait()
	}
}
