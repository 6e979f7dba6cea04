// Package stacknet is a netstack.Stack as a vnic.Device uses it: TCP for MPA, SCTP, and RoCE's
// datagrams.
package stacknet

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/internal/sctpnet"
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/tcp"
	"github.com/vrnic/vrnic/vnic"
)

// A TCP connection of the stack is what MPA runs on, as it is.
var _ iwarp.Stream = (*tcp.Conn)(nil)

// A Network is a vnic.Network, with all that one can have beside.
type Network struct {
	sctpnet.Network
	stack *netstack.Stack
}

var (
	_ vnic.PortNetwork = (*Network)(nil)
	_ vnic.SCTPNetwork = (*Network)(nil)

	_ vnic.OrderedNetwork = (*Network)(nil)
)

// New uses the stack for all. The stack is the caller's, and is closed behind it.
func New(stack *netstack.Stack) *Network {
	var addrs []netip.Addr
	for _, p := range stack.Addrs() {
		addrs = append(addrs, p.Addr())
	}
	return &Network{sctpnet.New(stack.SCTP(), addrs), stack}
}

// Dial implements vnic.Network.
func (n *Network) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (iwarp.Stream,
	error) {
	return n.DialFrom(ctx, netip.AddrPortFrom(local, 0), remote)
}

// DialFrom implements vnic.PortNetwork.
func (n *Network) DialFrom(ctx context.Context, local, remote netip.AddrPort) (iwarp.Stream,
	error) {
	c, err := n.stack.TCP().DialFrom(ctx, local, remote)
	if err != nil {
		return nil, err // not c: a nil *tcp.Conn is no nil Stream
	}
	return c, nil
}

// Within makes a connection of TCP between two addresses of the stack.
func (n *Network) Within(ctx context.Context, a, b netip.Addr) (x, y iwarp.Stream, err error) {
	l, err := n.stack.TCP().Listen(netip.AddrPortFrom(b, 0), 1)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	c, err := n.stack.TCP().Dial(ctx, a, l.Addr())
	if err != nil {
		return nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		s, err := l.Accept()
		switch {
		case err != nil:
			c.Abort()
			return nil, nil, err
		case s.RemoteAddr() == c.LocalAddr():
			return c, s, nil
		}
		s.Abort() // of somebody who tries ports
	}
}

// Listen implements vnic.Network.
func (n *Network) Listen(addr netip.AddrPort, backlog int) (vnic.StreamListener, error) {
	return n.ListenOrdered(addr, backlog, nil)
}

// ListenOrdered implements vnic.OrderedNetwork: the unspecified IPv6 address stands for both
// families to the RNIC, as to rdma_cm, but for one of them to the stack.
func (n *Network) ListenOrdered(addr netip.AddrPort, backlog int,
	first func(remote netip.AddrPort)) (vnic.StreamListener, error) {
	addrs := []netip.AddrPort{addr}
	if addr.Addr() == netip.IPv6Unspecified() {
		addrs = append(addrs, netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()))
	}
	l := &streamListener{addr: addr, conns: make(chan *tcp.Conn), done: make(chan struct{})}
	for _, a := range addrs {
		one, err := n.stack.TCP().ListenOrdered(a, backlog, first)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.list = append(l.list, one)
	}
	if len(l.list) > 1 {
		for _, one := range l.list {
			l.wg.Go(func() { l.pump(one) })
		}
	}
	return l, nil
}

// A streamListener is one listener of the stack, or several whose connections come together.
type streamListener struct {
	addr  netip.AddrPort
	list  []*tcp.Listener
	conns chan *tcp.Conn // of several
	done  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

func (l *streamListener) Addr() netip.AddrPort { return l.addr }

// pump ends when its listener does.
func (l *streamListener) pump(one *tcp.Listener) {
	for {
		c, err := one.Accept()
		if err != nil {
			return
		}
		select {
		case l.conns <- c:
		case <-l.done:
			c.Abort()
			return
		}
	}
}

func (l *streamListener) Accept() (iwarp.Stream, error) {
	if len(l.list) == 1 {
		c, err := l.list[0].Accept()
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *streamListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		for _, one := range l.list {
			one.Close()
		}
	})
	l.wg.Wait()
	return nil
}
