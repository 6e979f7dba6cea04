package sctphost

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/sctp"
)

// A Handler hears of what happens to one association. Its methods are called one at a time, by
// whoever drains the Host, and with no lock held: they must not block, and may use the Conn.
type Handler interface {
	// Message gives a message that has arrived. It is given back with Conn.Release.
	Message(*sctp.Message)
	// Event tells of the rest: acknowledgements, MaxPayload, paths, the peer's shutdown and reports.
	Event(*sctp.Event)
	// Down is the last call: err is nil after a shutdown, else why the association has ended; see
	// the errors of package sctp.
	Down(err error)
}

// A Conn is an association. Its methods may be called from several goroutines at once and do not
// block.
type Conn struct {
	s             *Host
	a             *sctp.Association // used with s.mu
	local, remote netip.AddrPort

	// For the one who drains.
	handler  Handler    // set before the first event
	ready    chan error // of Dial: established, or not; nil once that is known
	portless bool       // it does not count as a user of its port
}

// A DialConfig says with whom to set up an association.
type DialConfig struct {
	Local   netip.Addr // zero: that of the route
	Remote  netip.AddrPort
	Others  []netip.Addr  // more addresses of the peer, if they are known beforehand
	Addrs   []netip.Addr  // more addresses of ours, for a multihomed association
	Encap   uint16        // the peer's port of a carrier over UDP; 0: UDPPort
	Options *sctp.Options // nil: the Host's
	Handler Handler
}

// Dial sets up an association and waits until that has succeeded or failed, or ctx is done. For
// errors errors.Is finds ECONNREFUSED, ETIMEDOUT, ENETUNREACH and their like, or ctx's.
func (s *Host) Dial(ctx context.Context, d DialConfig) (*Conn, error) {
	d.Remote = gvconv.Unmap(d.Remote)
	c, err := s.dial(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("netstack: sctp: connect to %v: %w", d.Remote, err)
	}
	return c, nil
}

func (s *Host) dial(ctx context.Context, d DialConfig) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ready := make(chan error, 1) // c.ready is no longer ours when c has begun
	c, err := s.begin(d, ready)
	if err != nil {
		return nil, err
	}
	s.drain()
	select {
	case err := <-ready:
		return c, err
	case <-ctx.Done():
		c.Abort("given up")
		return nil, context.Cause(ctx)
	}
}

// begin sends the INIT.
func (s *Host) begin(d DialConfig, ready chan error) (*Conn, error) {
	if !s.gate.Enter() {
		return nil, gate.Closed("SCTP")
	}
	defer s.gate.Leave()
	local := d.Local.Unmap()
	if !local.IsValid() || local.IsUnspecified() {
		var err error
		if local, err = s.carrier.local(d.Remote.Addr()); err != nil {
			return nil, err
		}
	}
	encap := s.carrier.encap()
	if encap != 0 && d.Encap != 0 {
		encap = d.Encap
	}
	locals := []netip.Addr{local}
	for _, a := range d.Addrs {
		if a = a.Unmap(); !slices.Contains(locals, a) {
			locals = append(locals, a)
		}
	}
	c := &Conn{s: s, handler: d.Handler, ready: ready, remote: d.Remote}
	// A port that is in use with this peer already is found out by trying.
	const n, tries = lastEphemeral - firstEphemeral + 1, 64
	first := s.randomPort(n)
	err := error(syscall.EADDRNOTAVAIL)
	for i := range tries {
		port := uint16(firstEphemeral + (first+i*331)%n)
		if err = s.takePort(port); err != nil {
			continue
		}
		s.mu.Lock()
		if s.taken(port, d.Remote) {
			s.mu.Unlock()
			s.givePort(port)
			err = sctp.ErrPortInUse
			continue
		}
		c.a, err = s.ep.Dial(s.now(), sctp.DialConfig{
			LocalPort: port, Locals: locals, RemotePort: d.Remote.Port(),
			Remotes: append([]netip.Addr{d.Remote.Addr()}, d.Others...),
			Encap:   encap, Options: d.Options, User: c,
		})
		if err == nil {
			c.local = netip.AddrPortFrom(local, port)
			s.conns[c] = struct{}{}
		}
		s.mu.Unlock()
		if err == nil {
			return c, nil
		}
		s.givePort(port)
		if !errors.Is(err, sctp.ErrPortInUse) {
			break
		}
	}
	return nil, withErrno(err)
}

// The range that ports are taken from: that of Linux.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// hold counts one more user of a port.
func (s *Host) takePort(port uint16) error {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	if s.ports[port] == 0 {
		if err := s.carrier.usePort(port); err != nil {
			return err
		}
	}
	s.ports[port]++
	return nil
}

func (s *Host) givePort(port uint16) {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	if s.ports[port]--; s.ports[port] == 0 {
		delete(s.ports, port)
		s.carrier.leavePort(port)
	}
}

