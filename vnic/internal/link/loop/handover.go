package loop

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link/stream"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// Memory that can block may be touched by its own context's goroutines only, so a connection on
// loopback, where each requester copies for both, has to become one of another kind when a request
// needs such memory: two Endpoints joined by a pipe. Until then, maybe for ever, it stays what it
// is: small messages whose octets are in slabs need none. Who wants its octets to be on a network
// has a connection there in place of the pipe. The two ends change over at a boundary between
// steps, without either waiting with its run token held:
//
//	loop ── HandOver asked for ──▶ each end stops copying, and is quiet
//	     ── both are quiet and have read their mail ──▶ moved: each end takes its pipe when it runs
//	     ── an end leaves RTS ──▶ over: it stays a loop, on which nothing is copied any more
//
// A QP that is not RTS copies nothing, and one that is copies nothing more after the hand-over was
// asked for; so once it has moved or is over, nobody touches the other's memory. An end that is not
// attached yet is quiet by itself, and need not run for the other to move.

// A pair is what the two ends of a connection on loopback have in common.
type pair struct {
	ends  [2]End
	asked atomic.Bool // set with mu held

	mu    sync.Mutex
	moved bool          // +checklocks:mu
	over  bool          // +checklocks:mu
	done  chan struct{} // guarded by mu: closed once moved or over
}

// settleLocked tells those that wait that nobody copies for both any more.
func (p *pair) settleLocked() {
	if p.done != nil {
		close(p.done)
		p.done = nil
	}
}

// HandOver asks for the connection to be handed over. The channel is closed when nobody copies for
// both ends any more; nil: it is so already.
func (l *End) HandOver() <-chan struct{} {
	p := l.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved || p.over {
		return nil
	}
	if !p.asked.Load() {
		// The QPs show addresses of their own.
		own, peers := llp.NewPipe(netip.AddrPort{}, netip.AddrPort{})
		llp.Show(own, l.qp.Copied)
		llp.Show(peers, l.peer.qp.Copied)
		l.askLocked(own, peers)
	}
	return l.waitLocked()
}

// Movable implements link.Link.
func (l *End) Movable() bool {
	p := l.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over && (!p.asked.Load() || llp.Movable(l.pipe))
}

// MoveTo implements link.Link.
func (l *End) MoveTo(own, peers iwarp.Stream) (done <-chan struct{}, moved func() bool) {
	p := l.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil, nil
	}
	if p.asked.Load() { // for a pipe, which the ends may not have yet
		return llp.MoveTo(l.pipe, own, peers)
	}
	l.askLocked(llp.Of(own), llp.Of(peers))
	return l.waitLocked(), func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.moved
	}
}

func (l *End) askLocked(own, peers llp.Stream) {
	l.pipe, l.peer.pipe = own, peers
	l.pair.asked.Store(true)
	l.qp.Parted()
	l.peer.qp.Parted()
}

func (l *End) waitLocked() <-chan struct{} {
	p := l.pair
	if p.done == nil {
		p.done = make(chan struct{})
	}
	l.qp.Wake()
	l.peer.qp.Wake()
	return p.done
}

// ShowCopies implements link.Link.
func (l *End) ShowCopies() {
	if l.qp.State() == rdma.QPRTS {
		l.HandOver()
	}
}

// moveOver does l's part of a hand-over that was asked for; its QP is RTS.
func (l *End) moveOver() (more bool) {
	if e := l.work.Current(); e != nil {
		// A message half-way begins again on the wire: for a Send its receive is taken, and nobody
		// has been told of the part of a Write or Read that is there. Only a Write that waits with its
		// immediate data is over.
		e.HalfPosted = e.HalfPosted || e.WR.Op == rdma.OpWriteImm && e.Moved > 0 && e.Moved == e.Total
		e.Moved = 0
	}
	p := l.pair
	p.mu.Lock()
	if l.post.Load() {
		p.mu.Unlock()
		return true // mail comes first
	}
	l.rest = true
	if !p.moved && !p.over && (l.peer.rest || l.peer.phase.Load() == phaseNew) && !l.peer.post.Load() {
		p.moved = true
		l.carried()
		l.peer.carried()
		p.settleLocked()
	}
	moved := p.moved
	p.mu.Unlock()
	if !moved {
		return false // the peer wakes us
	}
	l.takePipe()
	l.peer.qp.Wake()
	return true
}

// carried says so if the pipe is a connection.
func (l *End) carried() {
	if s := l.pipe; !s.Properties().Records {
		l.qp.Carried(s.LocalAddr(), s.RemoteAddr(), s.EMSS(), false)
	}
}

// takePipe makes the QP's end of the pipe its link.
func (l *End) takePipe() *stream.Link {
	p := l.qp.Param()
	// Both ends may send at once, with no message to begin with.
	p.Initiator, p.PeerToPeer, p.RTR = true, false, 0
	if l.pipe.Properties().Records { // and nothing can damage the octets
		p.CRC, p.MarkersIn, p.MarkersOut = false, false, false
	}
	w := stream.New(l.qp, l.pipe, stream.Config{Param: p, Extensions: true})
	l.work.Recv.Open(nil)
	l.qp.GotReceive() // a Send that waits for a receive comes again
	l.over = true
	l.qp.Replace(w)
	l.carried() // who was not attached yet has not been told
	w.Open()
	return w
}
