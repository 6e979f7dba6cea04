package vnictest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic"
)

// An SCTPLink says what the associations of a Net are like. They lose nothing, as SCTP does not.
type SCTPLink struct {
	Streams    int    // each way; 0: 64
	MaxPayload int    // 0: 1452
	Window     int    // messages that are not released; 0: 256
	Reorder    int    // up to so many messages overtake another; 0: none
	Seed       uint64 // of the reordering
	// NoDDP has the side that listens show no adaptation indication.
	NoDDP bool
}

// DialSCTP sets an association up at once, or fails as Dial does.
func (h *Host) DialSCTP(ctx context.Context, local netip.Addr, remote netip.AddrPort,
	use vnic.SCTPUse, hd vnic.AssociationHandler) (vnic.Association, error) {
	n := h.net
	n.mu.Lock()
	up, known := n.hosts[remote.Addr()]
	l := n.findSCTP(remote)
	n.port++
	from := netip.AddrPortFrom(local, n.port)
	link := n.SCTP
	n.mu.Unlock()
	switch {
	case known && !up:
		<-ctx.Done()
		return nil, ctx.Err()
	case !known:
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.EHOSTUNREACH)
	case l == nil:
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.ECONNREFUSED)
	}
	orDefault := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orDefault(&link.Streams, 64)
	orDefault(&link.MaxPayload, 1452)
	orDefault(&link.Window, 256)
	a, b := &Assoc{link: link, use: use, local: from, handler: hd}, &Assoc{link: link, use: use,
		local: remote}
	a.peer, b.peer = b, a
	a.rng, b.rng = rand.New(rand.NewPCG(link.Seed, 1)), rand.New(rand.NewPCG(link.Seed, 2))
	n.mu.Lock()
	n.assocs = append(n.assocs, a, b)
	n.mu.Unlock()
	bh := l.accept(b)
	if bh == nil {
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.ECONNABORTED)
	}
	b.mu.Lock()
	b.handler = bh
	b.mu.Unlock()
	b.pump()
	return a, nil
}

func (n *Net) findSCTP(ap netip.AddrPort) *sctpListener {
	for _, l := range n.sctpListeners {
		if l.addr.Port() == ap.Port() && (l.addr.Addr() == ap.Addr() || l.addr.Addr().IsUnspecified() &&
			l.host.owns(ap.Addr())) {
			return l
		}
	}
	return nil
}

// ListenSCTP takes associations for addr.
func (h *Host) ListenSCTP(addr netip.AddrPort,
	accept func(vnic.Association) vnic.AssociationHandler) (io.Closer, error) {
	n := h.net
	l := &sctpListener{host: h, addr: addr, accept: accept}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sctpListeners = append(n.sctpListeners, l)
	return l, nil
}

type sctpListener struct {
	host   *Host
	addr   netip.AddrPort
	accept func(vnic.Association) vnic.AssociationHandler
}

func (l *sctpListener) Close() error {
	n := l.host.net
	n.mu.Lock()
	n.sctpListeners = slices.DeleteFunc(n.sctpListeners, func(x *sctpListener) bool { return x == l })
	n.mu.Unlock()
	return nil
}

// Assocs returns both ends of each association made so far, the dialer's first.
func (n *Net) Assocs() []*Assoc {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*Assoc(nil), n.assocs...)
}

// An Assoc is one end of an association in memory: a vnic.Association.
type Assoc struct {
	link    SCTPLink
	use     vnic.SCTPUse
	local   netip.AddrPort
	peer    *Assoc
	handler vnic.AssociationHandler
	rng     *rand.Rand

	mu        sync.Mutex
	sent      uint64          // guarded by mu: messages given to Send
	acked     uint64          // +checklocks:mu
	out       []assocMsg      // guarded by mu: sent and not flushed
	in        []assocMsg      // guarded by mu: flushed by the peer and not handed out
	got       map[uint64]bool // guarded by mu: handed out ahead of order
	cum       uint64          // guarded by mu: handed out with all before them
	high      uint64          // guarded by mu
	pinned    int             // guarded by mu: handed out and not released
	notify    bool            // +checklocks:mu
	pumping   bool            // guarded by mu: somebody hands out
	forgotten bool            // guarded by mu: see AbortOnSend
	held      bool            // guarded by mu: nothing is flushed
	closing   bool            // guarded by mu: Shutdown was asked for
	down      bool            // +checklocks:mu
	end       func()          // guarded by mu: tells the handler of the end
}

type assocMsg struct {
	id uint64
	m  sctpddp.Message
}

// Send implements sctpddp.Association.
func (a *Assoc) Send(stream uint16, ppid uint32, src interface {
	io.Reader
	Len() int
}) (uint64, error) {
	a.mu.Lock()
	// Where it has ended there is no room: Down follows, and knows why.
	full := a.down || a.closing || int(a.sent-a.acked) >= a.link.Window
	a.mu.Unlock()
	if full {
		return 0, nil
	}
	b := make([]byte, src.Len())
	if _, err := io.ReadFull(src, b); err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent++
	a.out = append(a.out, assocMsg{a.sent, sctpddp.Message{Stream: stream, PPID: ppid, Unordered: true,
		Data: b}})
	return a.sent, nil
}

