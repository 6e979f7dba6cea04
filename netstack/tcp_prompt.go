package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// A segment usually goes from the goroutine that read the frame to one of gVisor's, which handles it, and
// from there to the connection's user. Each time Go wakes one more thread to see whether there is more to do, and where the
// processors are busy that thread takes one from those that have to do with the message. So who has read a short
// frame of octets from outside handles the segment itself, and runs the connection's user, if nobody has hold of
// the connection and nothing seems to come behind it. Long frames that are there one behind the other are handled so together: their octets are
// in a cache still, and one ACK is enough for them. Else a segment goes the usual way: ACKs may make TCP send much.

// promptMax is the longest frame, in octets, that is a short one.
const promptMax = 4096

// A tcpFlow is a connection, seen from here.
type tcpFlow struct{ local, remote netip.AddrPort }

// prompt takes hold of c, which f, which is p, has octets for, if its segment is to be handled here. Who has
// a batch lets go of it, else the caller does.
func (l *link) prompt(f *Frame, p *packet, c *TCPConn) (held bool) {
	if c == nil || !f.short && !f.prompt && f.from == nil || f.batch != nil && f.batch.conn != nil {
		return false
	}
	if n, err := p.tcpHeaderLen(); err != nil || p.end-p.l4 == n {
		return false
	}
	switch {
	case f.from != nil:
		f.from.meet(c)
		return false
	case f.short:
		c.fetch()
	}
	if !f.prompt || !c.begin() {
		return false
	}
	if f.batch != nil {
		f.batch.conn = c
		return false
	}
	return true
}

// flowOf is that of the TCP segment p, which was received.
func flowOf(p *packet) tcpFlow {
	var src, dst netip.Addr
	if p.ether == etherIPv4 {
		src, dst = netip.AddrFrom4([4]byte(p.hdr[p.l3+12:])), netip.AddrFrom4([4]byte(p.hdr[p.l3+16:]))
	} else {
		src, dst = netip.AddrFrom16([16]byte(p.hdr[p.l3+8:])), netip.AddrFrom16([16]byte(p.hdr[p.l3+24:]))
	}
	return tcpFlow{
		netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p.hdr[p.l4+2:])),
		netip.AddrPortFrom(src, binary.BigEndian.Uint16(p.hdr[p.l4:])),
	}
}

// tcpConns are the connections whose segments can be handled so.
type tcpConns struct {
	mu sync.RWMutex
	m  map[tcpFlow]*TCPConn
}

// of is the connection that f, which is p, is for, or nil. The sender's guess may be another stack's: addresses move.
func (t *tcpConns) of(f *Frame, p *packet) *TCPConn {
	if _, err := p.tcpHeaderLen(); err != nil { // the ports may be behind what parse has copied
		return nil
	}
	flow := flowOf(p)
	if f.to != nil && f.to.conns == t && f.to.flow == flow {
		return f.to
	}
	return t.find(flow)
}

func (t *tcpConns) find(f tcpFlow) *TCPConn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[f]
}

func (t *tcpConns) add(c *TCPConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[tcpFlow]*TCPConn)
	}
	t.m[c.flow] = c
}

func (t *tcpConns) remove(c *TCPConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[c.flow] == c {
		delete(t.m, c.flow)
	}
}

// Between two stacks of this process the one who sends does the same for the other end: it takes hold of that before it sends, so that
// gVisor leaves there what it has queued, and handles that when it has let go of its own end: see WriteFrom. A sender learns which connection
// the other end is when one of its frames gets there. That is a hint only: frames take their way. It does so for the first octets behind the
// other end's: of a stream one end deals with what is there while the other goes on.

// unmet is c if it has still to learn what its other end is, and nil otherwise.
func (c *TCPConn) unmet() *TCPConn {
	if c == nil || c.prompt.Load() == nil || c.peer.Load() != nil {
		return nil
	}
	return c
}

// other is the other end, if it is known.
func (c *TCPConn) other() *TCPConn {
	if c == nil {
		return nil
	}
	return c.peer.Load()
}

// meet notes that c and p are the two ends of a connection.
func (c *TCPConn) meet(p *TCPConn) {
	c.peer.Store(p)
	p.peer.Store(c)
}

