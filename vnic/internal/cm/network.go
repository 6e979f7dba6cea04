package cm

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/vnic/internal/session"
)

// A Network is what a device asks of the transport below it.
type Network interface {
	// Dial opens a stream from local to remote and blocks until it is open, it failed, or ctx
	// ends. An error wraps a syscall.Errno (ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ...) or is
	// ctx's. It must also reach listeners of the device itself.
	Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (iwarp.Stream, error)
	// Listen takes streams for addr, whose port is never 0.
	Listen(addr netip.AddrPort, backlog int) (StreamListener, error)
}

// A PortNetwork is a Network that opens streams from a port that is asked for. Then an id has a
// port of its own as soon as its address is resolved, as with Linux's rdma_cm, and its peer sees
// that one.
type PortNetwork interface {
	Network
	// DialFrom is Dial from a port that is not 0. EADDRINUSE: the port is taken below.
	DialFrom(ctx context.Context, local, remote netip.AddrPort) (iwarp.Stream, error)
}

// An OrderedNetwork is a Network that tells in which order the requests of those who connect have
// come. Streams can then be opened at the same time, and are accepted in any order.
type OrderedNetwork interface {
	Network
	// ListenOrdered is Listen. first is called for each stream when its first octets are there, before
	// anybody can read them, for one after the other, as they came; it does not wait.
	ListenOrdered(addr netip.AddrPort, backlog int, first func(remote netip.AddrPort)) (StreamListener,
		error)
}

// An SCTPNetwork is a Network that has SCTP, too.
type SCTPNetwork = session.Network

// A StreamListener takes streams.
type StreamListener interface {
	Accept() (iwarp.Stream, error) // blocks; an error after Close
	Addr() netip.AddrPort
	Close() error
}

// A network is a Network with what it can do beside, which is looked at once.
type network struct {
	Network                // nil: none
	ports   PortNetwork    // nil: it chooses ports itself
	ordered OrderedNetwork // nil: requests come in the order of their streams
	sctp    SCTPNetwork    // nil: it has no SCTP
}

func newNetwork(n Network) (w network) {
	w.Network = n
	w.ports, _ = n.(PortNetwork)
	w.ordered, _ = n.(OrderedNetwork)
	w.sctp, _ = n.(SCTPNetwork)
	return w
}

// dial opens a stream to remote, from local's port if that is free below too: it is the port of a
// connection that lingers, or of one that the network has chosen itself.
func (w *network) dial(ctx context.Context, local, remote netip.AddrPort) (iwarp.Stream, error) {
	if w.ports != nil && local.Port() != 0 {
		s, err := w.ports.DialFrom(ctx, local, remote)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
	}
	return w.Dial(ctx, local.Addr(), remote)
}

// listen takes streams. arrived is told in which order their requests come, if w can tell.
func (w *network) listen(addr netip.AddrPort, backlog int, arrived func(netip.AddrPort)) (
	StreamListener, error) {
	if w.ordered != nil {
		return w.ordered.ListenOrdered(addr, backlog, arrived)
	}
	return w.Listen(addr, backlog)
}
