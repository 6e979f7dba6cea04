package datagram

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Ways are the ways to peers that are being looked for while who wants them does something else: it
// is told EINPROGRESS, and asks again.
type Ways struct {
	// look finds a way, and waits for it no longer than its owner lives. run has it run on a
	// goroutine of the owner's; false: the owner is gone.
	look func(local, remote netip.Addr) (Route, error)
	run  func(f func()) bool

	mu sync.Mutex
	at map[ends]*way // +checklocks:mu
}

type ends struct{ local, remote netip.Addr }

// A way is one that is looked for, or that was, and has not been taken.
type way struct {
	known chan struct{} // closed behind what follows
	route Route
	err   error
	since time.Time
}

const (
	// maxWays is how many are looked for at once; more wait for their turn.
	maxWays = 64
	// atOnce is how long a call waits: a neighbour that is there answers sooner.
	atOnce = 2 * time.Millisecond
	// keep is how long is known what nobody has asked for again.
	keep = time.Second
)

// NewWays makes the ways of an owner.
func NewWays(look func(local, remote netip.Addr) (Route, error), run func(f func()) bool) *Ways {
	return &Ways{look: look, run: run, at: make(map[ends]*way)}
}

// Find finds the way from local to remote, if it is known at once, or was looked for since Find was
// called first; else the error wraps EINPROGRESS, and it is looked for. What is found is told once.
func (w *Ways) Find(local, remote netip.Addr) (Route, error) {
	e := ends{local, remote}
	if x := w.begin(e); x != nil {
		timeout := time.NewTimer(atOnce)
		defer timeout.Stop()
		select {
		case <-x.known:
			w.mu.Lock()
			if w.at[e] == x {
				delete(w.at, e)
			}
			w.mu.Unlock()
			return x.route, x.err
		case <-timeout.C:
		}
	}
	return nil, fmt.Errorf("the way from %v to %v is looked for: %w", local, remote,
		syscall.EINPROGRESS)
}

// begin is what is looked for at e, from now on if it was not; nil: it has to wait for its turn.
func (w *Ways) begin(e ends) *way {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for at, x := range w.at {
		select {
		case <-x.known:
			if now.Sub(x.since) > keep {
				delete(w.at, at)
			}
		default:
		}
	}
	if x := w.at[e]; x != nil {
		return x
	}
	if len(w.at) >= maxWays {
		return nil
	}
	x := &way{known: make(chan struct{})}
	if !w.run(func() {
		x.route, x.err = w.look(e.local, e.remote)
		x.since = time.Now()
		close(x.known)
	}) {
		x.err = fmt.Errorf("the way from %v to %v: %w", e.local, e.remote, syscall.ENODEV)
		close(x.known)
		return x
	}
	w.at[e] = x
	return x
}
