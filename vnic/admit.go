package vnic

import (
	"net/netip"
	"slices"
	"sync"
)

// Who may ask for connections, and how many at once: RFC 5042, section 6.4.1. One peer must not be
// able to keep others out, whatever it sends.

// A peerKey is whom a share is for: an IPv4 address, an IPv6 network of 64 bits, or, on loopback, a
// context of the device.
type peerKey struct {
	addr netip.Addr
	ctx  uint32 // 0: on the network
}

func keyOf(a netip.Addr) peerKey {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		// A host chooses its addresses in such a network freely.
		p, _ := a.Prefix(64)
		a = p.Addr()
	}
	return peerKey{addr: a}
}

// A peerLoad is what one peer has at present.
type peerLoad struct {
	halfOpen int // start-ups before a complete MPA Request
	pending  int // connection requests: half open or unanswered
	conns    int // connections that were accepted
	refused  uint64
}

// Refusals count connection requests that were refused for want of a place, by what was full.
type Refusals struct {
	Peer     uint64 `json:"peer"`      // what one peer may have
	Backlog  uint64 `json:"backlog"`   // the listener's
	Context  uint64 `json:"context"`   // what one user's listeners may have
	HalfOpen uint64 `json:"half_open"` // start-ups in all
	Pending  uint64 `json:"pending"`   // requests in all
}

// admission holds the places of a device.
type admission struct {
	mu       sync.Mutex
	peers    map[peerKey]*peerLoad // guarded by mu, as all
	halfOpen int
	pending  int
	refused  Refusals
}

// A place is what a connection request has from its first octet on, until the connection is over.
// nil stands for one that was given back in full.
type place struct {
	l   *cmListen
	key peerKey

	// guarded by the device's admission.mu
	half, waiting, connected bool
}

// admit takes a place for a request of a peer; nil: there is none. half says that the peer has not asked yet.
func (l *cmListen) admit(key peerKey, half bool) *place {
	d, c := l.id.dev, l.id.ctx
	a, cfg := &d.admit, &l.id.dev.cfg
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[key]
	if p == nil {
		p = &peerLoad{}
	}
	var full *uint64
	switch {
	case p.pending >= cfg.MaxPendingPerPeer, half && p.halfOpen >= cfg.MaxHalfOpenPerPeer, p.pending+p.conns >= cfg.MaxConnsPerPeer:
		full = &a.refused.Peer
	// A peer that has nothing waiting here finds room beyond the backlog, so that one that has filled
	// it does not keep all others out.
	case l.waiting >= l.backlog && (l.peers[key] > 0 || l.waiting >= 2*l.backlog):
		full = &a.refused.Backlog
	case c.pending >= c.limits.Pending:
		full = &a.refused.Context
	case half && a.halfOpen >= cfg.MaxHalfOpen:
		full = &a.refused.HalfOpen
	case a.pending >= cfg.MaxPending:
		full = &a.refused.Pending
	}
	if full != nil {
		*full++
		p.refused++
		return nil
	}
	if a.peers == nil {
		a.peers = make(map[peerKey]*peerLoad)
	}
	a.peers[key] = p
	p.pending++
	a.pending++
	c.pending++
	l.waiting++
	if l.peers == nil {
		l.peers = make(map[peerKey]int)
	}
	l.peers[key]++
	if half {
		p.halfOpen++
		a.halfOpen++
	}
	return &place{l: l, key: key, half: half, waiting: true}
}

// change moves a place on.
func (p *place) change(f func(a *admission, load *peerLoad)) {
	if p == nil {
		return
	}
	a := &p.l.id.dev.admit
	a.mu.Lock()
	defer a.mu.Unlock()
	load := a.peers[p.key]
	if load == nil {
		return // all of it was given back
	}
	f(a, load)
	if load.pending == 0 && load.conns == 0 {
		delete(a.peers, p.key)
	}
}

func (p *place) open(a *admission, load *peerLoad) {
	if p.half {
		p.half = false
		load.halfOpen--
		a.halfOpen--
	}
}

// asked says that the Request is complete.
func (p *place) asked() { p.change(p.open) }

// connect says that there is a connection, which holds a place until disconnect.
func (p *place) connect() {
	p.change(func(_ *admission, load *peerLoad) {
		if !p.connected {
			p.connected = true
			load.conns++
		}
	})
}

func (p *place) disconnect() {
	p.change(func(_ *admission, load *peerLoad) {
		if p.connected {
			p.connected = false
			load.conns--
		}
	})
}

// done says that the request was answered, or is over.
func (p *place) done() {
	p.change(func(a *admission, load *peerLoad) {
		p.open(a, load)
		if !p.waiting {
			return
		}
		p.waiting = false
		load.pending--
		a.pending--
		l := p.l
		l.id.ctx.pending--
		l.waiting--
		if l.peers[p.key]--; l.peers[p.key] == 0 {
			delete(l.peers, p.key)
		}
	})
}

// PeerInfo says what one peer has of a device: an address, or an IPv6 network of 64 bits.
type PeerInfo struct {
	Dev      string     `json:"dev"`
	Addr     netip.Addr `json:"addr,omitzero"`    // of the peer, or of its network
	Context  uint32     `json:"context,omitzero"` // on loopback: the number of the user's context
	HalfOpen int        `json:"half_open"`
	Pending  int        `json:"pending"` // requests half open or unanswered
	Conns    int        `json:"conns"`   // accepted from it
	Refused  uint64     `json:"refused"` // since it has had something
}

// Peers describes the peers that have asked for connections, those with most first.
func (d *Device) Peers() []PeerInfo {
	infos := []PeerInfo{}
	a := &d.admit
	a.mu.Lock()
	for k, p := range a.peers {
		infos = append(infos, PeerInfo{
			Dev: d.cfg.Name, Addr: k.addr, Context: k.ctx, HalfOpen: p.halfOpen, Pending: p.pending, Conns: p.conns, Refused: p.refused,
		})
	}
	a.mu.Unlock()
	slices.SortFunc(infos, func(x, y PeerInfo) int {
		if n := (y.Pending + y.Conns) - (x.Pending + x.Conns); n != 0 {
			return n
		}
		return x.Addr.Compare(y.Addr)
	})
	return infos
}