// part forgets the other end.
func (c *TCPConn) part() {
	if p := c.peer.Swap(nil); p != nil {
		p.peer.CompareAndSwap(c, nil)
	}
}

// answering is the peer, if n octets are to be handled there by who writes them.
func (c *TCPConn) answering(n int) *TCPConn {
	p := c.peer.Load()
	if p == nil {
		return nil
	}
	p.ahead.Store(0)
	if c.ahead.Add(1) > 1 || n > promptMax {
		return nil
	}
	return p
}

// SetPrompt sets a function that may be called in place of SetNotify's when there is more to read: by the goroutine that
// has brought it and with no lock held, so that it may use the connection. It must not wait for anything, but for what the program
// answers, if more is not nil: more reports whether that goroutine has more to bring, and the function returns soon then. With nil
// it has; it may be in the other end's WriteFrom.
func (c *TCPConn) SetPrompt(f func(more func() bool)) {
	if f == nil {
		c.prompt.Store(nil)
		return
	}
	c.prompt.Store(&f)
}

// The values of TCPConn.handling.
const (
	handlingNot uint32 = iota
	handling
	handlingReadable // and there is more to read
)

// readable notes that there is more to read, if the one who handles segments will tell.
func (c *TCPConn) readable() bool {
	return c.handling.CompareAndSwap(handling, handlingReadable) || c.handling.Load() == handlingReadable
}

// begin takes hold of c for a segment; end has to follow. While c is held gVisor queues segments and leaves
// them there.
func (c *TCPConn) begin() bool {
	if c.prompt.Load() == nil || !c.mu.TryLock() {
		return false
	}
	if c.closed || c.ep.EndpointState() != tcp.StateEstablished {
		c.mu.Unlock()
		return false
	}
	c.ep.LockUser()
	c.handling.Store(handling)
	return true
}

// end handles what was queued, as gVisor's processors do, and lets go of c. If it returns true, call ready.
func (c *TCPConn) end() bool {
	var err tcpip.Error
	if c.ep.EndpointState() == tcp.StateEstablished {
		if err = handleSegments(c.ep); err != nil {
			resetConnection(c.ep, err)
		}
	}
	c.ep.UnlockUser() // what is left goes to a processor
	if err != nil {
		drainSegments(c.ep)
		c.wq.Notify(waiter.EventHUp | waiter.EventErr | waiter.ReadableEvents | waiter.WritableEvents)
	}
	c.mu.Unlock()
	return c.handling.Swap(handlingNot) == handlingReadable
}

// ready tells c's user that there is more to read.
func (c *TCPConn) ready(more func() bool) {
	if f := c.prompt.Load(); f != nil {
		(*f)(more)
	} else if f := c.notify.Load(); f != nil {
		(*f)()
	}
}

// arrive is Input for a frame from outside, which it releases. The caller holds no lock. prompt says that nothing
// seems to come behind the frame; more is what SetPrompt says.
func (a *Attachment) arrive(f *Frame, prompt bool, more func() bool) {
	f.short = f.Len() <= promptMax
	f.prompt = prompt && f.short
	_ = a.Input(f) // counts what it drops
	c := f.ready
	f.Release()
	if c != nil {
		c.ready(more)
	}
}

// A batch is long frames that were there one behind the other.
type batch struct {
	frames [batchMost]*Frame
	n      int
	conn   *TCPConn // that is held, or nil
}

// batchMost is how many frames a batch has at most. With half as many there are more ACKs; with twice as many, hardly fewer.
const batchMost = 8

func (b *batch) full() bool { return b.n == batchMost }

func (b *batch) add(f *Frame) {
	b.frames[b.n] = f
	b.n++
}

// arriveTogether is arrive for the frames of b, which is empty then. The segments of the first connection that can be held are handled
// when all frames are there.
func (a *Attachment) arriveTogether(b *batch) {
	for _, f := range b.frames[:b.n] {
		f.prompt, f.batch = true, b
		_ = a.Input(f) // counts what it drops
		f.Release()
	}
	c := b.conn
	*b = batch{}
	if c != nil && c.end() {
		c.ready(nil)
	}
}