// Flush implements vnic.Association.
func (a *Assoc) Flush() {
	a.mu.Lock()
	if a.held {
		a.mu.Unlock()
		return
	}
	out := a.out
	a.out = nil
	if a.forgotten && len(out) > 0 {
		a.mu.Unlock()
		a.Abort("forgotten")
		return
	}
	closing := a.closing && !a.down && a.acked == a.sent && len(out) == 0
	a.mu.Unlock()
	if len(out) > 0 {
		a.peer.mu.Lock()
		a.peer.in = append(a.peer.in, out...)
		a.peer.mu.Unlock()
		a.peer.pump()
	}
	if closing {
		a.finish(func(h vnic.AssociationHandler) { h.Down(sctpddp.LossShutdown, nil) })
	}
}

// Hold keeps back what is flushed from now on, or lets it go.
func (a *Assoc) Hold(on bool) {
	a.mu.Lock()
	a.held = on
	a.mu.Unlock()
	a.Flush()
}

// AbortOnSend has the association end by an abort as soon as something is sent: the peer has
// forgotten it.
func (a *Assoc) AbortOnSend() {
	a.mu.Lock()
	a.forgotten = true
	a.mu.Unlock()
}

// finish ends both sides.
func (a *Assoc) finish(tell func(vnic.AssociationHandler)) {
	for _, e := range []*Assoc{a, a.peer} {
		e.mu.Lock()
		if !e.down {
			e.down = true
			e.end = func() { tell(e.handler) }
		}
		e.mu.Unlock()
	}
	a.pump()
	a.peer.pump()
}

// pump hands out what has come, unless somebody is at it.
func (a *Assoc) pump() {
	a.mu.Lock()
	if a.pumping || a.handler == nil {
		a.mu.Unlock()
		return
	}
	a.pumping = true
	for {
		switch {
		case len(a.in) > 0 && a.pinned < a.link.Window && !a.down:
			i := 0
			if a.link.Reorder > 0 {
				i = a.rng.IntN(min(len(a.in), a.link.Reorder+1))
			}
			x := a.in[i]
			a.in = slices.Delete(a.in, i, i+1)
			a.take(&x)
			a.mu.Unlock()
			a.handler.Message(x.m, x.id)
			a.peer.ack(a)
		case a.notify && !a.down:
			a.notify = false
			a.mu.Unlock()
			a.handler.Notify()
		case a.end != nil:
			end := a.end
			a.end = nil
			a.mu.Unlock()
			end()
		default:
			a.pumping = false
			a.mu.Unlock()
			return
		}
		a.mu.Lock()
	}
}

// take notes that x is handed out.
func (a *Assoc) take(x *assocMsg) {
	a.pinned++
	if a.got == nil {
		a.got = map[uint64]bool{}
	}
	a.got[x.id] = true
	a.high = max(a.high, x.id)
	for a.got[a.cum+1] {
		a.cum++
		delete(a.got, a.cum)
	}
	x.m.Missing = int(a.high-a.cum) - len(a.got)
}

// ack notes what the peer has handed out.
func (a *Assoc) ack(peer *Assoc) {
	peer.mu.Lock()
	cum := peer.cum
	peer.mu.Unlock()
	a.mu.Lock()
	more := cum > a.acked
	a.acked = max(a.acked, cum)
	a.notify = a.notify || more
	a.mu.Unlock()
	if more {
		go a.pump() // whoever hands out to the peer may have locks that the handler takes
	}
}

// Release implements vnic.Association.
func (a *Assoc) Release(any) {
	a.mu.Lock()
	a.pinned--
	a.mu.Unlock()
	a.pump()
}

// Acked implements sctpddp.Association.
func (a *Assoc) Acked() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acked
}

// Drop implements sctpddp.Association: all that was sent is on its way.
func (a *Assoc) Drop(uint16) int { return 0 }

// MaxPayload implements sctpddp.Association.
func (a *Assoc) MaxPayload() int { return a.link.MaxPayload }

// Streams implements sctpddp.Association.
func (a *Assoc) Streams() (out, in int) { return a.link.Streams, a.link.Streams }

// PeerAdaptation implements sctpddp.Association.
func (a *Assoc) PeerAdaptation() (code uint32, present bool) {
	return a.use.Indication(), !a.link.NoDDP
}

// Shutdown implements sctpddp.Association.
func (a *Assoc) Shutdown() {
	a.mu.Lock()
	a.closing = true
	a.mu.Unlock()
}

// Abort implements vnic.Association.
func (a *Assoc) Abort(reason string) {
	a.finish(func(h vnic.AssociationHandler) {
		h.Down(sctpddp.LossAbort, fmt.Errorf("aborted: %s", reason))
	})
}

// Fail is the end of an association whose peer does not answer.
func (a *Assoc) Fail() {
	a.finish(func(h vnic.AssociationHandler) { h.Down(sctpddp.LossFailure, syscall.ETIMEDOUT) })
}

// Down reports whether the association has ended.
func (a *Assoc) Down() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.down
}

// LocalAddr implements vnic.Association.
func (a *Assoc) LocalAddr() netip.AddrPort { return a.local }

// RemoteAddr implements vnic.Association.
func (a *Assoc) RemoteAddr() netip.AddrPort { return a.peer.local }
