package vnic

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// A program that connects several QPs to one listener counts on being asked for in that order: perftest pairs its QPs so
// (-q), and with Linux's drivers, which connect within rdma_connect, it gets what it expects. So the attempts of a context at
// one address stand in a line, and send their requests one after the other; streams are opened before that, some at a time. And a
// listener announces the requests of one host in the order in which they have come, be it that they are read in another.
// But nobody waits for long: a peer that does not answer, or does not ask, delays its own others by no more than Timeouts.Turn.

// turnsOpen is how many open streams at a time, at an address that answers: fewer than may be half open at a listener, and
// so few that they find room at one that takes few.
const turnsOpen = 8

// turns are attempts whose requests have not been sent, or requests that have not been announced.
type turns struct {
	most  time.Duration // that one delays others
	mu    sync.Mutex
	lines map[netip.AddrPort]*line // by the other end's address
	peers map[netip.AddrPort]*turn // of requests, by their stream's
}

// A line is of those who wait for each other. The first has its turn.
type line struct {
	turns []*turn
	open  int         // as many may begin
	timer *time.Timer // looks after the first, or nil
}

// A turn is an attempt's, or a request's.
type turn struct {
	all        *turns
	line, peer netip.AddrPort
	begin, now chan struct{} // closed when it may begin, and when it is the first

	// guarded by all.mu
	since          time.Time // it could have begun, or gone on
	begun, waiting bool
	first, over    bool
}

// take is called in the order of the attempts, or of the requests: then peer is the stream's other end.
func (t *turns) take(at, peer netip.AddrPort) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[at]
	if l == nil {
		if t.lines == nil {
			t.lines, t.peers = make(map[netip.AddrPort]*line), make(map[netip.AddrPort]*turn)
		}
		l = &line{open: turnsOpen}
		t.lines[at] = l
	}
	n := &turn{all: t, line: at, peer: peer, begin: make(chan struct{}), now: make(chan struct{})}
	if peer.IsValid() {
		t.peers[peer] = n
	}
	l.turns = append(l.turns, n)
	t.moveLocked(at, l, time.Now())
	return n
}

// of is that of the request that comes from peer; nil if there is none: it need not wait any more.
func (t *turns) of(peer netip.AddrPort) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[peer]
}

// moveLocked has those go whose turn it is, and sees to it that the first does not keep it for ever.
func (t *turns) moveLocked(at netip.AddrPort, l *line, now time.Time) {
	for len(l.turns) > 0 {
		n := l.turns[0]
		if !n.over {
			n.beginLocked(now)
			if !n.first {
				n.first = true
				close(n.now)
				if n.waiting {
					n.since = now
				}
			}
			if now.Sub(n.since) < t.most {
				break
			}
			l.open = min(2*l.open, 1<<16) // nobody answers there, perhaps
		}
		if t.peers[n.peer] == n {
			delete(t.peers, n.peer)
		}
		l.turns[0] = nil
		l.turns = l.turns[1:]
	}
	if len(l.turns) == 0 {
		if t.lines[at] == l {
			delete(t.lines, at)
		}
		if l.timer != nil {
			l.timer.Stop()
		}
		return
	}
	for _, n := range l.turns[:min(len(l.turns), l.open)] {
		n.beginLocked(now)
	}
	if l.timer == nil { // also for one that is alone: a request may come of a stream that is refused
		l.timer = time.AfterFunc(l.turns[0].since.Add(t.most).Sub(now), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			l.timer = nil
			t.moveLocked(at, l, time.Now())
		})
	}
}

func (n *turn) beginLocked(now time.Time) {
	if !n.begun {
		n.begun, n.since = true, now
		close(n.begin)
	}
}

// open waits until it may open a stream.
func (n *turn) open(ctx context.Context) { await(ctx, n.begin) }

// wait waits until those before it are over.
func (n *turn) wait(ctx context.Context) {
	n.all.mu.Lock()
	if !n.waiting {
		n.waiting = true
		n.since = time.Now()
	}
	n.all.mu.Unlock()
	await(ctx, n.now)
}

func await(ctx context.Context, c <-chan struct{}) {
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// done lets the next one go. It may be called again.
func (n *turn) done() {
	t := n.all
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.over {
		return
	}
	n.over = true
	l := t.lines[n.line]
	if l == nil || len(l.turns) == 0 {
		return
	}
	if l.turns[0] == n {
		l.open = turnsOpen
	}
	t.moveLocked(n.line, l, time.Now())
}
