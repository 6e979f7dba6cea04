// Package gate counts calls that are under way, for whoever has to end something.
package gate

import (
	"net"
	"sync"
	"sync/atomic"
)

// A Gate counts the calls that are inside something, so that whoever closes it can wait for them.
// It takes the place of a lock that would be held across the call.
type Gate struct {
	n    atomic.Int64 // calls inside, plus gateShut once it is shut
	once sync.Once
	done chan struct{}
}

const gateShut = 1 << 62

// New is a Gate that lets everybody in.
func New() *Gate { return &Gate{done: make(chan struct{})} }

// Enter reports whether the caller may go in; then it must call Leave.
func (g *Gate) Enter() bool {
	if g.n.Add(1) < gateShut {
		return true
	}
	g.Leave()
	return false
}

// Leave ends what Enter has begun.
func (g *Gate) Leave() {
	if g.n.Add(-1) == gateShut {
		g.once.Do(func() { close(g.done) })
	}
}

// Shut lets nobody in any more. It reports false if it was called before.
func (g *Gate) Shut() bool {
	for {
		n := g.n.Load()
		if n >= gateShut {
			return false
		}
		if g.n.CompareAndSwap(n, n+gateShut) {
			if n == 0 {
				g.once.Do(func() { close(g.done) })
			}
			return true
		}
	}
}

// Wait returns when the gate is shut and everybody has left.
func (g *Gate) Wait() { <-g.done }

// closedError says that what is closed; errors.Is finds net.ErrClosed.
func Closed(what string) error { return &closed{what} }

type closed struct{ what string }

func (e *closed) Error() string { return "netstack: " + e.what + " is closed" }
func (e *closed) Unwrap() error { return net.ErrClosed }
