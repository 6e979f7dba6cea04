package tcp

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
)

// A Source is what WriteFrom takes octets from. Len is how many Read will give in all. It is an
// alias, so that others can name the same type.
type Source = interface {
	io.Reader
	Len() int
}

// A Conn is a TCP connection that never blocks. ReadInto, WriteFrom, EMSS and the calls that
// close it belong to one goroutine at a time, but for Abort, which may come from another: who owns
// the connection may be away, in WriteFrom's source, for as long as it likes.
type Conn struct {
	ep            *tcp.Endpoint
	wq            *waiter.Queue
	entry         waiter.Entry
	notify        atomic.Pointer[func()]
	prompt        atomic.Pointer[func(more func() bool)]
	held          atomic.Uint32
	local, remote netip.AddrPort
	flow          flow                      // without 4in6 addresses
	id            stack.TransportEndpointID // the same, for gVisor
	queue         gvisor.SegmentQueue       // or nil: see queueSegment
	conns         *connTable                // that has it
	host          *Host
	loss          lossControl
	acks          delayedAck
	run           run // of segments, for who holds the Conn as a receiver
	memory        gvisor.Memory
	userPrefetch  atomic.Pointer[func()]
	// the other end, if it is in this process and known: see setPeer
	peer       atomic.Pointer[Conn]
	unanswered atomic.Uint32 // how often this end has written since the peer did, if that is known

	mu     sync.Mutex // held while ep is used; guards what follows
	closed bool
	in     sink
	read   int // octets since tellWindow has looked
	got    int // octets since gotAt
	gotAt  tcpip.MonotonicTime
	out    payload
	// err is why the connection was lost: the first reason counts. gVisor tells that once only; after
	// it a reader would see an orderly end.
	err atomic.Pointer[error]
}

// endpointEvents are the events that SetNotify's function is called for.
const endpointEvents = waiter.ReadableEvents | waiter.WritableEvents |
	waiter.EventHUp | waiter.EventErr | waiter.EventRdHUp

// newConn wraps an established connection of h.
func (h *Host) newConn(ep *tcp.Endpoint, wq *waiter.Queue) *Conn {
	c := &Conn{ep: ep, wq: wq, conns: &h.conns, host: h}
	if a, err := ep.GetLocalAddress(); err == nil {
		c.local = gvconv.GoAddrPort(a)
	}
	if a, err := ep.GetRemoteAddress(); err == nil {
		c.remote = gvconv.GoAddrPort(a)
	}
	c.identify(h)
	c.entry.Init(c, endpointEvents)
	wq.EventRegister(&c.entry)
	c.acks.sent.Sender = (*receiver)(c)
	ep.LockUser()
	ep.SetOwner(&c.acks)
	c.memory = gvisor.MemoryOf(ep)
	if c.loss.start(c, h.st.Clock()); c.loss.snd.Exists() {
		c.acks.scale = c.loss.snd.Receiver().RcvWndScale
	}
	ep.UnlockUser()
	c.conns.add(c)
	_ = h.cfg.Liveness.Apply(ep) // an error: the connection has ended, which is seen in its turn
	return c
}

// NotifyEvent implements waiter.EventListener for gVisor; it is not for others to call.
func (c *Conn) NotifyEvent(m waiter.EventMask) {
	if m == waiter.ReadableEvents && c.readable() {
		return
	}
	if f := c.notify.Load(); f != nil {
		(*f)()
	}
}

// SetNotify sets the function that is called whenever more can be read or written or the connection
// has changed. gVisor calls it with its locks held, from any goroutine: it may only mark and wake.
// It hears of what happens after SetNotify: look once at what was there before.
func (c *Conn) SetNotify(f func()) {
	if f == nil {
		c.notify.Store(nil)
		return
	}
	c.notify.Store(&f)
}

// ReadInto passes received octets to w, in order, until none is left or w takes fewer than it was
// given or gives an error, and returns how many w took. The slices are gVisor's memory, good for
// the call of w only, and the endpoint is locked meanwhile: w must not block nor use c. 0 and nil:
// nothing is there, or w took nothing. io.EOF: the peer has closed and everything was taken. Any
// other error: the connection is lost, and errors.Is finds a syscall.Errno. It does not allocate.
func (c *Conn) ReadInto(w io.Writer) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err.Load(); err != nil {
		return 0, *err
	}
	c.in = sink{w: w}
	_, err := c.ep.Read(&c.in, tcpip.ReadOptions{})
	n, stopped := c.in.n, c.in.stopped
	c.in = sink{}
	if c.got += n; c.got >= measureOctets {
		c.measure()
	}
	if c.read += n; c.read >= windowOctets {
		c.read = 0
		c.tellWindow()
	}
	switch err.(type) {
	case nil, *tcpip.ErrWouldBlock:
		return n, nil
	case *tcpip.ErrBadBuffer:
		if stopped {
			return n, nil
		}
	case *tcpip.ErrClosedForReceive:
		if tcp.EndpointState(c.ep.State()) != tcp.StateError {
			return n, io.EOF
		}
		err = &tcpip.ErrConnectionReset{}
	}
	return n, c.lost(err)
}

