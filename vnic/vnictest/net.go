// Package vnictest joins vnic devices in memory, for tests of what runs on them. Everything in it
// works inside testing/synctest.
package vnictest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
	"github.com/vrnic/vrnic/vnic"
)

// A Net is a network in memory: any number of hosts, each of which is a vnic.Network.
type Net struct {
	Link iwarptest.Link // of each new connection; Addrs are filled in
	// Plain makes connections that move octets as fast as can be and do not allocate, instead
	// of those of iwarptest.
	Plain bool
	SCTP  SCTPLink // of each new association
	RoCE  RoCELink // of RoCE's packets; it stays as it is when the first has been sent
	// Beside are the RoCE devices of the Net that are of one process; nil: each is of another.
	Beside *vnic.Beside
	// Lingering says that every port which a dialer asks for is taken by an earlier connection.
	Lingering atomic.Bool

	mu        sync.Mutex
	listeners []*listener         // guarded by mu
	hosts     map[netip.Addr]bool // guarded by mu; false: swallows what comes
	streams   []*iwarptest.Stream // +checklocks:mu
	port      uint16              // +checklocks:mu

	sctpListeners []*sctpListener // guarded by mu
	assocs        []*Assoc        // +checklocks:mu

	roce roceNet
}

// NewNet makes an empty network.
func NewNet() *Net {
	return &Net{hosts: make(map[netip.Addr]bool), port: 40000}
}

// Host adds a host with the given addresses.
func (n *Net) Host(addrs ...netip.Addr) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.hosts[a] = true
	}
	return &Host{net: n, addrs: addrs}
}

// Blackhole makes an address swallow what is sent to it: a Dial hangs.
func (n *Net) Blackhole(a netip.Addr) {
	n.mu.Lock()
	n.hosts[a] = false
	n.mu.Unlock()
}

// Streams returns both ends of each connection made so far, the dialer's first.
func (n *Net) Streams() []*iwarptest.Stream {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*iwarptest.Stream(nil), n.streams...)
}

// A Host is one host of a Net. It is a vnic.Network, with SCTP and RoCE.
type Host struct {
	net   *Net
	addrs []netip.Addr
}

// Dial connects at once, is refused at once, or hangs until ctx ends.
func (h *Host) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (iwarp.Stream,
	error) {
	return h.DialFrom(ctx, netip.AddrPortFrom(local, 0), remote)
}

// DialFrom is Dial from a port, unless it is 0 or the Net's Lingering.
func (h *Host) DialFrom(ctx context.Context, local, remote netip.AddrPort) (iwarp.Stream, error) {
	n := h.net
	if n.Lingering.Load() && local.Port() != 0 {
		return nil, fmt.Errorf("dial from %v: %w", local, syscall.EADDRINUSE)
	}
	n.mu.Lock()
	up, known := n.hosts[remote.Addr()]
	if known && !up {
		n.mu.Unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	defer n.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.EHOSTUNREACH)
	}
	l := n.find(remote)
	if l == nil {
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.ECONNREFUSED)
	}
	if local.Port() == 0 {
		n.port++
		local = netip.AddrPortFrom(local.Addr(), n.port)
	}
	link := n.Link
	link.Addrs = [2]netip.AddrPort{local, remote}
	var a, b iwarp.Stream
	if n.Plain {
		a, b = newPipe(link.Addrs[0], link.Addrs[1])
	} else {
		x, y := iwarptest.NewPair(link)
		n.streams = append(n.streams, x, y)
		a, b = x, y
	}
	select {
	case l.backlog <- b:
	default:
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.ECONNREFUSED)
	}
	return a, nil
}

// Within makes a connection between two addresses of the Net, as vnic.StreamPair has it.
func (n *Net) Within(ctx context.Context, a, b netip.Addr) (x, y iwarp.Stream, err error) {
	h := n.Host(a, b)
	l, err := h.Listen(netip.AddrPortFrom(b, 1), 1) // as nobody's program does
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if x, err = h.Dial(ctx, a, l.Addr()); err == nil {
		y, err = l.Accept()
	}
	return x, y, err
}

func (n *Net) find(ap netip.AddrPort) *listener {
	for _, l := range n.listeners {
		a := l.addr.Addr()
		if l.addr.Port() == ap.Port() && (a == ap.Addr() || a.IsUnspecified() &&
			(a.Is6() || ap.Addr().Is4()) && l.host.owns(ap.Addr())) {
			return l
		}
	}
	return nil
}

func (h *Host) owns(a netip.Addr) bool {
	for _, x := range h.addrs {
		if x == a {
			return true
		}
	}
	return false
}

// Listen takes streams for addr.
func (h *Host) Listen(addr netip.AddrPort, backlog int) (vnic.StreamListener, error) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.listeners {
		if l.host == h && l.addr == addr {
			return nil, fmt.Errorf("listen on %v: %w", addr, syscall.EADDRINUSE)
		}
	}
	l := &listener{host: h, addr: addr, backlog: make(chan iwarp.Stream, max(backlog, 1)),
		done: make(chan struct{})}
	n.listeners = append(n.listeners, l)
	return l, nil
}

type listener struct {
	host    *Host
	addr    netip.AddrPort
	backlog chan iwarp.Stream
	done    chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (iwarp.Stream, error) {
	select {
	case s := <-l.backlog:
		return s, nil
	case <-l.done:
		return nil, fmt.Errorf("accept on %v: %w", l.addr, syscall.EINVAL)
	}
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Close() error {
	l.once.Do(func() {
		n := l.host.net
		n.mu.Lock()
		n.listeners = slices.DeleteFunc(n.listeners, func(x *listener) bool { return x == l })
		n.mu.Unlock()
		close(l.done)
		for {
			select {
			case s := <-l.backlog:
				s.Abort()
			default:
				return
			}
		}
	})
	return nil
}