// withErrno puts an errno behind an error of package sctp, where one says the same.
func withErrno(err error) error {
	var abort *sctp.PeerAbort
	no := syscall.Errno(0)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &abort) && abort.Refused(), errors.Is(err, sctp.ErrUnreachable):
		no = syscall.ECONNREFUSED
	case errors.As(err, &abort):
		no = syscall.ECONNABORTED
	case errors.Is(err, sctp.ErrTimeout):
		no = syscall.ETIMEDOUT
	case errors.Is(err, sctp.ErrPortInUse):
		no = syscall.EADDRINUSE
	case errors.Is(err, sctp.ErrAddress):
		no = syscall.EADDRNOTAVAIL
	case errors.Is(err, sctp.ErrTooMany):
		no = syscall.ENOBUFS
	default:
		return err
	}
	return fmt.Errorf("%w (%w)", no, err)
}

// established ends the waiting of Dial.
func (c *Conn) established() {
	c.ready <- nil
	c.ready = nil
}

// down is the last event.
func (c *Conn) down(err error) {
	if c.ready == nil {
		c.handler.Down(err)
		return
	}
	if err == nil {
		err = sctp.ErrClosed
	}
	c.ready <- withErrno(err)
}

// A Listener takes associations in.
type Listener struct {
	s      *Host
	addr   netip.AddrPort
	locals []netip.Addr // nil: all
	accept func(*Conn) Handler
	// options are those of its associations; nil: the Host's
	options *sctp.Options
	once    sync.Once
}

// A ListenConfig says how to listen.
type ListenConfig struct {
	// an address of ours, or an unspecified one for all; port 0 chooses a free one
	Addr    netip.AddrPort
	Addrs   []netip.Addr  // more addresses of ours, for multihomed associations
	Options *sctp.Options // nil: the Host's
	// Accept is called with each new association, as a handler is, and returns its handler; nil
	// aborts the association.
	Accept func(*Conn) Handler
}

// Listen takes associations in until the listener is closed. For errors errors.Is finds EADDRINUSE
// and its like.
func (s *Host) Listen(l ListenConfig) (*Listener, error) {
	l.Addr = gvconv.Unmap(l.Addr)
	r, err := s.listen(l)
	if err != nil {
		return nil, fmt.Errorf("netstack: sctp: listen at %v: %w", l.Addr, err)
	}
	return r, nil
}

func (s *Host) listen(l ListenConfig) (*Listener, error) {
	if !s.gate.Enter() {
		return nil, gate.Closed("SCTP")
	}
	defer s.gate.Leave()
	var locals []netip.Addr
	if a := l.Addr.Addr(); a.IsValid() && !a.IsUnspecified() {
		locals = append(locals, a)
	}
	for _, x := range l.Addrs {
		if x = x.Unmap(); !slices.Contains(locals, x) {
			locals = append(locals, x)
		}
	}
	tries := 1
	if l.Addr.Port() == 0 {
		tries = 64
	}
	err := error(syscall.EADDRINUSE)
	for range tries {
		port := l.Addr.Port()
		if port == 0 {
			port = uint16(firstEphemeral + s.randomPort(lastEphemeral-firstEphemeral+1))
		}
		if err = s.takePort(port); err != nil {
			continue
		}
		r := &Listener{s: s, addr: netip.AddrPortFrom(l.Addr.Addr(), port), locals: locals,
			accept: l.Accept, options: l.Options}
		s.mu.Lock()
		if err = s.ep.Listen(port, sctp.ListenConfig{Locals: locals, Options: l.Options}); err == nil {
			s.listeners = append(s.listeners, r)
		}
		s.mu.Unlock()
		if err == nil {
			return r, nil
		}
		s.givePort(port)
	}
	return nil, withErrno(err)
}

// Addr is where the listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Close takes no more associations in. Those that there are stay.
func (l *Listener) Close() error {
	l.once.Do(func() {
		s := l.s
		s.mu.Lock()
		s.stopListening(l)
		s.listeners = slices.DeleteFunc(s.listeners, func(x *Listener) bool { return x == l })
		s.mu.Unlock()
		s.givePort(l.addr.Port())
	})
	return nil
}

// accept makes a connection of an association that a peer has set up. The lock is not held.
func (s *Host) accept(a *sctp.Association) {
	c := &Conn{s: s, a: a}
	s.mu.Lock()
	local, remote := a.Ports()
	var l *Listener
	for _, p := range a.Paths() {
		if p.Primary {
			c.local, c.remote = netip.AddrPortFrom(p.Local, local), netip.AddrPortFrom(p.Addr, remote)
		}
	}
	for _, x := range s.listeners {
		if x.addr.Port() == local && (x.locals == nil || slices.Contains(x.locals, c.local.Addr())) {
			l = x
		}
	}
	a.User = c
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if err := s.takePort(local); err != nil {
		l, c.portless = nil, true
	}
	if l != nil {
		c.handler = l.accept(c)
	}
	if c.handler == nil {
		c.handler = ignore{c}
		c.Abort("nobody takes it")
	}
}

