package netstack

import (
	"sync"
	"sync/atomic"
)

// A gate counts the calls that are inside something, so that whoever closes it can wait for them.
// It takes the place of a lock that would be held across the call.
type gate struct {
	n    atomic.Int64 // calls inside, plus gateShut once it is shut
	once sync.Once
	done chan struct{}
}

const gateShut = 1 << 62

func newGate() *gate { return &gate{done: make(chan struct{})} }

// enter reports whether the caller may go in; then it must call leave.
func (g *gate) enter() bool {
	if g.n.Add(1) < gateShut {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == gateShut {
		g.once.Do(func() { close(g.done) })
	}
}

// shut lets nobody in any more. It reports false if it was called before.
func (g *gate) shut() bool {
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

// wait returns when the gate is shut and everybody has left.
func (g *gate) wait() { <-g.done }
