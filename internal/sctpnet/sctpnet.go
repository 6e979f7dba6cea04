// Package sctpnet is SCTP as a vnic.Device uses it, be it a stack's own or over a UDP socket of the
// host.
package sctpnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/record"
)

// ddpStreams is how many streams an association has each way: as many QPs can share it.
const ddpStreams = 1024

// ddpOptions are the host's for an association that carries DDP, or another of uses. A peer that
// wants none of them is refused while the association is being set up (RFC 5043, section 5.1;
// RFC 5061, section 4.2.6).
func (n *Network) ddpOptions(uses ...vnic.SCTPUse) *sctp.Options {
	o, code := n.host.Options(), uses[0].Indication()
	o.Adaptation = &code
	o.AdmitAdaptation = func(code uint32, present bool) bool {
		return slices.ContainsFunc(uses, func(u vnic.SCTPUse) bool { return u.Admits(code, present) })
	}
	o.AnswerAdaptation = true
	o.OutStreams, o.InStreams = ddpStreams, ddpStreams
	return &o
}

// A Network has what a vnic.SCTPNetwork has beside a vnic.Network. The zero Network has no SCTP:
// who connects gets EPROTONOSUPPORT, and nobody comes.
type Network struct {
	host  *sctphost.Host
	addrs []netip.Addr
}

// New makes a Network of host, whose associations are reached at all of addrs.
func New(host *sctphost.Host, addrs []netip.Addr) Network { return Network{host, addrs} }

// SCTP is what New was given; nil: there is none.
func (n *Network) SCTP() *sctphost.Host { return n.host }

// RecordSCTP implements vnic.SCTPRecorder.
func (n *Network) RecordSCTP(t *record.Tape) (stop func()) {
	if n.host == nil {
		return func() {}
	}
	j := record.NewSCTP(t)
	stop, err := n.host.Journal(j)
	if err != nil { // associations are not recorded, but all else is
		j.Lost()
		return func() {}
	}
	return stop
}

// Close ends the SCTP: associations outlive their QPs for a moment, and their end takes a network,
// so call it before that goes.
func (n *Network) Close() error {
	if n.host == nil {
		return nil
	}
	return n.host.Close()
}

// DialSCTP implements vnic.SCTPNetwork.
func (n *Network) DialSCTP(ctx context.Context, local netip.Addr, remote netip.AddrPort,
	use vnic.SCTPUse, h vnic.AssociationHandler) (vnic.Association, error) {
	if n.host == nil {
		return nil, fmt.Errorf("no SCTP at %v: %w", local, syscall.EPROTONOSUPPORT)
	}
	a := &sctpAssociation{h: h}
	c, err := n.host.Dial(ctx, sctphost.DialConfig{
		Local: local, Addrs: n.addrs, Remote: remote, Options: n.ddpOptions(use), Handler: sctpEvents{a},
	})
	if err != nil {
		return nil, err
	}
	a.Conn = c
	return a, nil
}

// ListenSCTP implements vnic.SCTPNetwork. The unspecified address of IPv4 leaves the addresses of
// IPv6 to another listener, also where there are no others.
func (n *Network) ListenSCTP(addr netip.AddrPort,
	accept func(vnic.Association) vnic.AssociationHandler) (io.Closer, error) {
	if n.host == nil {
		return io.NopCloser(nil), nil
	}
	l := sctphost.ListenConfig{Addr: addr, Options: n.ddpOptions(vnic.SCTPForDDP, vnic.SCTPForROI),
		Accept: func(c *sctphost.Conn) sctphost.Handler {
			a := &sctpAssociation{Conn: c}
			if a.h = accept(a); a.h == nil {
				return nil
			}
			return sctpEvents{a}
		}}
	if to := addr.Addr(); to.IsUnspecified() {
		for _, a := range n.addrs {
			if to.Is6() || a.Unmap().Is4() {
				l.Addrs = append(l.Addrs, a)
			}
		}
		if len(l.Addrs) == 0 { // to the host that would be every address
			return io.NopCloser(nil), nil
		}
	}
	return n.host.Listen(l)
}

// An sctpAssociation is an association of the stack as a device uses it.
type sctpAssociation struct {
	*sctphost.Conn
	h      vnic.AssociationHandler
	ending atomic.Bool // Shutdown was asked for
}

var _ vnic.Association = (*sctpAssociation)(nil)

// Send implements sctpddp.Association. What is sent goes out with Flush. In an association that has
// ended there is no room: Down follows, and knows why.
func (a *sctpAssociation) Send(stream uint16, ppid uint32, src iwarp.Source) (uint64, error) {
	id, err := a.Conn.Send(sctp.SendOptions{Stream: stream, PPID: ppid, Unordered: true}, src, true)
	if errors.Is(err, sctp.ErrClosed) || errors.Is(err, sctp.ErrShutdown) {
		return 0, nil
	}
	return id, err
}

// Shutdown implements sctpddp.Association, and goes out with Flush, too.
func (a *sctpAssociation) Shutdown() { a.ending.Store(true) }

// Flush implements vnic.Association.
func (a *sctpAssociation) Flush() {
	if a.ending.Swap(false) {
		a.Conn.Shutdown()
		return
	}
	a.Conn.Flush()
}

// Release implements vnic.Association.
func (a *sctpAssociation) Release(token any) { a.Conn.Release(token.(*sctp.Message), true) }

// sctpEvents is the handler of an association.
type sctpEvents struct{ a *sctpAssociation }

func (e sctpEvents) Message(m *sctp.Message) {
	b, whole := m.Bytes()
	if !whole {
		b = m.Append(nil)
	}
	e.a.h.Message(sctpddp.Message{Stream: m.Stream, PPID: m.PPID, Unordered: m.Unordered,
		Missing: m.Missing, Data: b}, m)
}

func (e sctpEvents) Event(*sctp.Event) { e.a.h.Notify() }

func (e sctpEvents) Down(err error) {
	var peer *sctp.PeerAbort
	var local *sctp.LocalAbort
	kind := sctpddp.LossFailure
	switch {
	case err == nil:
		kind = sctpddp.LossShutdown
	case errors.As(err, &peer), errors.As(err, &local):
		kind = sctpddp.LossAbort
	case errors.Is(err, sctp.ErrRestarted):
		kind = sctpddp.LossRestart
	}
	e.a.h.Down(kind, err)
}