// Peek passes what ReadInto would to w, and takes none of it; w takes all. Like ReadInto it says
// how the connection has ended, but at once: io.EOF is the peer's FIN, be it behind octets that
// wait; after another error there are none any more.
func (c *Conn) Peek(w io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err.Load(); err != nil {
		return *err
	}
	if tcp.EndpointState(c.ep.State()) == tcp.StateError {
		w = io.Discard // gVisor gives the reason behind the octets, which nobody waits for
	}
	// Before the octets are looked at: what comes behind them is seen the next time.
	ended := c.ep.Readiness(waiter.ReadableEvents|waiter.EventRdHUp)&waiter.EventRdHUp != 0
	c.in = sink{w: w}
	_, err := c.ep.Read(&c.in, tcpip.ReadOptions{Peek: w != io.Discard})
	if err == nil && w == io.Discard {
		_, err = c.ep.Read(&c.in, tcpip.ReadOptions{})
	}
	c.in = sink{}
	switch err.(type) {
	case nil, *tcpip.ErrWouldBlock, *tcpip.ErrBadBuffer:
	case *tcpip.ErrClosedForReceive:
		if tcp.EndpointState(c.ep.State()) == tcp.StateError {
			return c.lost(&tcpip.ErrConnectionReset{})
		}
	default:
		return c.lost(err)
	}
	if ended {
		return io.EOF
	}
	return nil
}

// measureOctets is after how many octets the rate is looked at.
const measureOctets = 1 << 20

// measure lets the receive buffer grow if what was received in a round trip is near what the window
// lets the peer send in one: half of the buffer.
func (c *Conn) measure() {
	now := c.loss.clock.NowMonotonic()
	took, got := now.Sub(c.gotAt), c.got
	c.got, c.gotAt = 0, now
	c.ep.LockUser()
	var rtt time.Duration
	if c.loss.snd.Exists() {
		rtt = c.loss.snd.RTT().SRTT
	}
	c.ep.UnlockUser()
	if rtt <= longPath || took <= 0 {
		return
	}
	size := c.ep.SocketOptions().GetReceiveBufferSize()
	if float64(got)*rtt.Seconds()/took.Seconds() > float64(size)/4 {
		gvisor.GrowReceiveBuffer(c.ep)
	}
}

// lost notes why the connection is lost.
func (c *Conn) lost(err tcpip.Error) error {
	return c.over(fmt.Errorf("netstack: tcp %v-%v: %w", c.local, c.remote, gvconv.Error(err)))
}

// over notes why the connection is over, unless that is known, and returns the reason that counts.
func (c *Conn) over(err error) error {
	c.err.CompareAndSwap(nil, &err)
	return *c.err.Load()
}

// A sink is the io.Writer that gVisor sees. gVisor panics if a Writer takes fewer octets without an
// error.
type sink struct {
	w       io.Writer
	n       int
	stopped bool
}

var errSinkStopped = errors.New("netstack: reader takes no more")

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	n = min(max(n, 0), len(p))
	s.n += n
	if n < len(p) || err != nil {
		s.stopped = true
		return n, errSinkStopped
	}
	return n, nil
}

// WriteFrom takes octets from src while both src and the send buffer allow, straight into buffers
// that TCP keeps, and returns how many. 0 and nil: no room, and the function of SetNotify is called
// when half the buffer is free. If src gives an error or fewer octets than its Len said, none is
// taken and the error is returned; the connection goes on. Any other error: the connection is lost
// or closed for writing (EPIPE). src is read without a lock of gVisor's held.
//
// WriteFrom may call what the other end has given to SetPrompt, if that is in this process.
//
// WriteFrom does not allocate; gVisor does, 32 octets for each call and what its pools lack.
func (c *Conn) WriteFrom(src Source) (int, error) {
	n, peer, err := c.write(src)
	if peer != nil && peer.Finish() {
		peer.Tell(nil)
	}
	return n, err
}

