package tcp

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
)

// A flow is a connection, seen from here.
type flow struct{ local, remote netip.AddrPort }

// beforeSegment does what d, which brings p, has to do with c beforehand: c may be nil.
func (c *Conn) beforeSegment(d *ethswitch.Delivery, p *frame.Packet) {
	if c == nil || !d.Free() {
		return
	}
	sender := senderOf(d)
	if sender != nil && !sender.seeksPeer() || sender == nil && !d.Short && !d.Handle {
		return
	}
	n, err := p.TCPHeaderLen()
	if err != nil {
		return
	}
	if p.End-p.L4 == n {
		// An ACK may make TCP send much, and is left to others. But where something is missing each of
		// them is looked at, and to wake two goroutines for that takes longer than to do it here.
		if sender == nil && c.loss.busy.Load() {
			d.Hold((*receiver)(c))
		}
		return
	}
	if sender != nil {
		sender.setPeer(c)
		return
	}
	if d.Short {
		c.prefetchAll()
	}
	d.Hold((*receiver)(c))
}

// A receiver is a Conn as whoever brings its segments sees it.
type receiver Conn

// senderOf is the connection that has sent what d brings, or nil.
func senderOf(d *ethswitch.Delivery) *Conn {
	if d == nil {
		return nil
	}
	r, _ := d.Sender.(*receiver)
	return (*Conn)(r)
}

// flowOf is that of the TCP segment p, which was received.
func flowOf(p *frame.Packet) flow {
	var src, dst netip.Addr
	if p.EtherType == frame.EtherIPv4 {
		src, dst = netip.AddrFrom4([4]byte(p.Headers[p.L3+12:])),
			netip.AddrFrom4([4]byte(p.Headers[p.L3+16:]))
	} else {
		src, dst = netip.AddrFrom16([16]byte(p.Headers[p.L3+8:])),
			netip.AddrFrom16([16]byte(p.Headers[p.L3+24:]))
	}
	return flow{
		netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p.Headers[p.L4+2:])),
		netip.AddrPortFrom(src, binary.BigEndian.Uint16(p.Headers[p.L4:])),
	}
}

// connTable are the connections whose segments can be handled so.
type connTable struct {
	mu sync.RWMutex
	m  map[flow]*Conn // +checklocks:mu
}

// of is the connection that p, which d brings, is for, or nil. What the sender takes for its other
// end may be another stack's: addresses move.
func (t *connTable) of(d *ethswitch.Delivery, p *frame.Packet) *Conn {
	if _, err := p.TCPHeaderLen(); err != nil { // the ports may be behind what parse has copied
		return nil
	}
	flow := flowOf(p)
	if to := senderOf(d).other(); to != nil && to.conns == t && to.flow == flow {
		return to
	}
	return t.find(flow)
}

func (t *connTable) find(f flow) *Conn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[f]
}

func (t *connTable) add(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[flow]*Conn)
	}
	t.m[c.flow] = c
}

func (t *connTable) remove(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[c.flow] == c {
		delete(t.m, c.flow)
	}
}

// Between two stacks of this process the one who sends does the same for the other end: it takes
// hold of that before it sends, so that gVisor leaves there what it has queued, and handles that
// when it has let go of its own end: see WriteFrom. A sender learns which connection the other end
// is when one of its frames gets there. That is a hint only: frames take their way. It does so for
// the first octets behind the other end's: of a stream one end deals with what is there while the
// other goes on.

// seeksPeer reports whether c has still to learn what its other end is.
func (c *Conn) seeksPeer() bool { return c.prompt.Load() != nil && c.peer.Load() == nil }

// other is the other end, if it is known.
func (c *Conn) other() *Conn {
	if c == nil {
		return nil
	}
	return c.peer.Load()
}

// setPeer notes that c and p are the two ends of a connection.
func (c *Conn) setPeer(p *Conn) {
	c.peer.Store(p)
	p.peer.Store(c)
}

// forgetPeer forgets the other end.
func (c *Conn) forgetPeer() {
	if p := c.peer.Swap(nil); p != nil {
		p.peer.CompareAndSwap(c, nil)
	}
}

// peerToRun is the peer, if n octets are to be handled there by who writes them.
func (c *Conn) peerToRun(n int) *Conn {
	p := c.peer.Load()
	if p == nil {
		return nil
	}
	p.unanswered.Store(0)
	if c.unanswered.Add(1) > 1 || n > ethswitch.ShortFrame {
		return nil
	}
	return p
}

// SetPrompt sets a function that may be called in place of SetNotify's when there is more to read:
// by the goroutine that has brought it and with no lock held, so that it may use the connection. It
// must not wait for anything, but for what the program answers, if more is not nil: more reports
// whether that goroutine has more to bring, and the function returns soon then. With nil it has; it
// may be in the other end's WriteFrom.
func (c *Conn) SetPrompt(f func(more func() bool)) {
	if f == nil {
		c.prompt.Store(nil)
		return
	}
	c.prompt.Store(&f)
}

// The values of Conn.held.
const (
	heldNot uint32 = iota
	heldByBringer
	heldReadable // and there is more to read
)

// readable notes that there is more to read, if the one who handles segments will tell.
func (c *Conn) readable() bool {
	return c.held.CompareAndSwap(heldByBringer, heldReadable) || c.held.Load() == heldReadable
}

// Hold implements Receiver: while c is held gVisor queues segments and leaves them there.
//
// +checklocksignore: Finish gives the locks back.
func (r *receiver) Hold() bool {
	c := (*Conn)(r)
	if c.prompt.Load() == nil || !c.mu.TryLock() {
		return false
	}
	if c.closed || c.ep.EndpointState() != tcp.StateEstablished {
		c.mu.Unlock()
		return false
	}
	c.ep.LockUser()
	c.held.Store(heldByBringer)
	return true
}

// Finish implements Receiver: it does what gVisor's processors do.
//
// +checklocksignore: Hold took the locks.
func (r *receiver) Finish() bool {
	c := (*Conn)(r)
	c.queueRun()
	over := false
	if c.ep.EndpointState() == tcp.StateEstablished {
		over = c.handle()
	}
	if c.loss.heard.Load() {
		c.loss.step()
	}
	c.ep.UnlockUser() // what is left goes to a processor
	if over {
		c.drain()
	}
	c.mu.Unlock()
	return c.held.Swap(heldNot) == heldReadable
}

// handle handles what is queued for c, whose endpoint is locked and in a state in which it may have
// to send. It reports whether drain has to follow when the endpoint is not locked any more.
func (c *Conn) handle() (over bool) {
	sack := c.ep.SACKPermitted
	if sack {
		c.acks.gather()
	}
	err := gvisor.HandleSegments(c.ep)
	switch {
	case err != nil:
		gvisor.ResetConnection(c.ep, err)
		over = true
	case c.ep.EndpointState() == tcp.StateClose:
		over = true
	case c.ep.EndpointState() == tcp.StateTimeWait:
		gvisor.StartTimeWait(c.ep)
	}
	if sack {
		c.host.acks.settle(&c.acks)
	}
	return over
}

// drain does what is to be done where a connection has ended in handle.
func (c *Conn) drain() {
	gvisor.DrainSegments(c.ep)
	c.wq.Notify(waiter.EventHUp | waiter.EventErr | waiter.ReadableEvents | waiter.WritableEvents)
}

// Tell implements Receiver.
func (r *receiver) Tell(more func() bool) {
	if f := r.prompt.Load(); f != nil {
		(*f)(more)
	} else if f := r.notify.Load(); f != nil {
		(*f)()
	}
}
