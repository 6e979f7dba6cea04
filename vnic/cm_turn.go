package vnic

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// A program that connects several QPs to one listener counts on being asked for in that order: perftest pairs its QPs so
// (-q), and with Linux's drivers, which connect within rdma_connect, it gets what it expects. So each attempt of a context
// waits until the one before it at the same address has sent its request, or has come to nothing; and a listener
// announces the requests of one host in the order of their streams. But nobody waits for long: a peer that does not answer, or
// does not ask, delays its own others by no more than this.

const mostTurn = 100 * time.Millisecond

// turns are attempts whose requests have not been sent, or not been announced, by the other end's address.
type turns struct {
	mu   sync.Mutex
	last map[netip.AddrPort]*turn
}

// A turn is an attempt's.
type turn struct {
	all    *turns
	remote netip.AddrPort
	before <-chan struct{} // closed when the one before is over; or nil
	over   chan struct{}
	once   sync.Once
}

// take is called in the order of the attempts.
func (t *turns) take(remote netip.AddrPort) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = make(map[netip.AddrPort]*turn)
	}
	n := &turn{all: t, remote: remote, over: make(chan struct{})}
	if last := t.last[remote]; last != nil {
		n.before = last.over
	}
	t.last[remote] = n
	return n
}

// wait waits for the attempt before this one.
func (t *turn) wait(ctx context.Context) {
	if t.before == nil {
		return
	}
	late := time.NewTimer(mostTurn)
	defer late.Stop()
	select {
	case <-t.before:
	case <-late.C:
	case <-ctx.Done():
	}
}

// done lets the next one go. It may be called again.
func (t *turn) done() {
	t.once.Do(func() {
		close(t.over)
		t.all.mu.Lock()
		defer t.all.mu.Unlock()
		if t.all.last[t.remote] == t {
			delete(t.all.last, t.remote)
		}
	})
}