// write is WriteFrom up to where the peer has to handle what it got: Finish has to follow for it,
// if it is not nil.
func (c *Conn) write(src Source) (done int, peer *receiver, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err.Load(); err != nil {
		return 0, nil, *err
	}
	c.out = payload{src: src, n: src.Len()}
	if c.out.n <= 0 {
		c.out = payload{}
		return 0, nil, nil
	}
	c.out.peer = (*receiver)(c.peerToRun(c.out.n))
	n, err := c.ep.Write(&c.out, tcpip.WriteOptions{})
	read, srcErr := c.out.read, c.out.err
	if c.out.held {
		peer = c.out.peer
	}
	c.out = payload{}
	done, werr := c.written(int(n), read, srcErr, err)
	if c.loss.growSend.Load() {
		c.loss.growSendBuffer()
	}
	if c.loss.bound.Load() {
		c.loss.sendWithin()
	}
	if done > 0 && !c.loss.watched.Load() {
		c.host.losses.watch(&c.loss)
	}
	return done, peer, werr
}

// written is what WriteFrom returns for what gVisor has: n of the octets that were read from the
// source.
func (c *Conn) written(n, read int, srcErr error, err tcpip.Error) (int, error) {
	switch err.(type) {
	case nil:
		if n != read {
			// One writer and a send buffer that never shrinks cannot get here. The octets
			// are out of src and not with TCP: the stream is beyond repair.
			c.ep.Abort()
			return 0, c.over(fmt.Errorf("netstack: tcp %v-%v: %d of %d octets accepted: connection aborted",
				c.local, c.remote, n, read))
		}
		return n, nil
	case *tcpip.ErrWouldBlock:
		return 0, nil
	case *tcpip.ErrBadBuffer:
		if srcErr != nil {
			return 0, srcErr
		}
	case *tcpip.ErrClosedForSend:
		if tcp.EndpointState(c.ep.State()) != tcp.StateError {
			return 0, gvconv.Error(err) // reading may go on
		}
		err = &tcpip.ErrConnectionReset{}
	}
	return 0, c.lost(err)
}

// A payload is the Payloader that gVisor sees. gVisor reads until it has what it wants or gets an
// error, for ever if it gets io.EOF early; and it asks for empty reads.
type payload struct {
	src  Source
	n    int // src.Len() when WriteFrom was called
	read int
	err  error

	peer *receiver // nil, or to be taken hold of when the octets are there and before they are sent
	held bool      // it is
}

// Len implements tcpip.Payloader.
func (p *payload) Len() int { return p.n - p.read }

// Read implements tcpip.Payloader: it fills b or fails.
func (p *payload) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	done := 0
	for done < len(b) {
		n, err := p.src.Read(b[done:])
		if n < 0 || n > len(b)-done {
			n, err = 0, errBadSource
		}
		done += n
		if done == len(b) {
			break
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && n == 0 {
			err = io.ErrNoProgress
		}
		if err != nil {
			p.err = err
			return done, err
		}
	}
	p.read += done
	if p.read == p.n && p.peer != nil { // not before: a source may take long
		p.held = p.peer.Hold()
	}
	return done, nil
}

var errBadSource = errors.New("netstack: source returned an impossible count")

// EMSS is how many octets TCP puts into one segment at present, after options (RFC 5044, section
// 4.1; RFC 1122, section 4.2.2.6). It can fall during a connection, when the path's MTU does. 0 if
// the connection is gone before it was established.
func (c *Conn) EMSS() int { return gvisor.SegmentSize(c.ep) }

// CloseWrite sends a FIN behind what was written.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err.Load(); err != nil {
		return *err
	}
	return gvconv.Error(c.ep.Shutdown(tcpip.ShutdownWrite))
}

// Close gives the connection back: a FIN if there was none, a RST if octets were unread or still
// come. What was written is delivered if the peer is there. The function of SetNotify is not called
// any more once Close has returned. Close must not be called from inside it.
func (c *Conn) Close() error {
	c.conns.remove(c)
	c.host.losses.forget(&c.loss)
	c.forgetPeer()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.prompt.Store(nil)
	c.userPrefetch.Store(nil)
	c.wq.EventUnregister(&c.entry)
	c.loss.givenBack()
	c.ep.Close()
	_ = c.over(gate.Closed("connection")) // not the first reason, perhaps
	return nil
}

// Abort resets the connection and gives it back.
//
// +checklocksignore: the lock is held where TryLock took it.
func (c *Conn) Abort() {
	c.conns.remove(c)
	c.host.losses.forget(&c.loss)
	c.forgetPeer()
	c.userPrefetch.Store(nil)
	c.prompt.Store(nil) // nobody begins to handle a segment any more
	// The lock is not waited for: its owner may hang in WriteFrom's source. Who handles a segment has
	// the endpoint locked, too, for which the calls below do wait.
	if c.mu.TryLock() {
		c.closed = true
		defer c.mu.Unlock()
	}
	c.wq.EventUnregister(&c.entry)
	c.ep.Abort()
	c.ep.Close()
	_ = c.over(gate.Closed("connection")) // not the first reason, perhaps
}

// LocalAddr is this end's address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }
