package cm

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// A program that connects several QPs to one listener counts on being asked for in that order:
// perftest pairs its QPs so (-q), and with Linux's drivers, which connect within rdma_connect, it
// gets what it expects. So the attempts of a user at one address stand in a queue, and send their
// requests one after the other; streams are opened before that, some at a time. And a listener
// announces the requests of one host in the order in which they have come, be it that they are read
// in another. But nobody waits for long: a peer that does not answer, or does not ask, delays its
// own others by no more than Config.Turn.

// opensAtOnce is how many open streams at a time, at an address that answers: fewer than may be
// half open at a listener, and so few that they find room at one that takes few.
const opensAtOnce = 8

// handshakeQueues are of attempts whose requests have not been sent, or requests that have not been
// announced. Its lock is below all others.
type handshakeQueues struct {
	most time.Duration // that one delays others
	mu   sync.Mutex
	// queues has them by the other end's address, peers the requests by their stream's.
	queues map[netip.AddrPort]*handshakeQueue // +checklocks:mu
	peers  map[netip.AddrPort]*ticket         // +checklocks:mu
}

// A handshakeQueue is of those who wait for each other.
type handshakeQueue struct {
	tickets []*ticket
	open    int         // as many may open their streams
	timer   *time.Timer // looks after the first, or nil
}

// A ticket is the place of an attempt, or of a request, in a queue.
type ticket struct {
	all         *handshakeQueues
	queue, peer netip.AddrPort
	open, first chan struct{} // closed when it may open its stream, and when it is the first

	// guarded by all.mu
	since             time.Time // it could have begun, or gone on
	opened, waits     bool      // open is closed; awaitFirst was called
	firstClosed, left bool      // first is closed; leave was called
}

// join is called in the order of the attempts, or of the requests: then peer is the stream's other
// end.
func (q *handshakeQueues) join(at, peer netip.AddrPort) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.queues[at]
	if l == nil {
		if q.queues == nil {
			q.queues, q.peers = make(map[netip.AddrPort]*handshakeQueue), make(map[netip.AddrPort]*ticket)
		}
		l = &handshakeQueue{open: opensAtOnce}
		q.queues[at] = l
	}
	t := &ticket{all: q, queue: at, peer: peer, open: make(chan struct{}), first: make(chan struct{})}
	if peer.IsValid() {
		q.peers[peer] = t
	}
	l.tickets = append(l.tickets, t)
	q.advanceLocked(at, l, time.Now())
	return t
}

// of is that of the request that comes from peer; nil if there is none: it need not wait any more.
func (q *handshakeQueues) of(peer netip.AddrPort) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.peers[peer]
}

// advanceLocked lets those go who may, and sees to it that the first does not stay for ever.
//
// +checklocks:q.mu
func (q *handshakeQueues) advanceLocked(at netip.AddrPort, l *handshakeQueue, now time.Time) {
	for len(l.tickets) > 0 {
		t := l.tickets[0]
		if !t.left {
			t.openLocked(now)
			if !t.firstClosed {
				t.firstClosed = true
				close(t.first)
				if t.waits {
					t.since = now
				}
			}
			if now.Sub(t.since) < q.most {
				break
			}
			l.open = min(2*l.open, 1<<16) // nobody answers there, perhaps
		}
		if q.peers[t.peer] == t {
			delete(q.peers, t.peer)
		}
		l.tickets[0] = nil
		l.tickets = l.tickets[1:]
	}
	if len(l.tickets) == 0 {
		if q.queues[at] == l {
			delete(q.queues, at)
		}
		if l.timer != nil {
			l.timer.Stop()
		}
		return
	}
	for _, t := range l.tickets[:min(len(l.tickets), l.open)] {
		t.openLocked(now)
	}
	if l.timer == nil { // also for one that is alone: a request may come of a stream that is refused
		l.timer = time.AfterFunc(l.tickets[0].since.Add(q.most).Sub(now), func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			l.timer = nil
			q.advanceLocked(at, l, time.Now())
		})
	}
}

func (t *ticket) openLocked(now time.Time) {
	if !t.opened {
		t.opened, t.since = true, now
		close(t.open)
	}
}

// awaitOpen waits until t may open its stream, or ctx ends.
func (t *ticket) awaitOpen(ctx context.Context) { await(ctx, t.open) }

// awaitFirst waits until those before t have left, or have had their time, or ctx ends.
func (t *ticket) awaitFirst(ctx context.Context) {
	t.all.mu.Lock()
	if !t.waits {
		t.waits = true
		t.since = time.Now()
	}
	t.all.mu.Unlock()
	await(ctx, t.first)
}

// leave lets the next one go. It may be called again.
func (t *ticket) leave() {
	q := t.all
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	l := q.queues[t.queue]
	if l == nil || len(l.tickets) == 0 {
		return
	}
	if l.tickets[0] == t {
		l.open = opensAtOnce
	}
	q.advanceLocked(t.queue, l, time.Now())
}
