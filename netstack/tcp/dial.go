package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/internal/ports"
)

// newEndpoint makes an endpoint for a's family. The caller is inside h.gate.
func (h *Host) newEndpoint(a netip.Addr, wq *waiter.Queue) (*tcp.Endpoint, error) {
	ep, err := h.st.NewEndpoint(tcp.ProtocolNumber, gvconv.Protocol(a), wq)
	if err != nil {
		return nil, gvconv.Error(err)
	}
	gvisor.TuneEndpoint(ep, h.cfg.SendBuffer)
	return ep.(*tcp.Endpoint), nil
}

// Dial connects to remote and waits until that has succeeded or failed or ctx is done. The
// connection comes from local if that is valid. For errors errors.Is finds the syscall.Errno
// (ECONNREFUSED, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL), or ctx's.
func (h *Host) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (*Conn, error) {
	return h.DialFrom(ctx, netip.AddrPortFrom(local, 0), remote)
}

// DialFrom is Dial from a port that the caller chooses, unless it is 0. EADDRINUSE: something
// has it, be it an earlier connection that lingers in TIME-WAIT.
func (h *Host) DialFrom(ctx context.Context, local, remote netip.AddrPort) (*Conn, error) {
	remote = gvconv.Unmap(remote)
	c, err := h.dial(ctx, gvconv.Unmap(local), remote)
	if err != nil {
		return nil, fmt.Errorf("netstack: %s: connect to %v: %w", h.cfg.Name, remote, err)
	}
	return c, nil
}

func (h *Host) dial(ctx context.Context, local, remote netip.AddrPort) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	wq := new(waiter.Queue)
	entry, woken := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)

	ep, err := h.startDial(wq, local, remote)
	for n := 1; errors.Is(err, syscall.EADDRINUSE) && local.Port() == 0 && n < chosenPorts; n++ {
		ep, err = h.startDial(wq, local, remote) // the port is somebody's with whom the address is shared
	}
	if err != nil {
		return nil, err
	}
	for connecting(ep) {
		select {
		case <-ctx.Done():
			ep.Close()
			return nil, context.Cause(ctx)
		case <-woken: // also when an option was set
		}
	}
	if err := ep.LastError(); err != nil {
		ep.Close()
		return nil, gvconv.Error(err)
	}
	return h.newConn(ep, wq), nil
}

// chosenPorts is how many ports are tried where any will do.
const chosenPorts = 16

// connecting reports whether the handshake is under way.
func connecting(ep *tcp.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
		return true
	default:
		return false
	}
}

// startDial sends the SYN.
func (h *Host) startDial(wq *waiter.Queue, local, remote netip.AddrPort) (*tcp.Endpoint, error) {
	if !h.gate.Enter() {
		return nil, gate.Closed("stack " + h.cfg.Name)
	}
	defer h.gate.Leave()
	ep, err := h.newEndpoint(remote.Addr(), wq)
	if err != nil {
		return nil, err
	}
	// A port that was chosen can be listened at while a connection from there lingers in TIME-WAIT, as
	// on Linux. Where gVisor chooses one, others to the same address must not get it.
	ep.SocketOptions().SetReuseAddress(local.Port() != 0)
	if local.Addr().IsValid() {
		if err := ep.Bind(gvconv.FullAddr(local)); err != nil {
			ep.Close()
			return nil, fmt.Errorf("bind to %v: %w", local, gvconv.Error(err))
		}
		if err := h.lend(ep); err != nil {
			ep.Close()
			return nil, err
		}
	}
	cerr := ep.Connect(gvconv.FullAddr(remote))
	switch cerr.(type) {
	case nil, *tcpip.ErrConnectStarted:
		return ep, nil
	case *tcpip.ErrBadLocalAddress:
		if local.Port() != 0 { // the same connection is there, perhaps in TIME-WAIT
			cerr = &tcpip.ErrPortInUse{}
		}
	}
	ep.Close()
	return nil, gvconv.Error(cerr)
}

// lend keeps the port that ep is bound to from who has the address, too, until ep is no connection
// any more, nor lingers as one.
func (h *Host) lend(ep *tcp.Endpoint) error {
	bound, terr := ep.GetLocalAddress()
	if terr != nil {
		return gvconv.Error(terr)
	}
	return h.cfg.Ports.Lend(ports.Port{At: gvconv.GoAddrPort(bound)}, func() bool {
		state := tcp.EndpointState(ep.State())
		return state == tcp.StateClose || state == tcp.StateError
	})
}

// A Listener takes connections in.
type Listener struct {
	h     *Host
	ep    *tcp.Endpoint
	wq    *waiter.Queue
	addr  netip.AddrPort
	ports []ports.Port // that it takes

	once sync.Once
	done chan struct{}
}

// Listen listens at addr: an address of the stack, or the unspecified one of a family for all of
// that family. Port 0 chooses a free one. Up to backlog connections, or 128 if that is more,
// wait to be accepted.
func (h *Host) Listen(addr netip.AddrPort, backlog int) (*Listener, error) {
	return h.ListenOrdered(addr, backlog, nil)
}

