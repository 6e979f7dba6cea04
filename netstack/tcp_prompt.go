package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A tcpFlow is a connection, seen from here.
type tcpFlow struct{ local, remote netip.AddrPort }

// arriving does what d, which brings p, has to do with c beforehand: c may be nil.
func (c *TCPConn) arriving(d *ethswitch.Delivery, p *frame.Packet) {
	if c == nil || !d.Free() {
		return
	}
	sender := senderOf(d)
	if sender != nil && !sender.seeksPeer() || sender == nil && !d.Short && !d.Handle {
		return
	}
	if n, err := p.TCPHeaderLen(); err != nil || p.End-p.L4 == n {
		return
	}
	if sender != nil {
		sender.meet(c)
		return
	}
	if d.Short {
		c.fetch()
	}
	d.Hold((*receiver)(c))
}

// A receiver is a TCPConn as whoever brings its segments sees it.
type receiver TCPConn

// senderOf is the connection that has sent what d brings, or nil.
func senderOf(d *ethswitch.Delivery) *TCPConn {
	if d == nil {
		return nil
	}
	r, _ := d.Sender.(*receiver)
	return (*TCPConn)(r)
}

// flowOf is that of the TCP segment p, which was received.
func flowOf(p *frame.Packet) tcpFlow {
	var src, dst netip.Addr
	if p.EtherType == frame.EtherIPv4 {
		src, dst = netip.AddrFrom4([4]byte(p.Headers[p.L3+12:])), netip.AddrFrom4([4]byte(p.Headers[p.L3+16:]))
	} else {
		src, dst = netip.AddrFrom16([16]byte(p.Headers[p.L3+8:])), netip.AddrFrom16([16]byte(p.Headers[p.L3+24:]))
	}
	return tcpFlow{
		netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p.Headers[p.L4+2:])),
		netip.AddrPortFrom(src, binary.BigEndian.Uint16(p.Headers[p.L4:])),
	}
}

// tcpConns are the connections whose segments can be handled so.
type tcpConns struct {
	mu sync.RWMutex
	m  map[tcpFlow]*TCPConn
}

// of is the connection that p, which d brings, is for, or nil. What the sender takes for its other end may be
// another stack's: addresses move.
func (t *tcpConns) of(d *ethswitch.Delivery, p *frame.Packet) *TCPConn {
	if _, err := p.TCPHeaderLen(); err != nil { // the ports may be behind what parse has copied
		return nil
	}
	flow := flowOf(p)
	if to := senderOf(d).other(); to != nil && to.conns == t && to.flow == flow {
		return to
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

// seeksPeer reports whether c has still to learn what its other end is.
func (c *TCPConn) seeksPeer() bool { return c.prompt.Load() != nil && c.peer.Load() == nil }

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
	if c.ahead.Add(1) > 1 || n > ethswitch.ShortFrame {
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

// Hold implements Receiver: while c is held gVisor queues segments and leaves them there.
func (r *receiver) Hold() bool {
	c := (*TCPConn)(r)
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

// Finish implements Receiver: it does what gVisor's processors do.
func (r *receiver) Finish() bool {
	c := (*TCPConn)(r)
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

// Tell implements Receiver.
func (r *receiver) Tell(more func() bool) {
	if f := r.prompt.Load(); f != nil {
		(*f)(more)
	} else if f := r.notify.Load(); f != nil {
		(*f)()
	}
}
