package vnic

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// Memory that can block may be touched by its own context's goroutines only, so a connection on loopback,
// where each requester copies for both, has to become one of another kind when a request needs such
// memory: two Endpoints joined by a pipe. Until then, maybe for ever, it stays what it is: small messages
// whose octets are in slabs need none. The two ends change over at a boundary between steps, without
// either waiting with its run token held:
//
//	loop ── hand asked for ──▶ each end stops copying, and is quiet
//	     ── both are quiet and have read their mail ──▶ moved: each end takes its wire when it runs
//	     ── an end leaves RTS ──▶ over: it stays a loop, on which nothing is copied any more
//
// A QP that is not RTS copies nothing, and one that is copies nothing more after the hand-over was
// asked for; so once it has moved or is over, nobody touches the other's memory. An end that is not
// attached yet is quiet by itself, and need not run for the other to move.

// A loopPair is what the two ends of a connection on loopback have in common.
type loopPair struct {
	ends  [2]loopEnd
	asked atomic.Bool // set with mu held

	mu    sync.Mutex
	moved bool          // guarded by mu
	over  bool          // guarded by mu
	done  chan struct{} // guarded by mu: closed once moved or over
}

// settleLocked tells those that wait that nobody copies for both any more.
func (p *loopPair) settleLocked() {
	if p.done != nil {
		close(p.done)
		p.done = nil
	}
}

// hand asks for the connection to be handed over. The channel is closed when nobody copies for both
// ends any more; nil: it is so already.
func (l *loopEnd) hand() <-chan struct{} {
	p := l.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved || p.over {
		return nil
	}
	if !p.asked.Load() {
		l.stream, l.peer.stream = llp.NewPipe(netip.AddrPort{}, netip.AddrPort{}) // the QPs show their own
		p.asked.Store(true)
	}
	if p.done == nil {
		p.done = make(chan struct{})
	}
	l.qp.wake()
	l.peer.qp.wake()
	return p.done
}

// handOver does l's part of a hand-over that was asked for; its QP is RTS.
func (l *loopEnd) handOver() (more bool) {
	qp := l.qp
	s := &qp.sq
	if s.next != s.tail {
		// A message half-way begins again on the wire: for a Send its receive is taken, and nobody
		// has been told of the part of a Write or Read that is there. Only a Write that waits with its
		// immediate data is over.
		e := s.at(s.next)
		e.half = e.half || e.wr.Op == rdma.OpWriteImm && e.off > 0 && e.off == e.total
		e.off = 0
	}
	p := l.pair
	p.mu.Lock()
	if l.post.Load() {
		p.mu.Unlock()
		return true // mail comes first
	}
	l.quiet = true
	if !p.moved && !p.over && (l.peer.quiet || l.peer.phase.Load() == loopNew) && !l.peer.post.Load() {
		p.moved = true
		p.settleLocked()
	}
	moved := p.moved
	p.mu.Unlock()
	if !moved {
		return false // the peer wakes us
	}
	l.takeWire()
	l.peer.qp.wake()
	return true
}

// takeWire makes the QP's end of the pipe its link.
func (l *loopEnd) takeWire() *wire {
	qp := l.qp
	p := qp.linkParam
	// Both ends may send at once, with no message to begin with, and nothing can damage the octets.
	p.Initiator, p.PeerToPeer, p.RTR = true, false, 0
	p.CRC, p.MarkersIn, p.MarkersOut = false, false, false
	w := newWire(qp, l.stream, p, rdma.ConnParam{Extensions: true})
	w.nudges = nudgesMost
	r := &qp.rx
	r.mu.Lock()
	r.from = nil
	r.mu.Unlock()
	qp.gotReceive() // a Send that waits for a receive comes again
	qp.link = w
	qp.peer.Store(nil)
	if info := qp.peek.Load(); info != nil {
		i := *info
		i.stream = l.stream
		qp.peek.Store(&i)
	}
	w.open()
	return w
}

// SetStaged says that c may have memory that can block from now on (mode 0). When it returns, no QP of
// c whose link could touch it is run by others than c's own goroutines. rdma.ErrClosed if c is closed
// meanwhile.
func (c *Context) SetStaged() error {
	c.stageMu.Lock()
	defer c.stageMu.Unlock()
	if !c.mem.AllowBlocking() {
		return nil
	}
	for _, qp := range c.qpList() {
		qp.do(func() {}) // whoever ran it before has noticed, or is done
	}
	select {
	case <-c.stop:
		return fmt.Errorf("device %s: %w", c.dev.cfg.Name, rdma.ErrClosed)
	default:
		return nil
	}
}