// ListenOrdered is Listen. first, unless it is nil, is called with the other end of each connection
// when its first octets come, before they can be read: for one after the other, as they come,
// whatever order Accept gives the connections in. It must not wait, nor call this package. Who
// connects in large numbers and then says nothing can have others not told of.
func (h *Host) ListenOrdered(addr netip.AddrPort, backlog int, first func(remote netip.AddrPort)) (
	*Listener, error) {
	addr = gvconv.Unmap(addr)
	l, err := h.listen(addr, backlog, first)
	if err != nil {
		return nil, fmt.Errorf("netstack: %s: listen at %v: %w", h.cfg.Name, addr, err)
	}
	return l, nil
}

func (h *Host) listen(addr netip.AddrPort, backlog int, first func(remote netip.AddrPort)) (
	*Listener, error) {
	if !addr.Addr().IsValid() {
		return nil, gvconv.Error(&tcpip.ErrBadAddress{})
	}
	if !h.gate.Enter() {
		return nil, gate.Closed("stack " + h.cfg.Name)
	}
	defer h.gate.Leave()
	wq := new(waiter.Queue)
	ep, err := h.newEndpoint(addr.Addr(), wq)
	if err != nil {
		return nil, err
	}
	// A server that is started again binds although old connections are in TIME-WAIT.
	ep.SocketOptions().SetReuseAddress(true)
	if err := ep.Bind(gvconv.FullAddr(addr)); err != nil {
		ep.Close()
		return nil, gvconv.Error(err)
	}
	bound, terr := ep.GetLocalAddress()
	if terr != nil {
		ep.Close()
		return nil, gvconv.Error(terr)
	}
	l := &Listener{
		h: h, ep: ep, wq: wq, done: make(chan struct{}),
		addr: netip.AddrPortFrom(addr.Addr(), bound.Port),
	}
	for _, a := range h.cfg.Addrs {
		if a == addr.Addr() || addr.Addr().IsUnspecified() && a.Is4() == addr.Addr().Is4() {
			l.ports = append(l.ports, ports.Port{At: netip.AddrPortFrom(a, bound.Port)})
		}
	}
	if err := h.cfg.Ports.Use(l.ports...); err != nil {
		ep.Close()
		return nil, err
	}
	if first != nil { // before anybody can connect
		h.firsts.listen(l, first)
	}
	if err := ep.Listen(gvisor.Backlog(backlog)); err != nil {
		h.firsts.close(l)
		ep.Close()
		h.cfg.Ports.Leave(l.ports...)
		return nil, gvconv.Error(err)
	}
	return l, nil
}

// Accept waits for the next connection. After Close, of the listener or the stack, it returns
// net.ErrClosed. Several goroutines may be in it.
func (l *Listener) Accept() (*Conn, error) {
	entry, woken := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	l.wq.EventRegister(&entry)
	defer l.wq.EventUnregister(&entry)
	for {
		ep, wq, err := l.ep.Accept(nil)
		switch err.(type) {
		case nil:
			gvisor.TuneEndpoint(ep, l.h.cfg.SendBuffer)
			return l.h.newConn(ep.(*tcp.Endpoint), wq), nil
		case *tcpip.ErrWouldBlock:
		default:
			return nil, gate.Closed("listener")
		}
		select {
		case <-woken:
		case <-l.done:
			return nil, gate.Closed("listener")
		}
	}
}

// Addr is where the listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Close ends the listener and Accept. Connections that nobody has accepted are reset.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.h.firsts.close(l)
		l.ep.Close()
		l.h.cfg.Ports.Leave(l.ports...)
		close(l.done)
	})
	return nil
}

// DialNet connects to remote as Dial does and returns a connection that blocks, for programs that
// want a net.Conn. It is plain TCP without anything of vrnic's on top.
func (h *Host) DialNet(ctx context.Context, remote netip.AddrPort) (net.Conn, error) {
	remote = gvconv.Unmap(remote)
	c, err := h.dial(ctx, netip.AddrPort{}, remote)
	if err != nil {
		return nil, fmt.Errorf("netstack: %s: connect to %v: %w", h.cfg.Name, remote, err)
	}
	return c.netConn(), nil
}

// netConn turns c into a connection that blocks. c is not to be used any more.
func (c *Conn) netConn() net.Conn {
	c.conns.remove(c)
	c.host.losses.forget(&c.loss)
	c.wq.EventUnregister(&c.entry)
	return gonet.NewTCPConn(c.wq, c.ep)
}

// netListener is a Listener with a face of package net.
type netListener struct{ *Listener }

func (l netListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c.netConn(), nil
}

func (l netListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// ListenNet is Listen for connections that block.
func (h *Host) ListenNet(addr netip.AddrPort) (net.Listener, error) {
	l, err := h.Listen(addr, 128)
	if err != nil {
		return nil, err
	}
	return netListener{l}, nil
}