// ignore is the handler of an association that nobody wants.
type ignore struct{ c *Conn }

func (i ignore) Message(m *sctp.Message) { i.c.Release(m, false) }
func (ignore) Event(*sctp.Event)         {}
func (ignore) Down(error)                {}

// LocalAddr and RemoteAddr are the addresses that the association was set up with.
func (c *Conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Send queues a message, which is read from src with no lock held. The messages of an association
// are numbered from 1 on, in the order of Send. 0 and nil: there is no room now, and an EventAcked
// comes when there is more. more says that another message follows at once: this one is held back
// until Flush or the next Send without it. An error of src means that nothing was sent.
func (c *Conn) Send(o sctp.SendOptions, src sctp.Source, more bool) (id uint64, err error) {
	c.s.mu.Lock()
	full := c.a.State() == sctp.StateEstablished && c.a.Room() < src.Len() && c.a.Sent() > c.a.Acked()
	c.s.mu.Unlock()
	if full {
		return 0, nil
	}
	g, err := gather(src)
	if err != nil {
		return 0, err
	}
	defer g.put()
	c.s.mu.Lock()
	id, err = c.a.Send(c.s.now(), o, g)
	c.s.mu.Unlock()
	if errors.Is(err, sctp.ErrNoRoom) {
		return 0, nil
	}
	if !more {
		c.s.drain()
	}
	return id, err
}

// Drop gives up the messages of a stream of which nothing has been sent yet, and says how many: the
// last ones that Send took for it.
func (c *Conn) Drop(stream uint16) (n int) {
	c.with(func(a *sctp.Association) { n = a.Drop(stream) })
	return n
}

// Defer is for a Handler's Message and Event: it has f called by the goroutine that has brought the
// packets, when all messages that have come together are handed out, and with no lock held. false:
// the caller may not be that goroutine, and f is not called.
func (c *Conn) Defer(f func()) bool {
	if c.s.bring {
		c.s.deferred = append(c.s.deferred, f)
	}
	return c.s.bring
}

// Flush sends what Send has held back.
func (c *Conn) Flush() { c.s.drain() }

// Release gives a message back; the window opens again. more says that others follow at once: the
// peer is told by Flush, or by what is sent next.
func (c *Conn) Release(m *sctp.Message, more bool) {
	c.s.mu.Lock()
	m.Release()
	c.s.mu.Unlock()
	if !more {
		c.s.drain()
	}
}

// with calls f with the association, under the lock.
func (c *Conn) with(f func(*sctp.Association)) {
	c.s.mu.Lock()
	f(c.a)
	c.s.mu.Unlock()
}

// Acked is the number of the last message that has arrived, with all before it.
func (c *Conn) Acked() (id uint64) {
	c.with(func(a *sctp.Association) { id = a.Acked() })
	return id
}

// MaxPayload is the length of the longest message that takes one packet, whichever path it takes.
func (c *Conn) MaxPayload() (n int) {
	c.with(func(a *sctp.Association) { n = a.MaxPayload() })
	return n
}

// Streams is how many streams there are each way.
func (c *Conn) Streams() (out, in int) {
	c.with(func(a *sctp.Association) { out, in = a.Streams() })
	return out, in
}

// Missing is how many TSNs below the highest that has come have not.
func (c *Conn) Missing() (n int) {
	c.with(func(a *sctp.Association) { n = a.Missing() })
	return n
}

// PeerAdaptation is the indication that came with the peer's INIT or INIT ACK.
func (c *Conn) PeerAdaptation() (code uint32, present bool) {
	c.with(func(a *sctp.Association) { code, present = a.PeerAdaptation() })
	return code, present
}

// State is the association's.
func (c *Conn) State() (st sctp.State) {
	c.with(func(a *sctp.Association) { st = a.State() })
	return st
}

// Paths describes the peer's addresses.
func (c *Conn) Paths() (p []sctp.PathInfo) {
	c.with(func(a *sctp.Association) { p = a.Paths() })
	return p
}

// Shutdown ends the association when all that was sent has arrived. Nothing can be sent any more.
func (c *Conn) Shutdown() {
	c.with(func(a *sctp.Association) { _ = a.Shutdown(c.s.now()) }) // an error: it is ending already
	c.s.drain()
}

// Abort ends the association at once and tells the peer why. Handler.Down is called all the same.
func (c *Conn) Abort(reason string) {
	c.with(func(a *sctp.Association) { a.Abort(c.s.now(), reason) })
	c.s.drain()
}
