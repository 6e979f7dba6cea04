package cm

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	protocol "github.com/vrnic/vrnic/roce/cm"
)

// Who may ask for connections, and how many at once: RFC 5042, section 6.4.1. One peer must not be
// able to keep others out, whatever it sends.

// A peerKey is whom a share is for: an IPv4 address, an IPv6 network of 64 bits, or, on loopback, a
// user of the device.
type peerKey struct {
	addr netip.Addr
	user uint32 // 0: on the network
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

// Refusals count connection requests that were refused for want of room, by what was full.
type Refusals struct {
	Peer     uint64 `json:"peer"`      // what one peer may have
	Backlog  uint64 `json:"backlog"`   // the listener's
	Context  uint64 `json:"context"`   // what one user's listeners may have
	HalfOpen uint64 `json:"half_open"` // start-ups in all
	Pending  uint64 `json:"pending"`   // requests in all
}

// admission counts what a device has admitted. Its lock is below ID.mu, with none below it.
type admission struct {
	mu       sync.Mutex
	peers    map[peerKey]*peerLoad // guarded by mu, as all
	halfOpen int
	pending  int
	refused  Refusals        // +checklocks:mu
	assocs   map[peerKey]int // SCTP associations that each peer has set up
}

// A grant is what a connection request holds of the limits from its first octet on, until the
// connection is over. nil stands for none, and for one that was given back in full.
type grant struct {
	l   *acceptor
	key peerKey

	// guarded by the device's admission.mu
	half, waiting, connected bool
}

// admit gives a request of a peer what it needs; nil: it is refused. half says that the peer has
// not asked yet.
func (l *acceptor) admit(key peerKey, half bool) *grant {
	u, m := l.id.user, l.id.m
	a, cfg := &m.admit, &m.cfg
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[key]
	if p == nil {
		p = &peerLoad{}
	}
	var full *uint64
	switch {
	case p.pending >= cfg.MaxPendingPerPeer, half && p.halfOpen >= cfg.MaxHalfOpenPerPeer,
		p.pending+p.conns >= cfg.MaxConnsPerPeer:
		full = &a.refused.Peer
	// A peer that has nothing waiting here finds room beyond the backlog, so that one that has filled
	// it does not keep all others out.
	case l.waiting >= l.backlog && (l.peers[key] > 0 || l.waiting >= 2*l.backlog):
		full = &a.refused.Backlog
	case u.pending >= u.cfg.MaxPending:
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
	u.pending++
	l.waiting++
	if l.peers == nil {
		l.peers = make(map[peerKey]int)
	}
	l.peers[key]++
	if half {
		p.halfOpen++
		a.halfOpen++
	}
	return &grant{l: l, key: key, half: half, waiting: true}
}

// change moves a grant on.
func (g *grant) change(f func(a *admission, load *peerLoad)) {
	if g == nil {
		return
	}
	a := &g.l.id.m.admit
	a.mu.Lock()
	defer a.mu.Unlock()
	load := a.peers[g.key]
	if load == nil {
		return // all of it was given back
	}
	f(a, load)
	if load.pending == 0 && load.conns == 0 {
		delete(a.peers, g.key)
	}
}

func (g *grant) open(a *admission, load *peerLoad) {
	if g.half {
		g.half = false
		load.halfOpen--
		a.halfOpen--
	}
}

// asked says that the Request is complete.
func (g *grant) asked() { g.change(g.open) }

// connect says that there is a connection, which counts until disconnect.
func (g *grant) connect() {
	g.change(func(_ *admission, load *peerLoad) {
		if !g.connected {
			g.connected = true
			load.conns++
		}
	})
}

func (g *grant) disconnect() {
	g.change(func(_ *admission, load *peerLoad) {
		if g.connected {
			g.connected = false
			load.conns--
		}
	})
}

// answered says that the request was answered, or is over.
func (g *grant) answered() {
	g.change(func(a *admission, load *peerLoad) {
		g.open(a, load)
		if !g.waiting {
			return
		}
		g.waiting = false
		load.pending--
		a.pending--
		l := g.l
		l.id.user.pending--
		l.waiting--
		if l.peers[g.key]--; l.peers[g.key] == 0 {
			delete(l.peers, g.key)
		}
	})
}

// A PeerInfo says what one peer has of a device: an address, or an IPv6 network of 64 bits.
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
func (m *Manager) Peers() []PeerInfo {
	infos := m.rocePeers()
	a := &m.admit
	a.mu.Lock()
	for k, p := range a.peers {
		infos = append(infos, PeerInfo{
			Dev: m.cfg.Name, Addr: k.addr, Context: k.user, HalfOpen: p.halfOpen, Pending: p.pending,
			Conns: p.conns, Refused: p.refused,
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

// A Load says what a device's connection manager has at present.
type Load struct {
	Ports   int // that IDs have
	Pending int // connection requests half open or unanswered
	// of them, without a complete MPA Request; of RoCE, accepted and not confirmed by the peer
	HalfOpen int
	Refused  Refusals
}

// Load says what m has at present.
func (m *Manager) Load() Load {
	ports := m.ports.len()
	if m.cfg.RoCE != nil {
		return m.roceLoad(ports)
	}
	a := &m.admit
	a.mu.Lock()
	defer a.mu.Unlock()
	return Load{Ports: ports, Pending: a.pending, HalfOpen: a.halfOpen, Refused: a.refused}
}

// rocePeers is what peers have of a device of RoCE; none of one of iWARP.
func (m *Manager) rocePeers() []PeerInfo {
	infos := []PeerInfo{}
	if m.cfg.RoCE == nil {
		return infos
	}
	m.gsi().Do(func(_ time.Time, c *protocol.Manager) {
		for _, p := range c.Peers() {
			i := PeerInfo{Dev: m.cfg.Name, Addr: p.Addr, Pending: p.HalfOpen, Conns: p.Conns,
				Refused: p.Refused}
			if p.Account != nil {
				i.Context = p.Account.Owner.(*User).cfg.Number
			}
			infos = append(infos, i)
		}
	})
	return infos
}

// roceLoad is Load of a device of RoCE.
func (m *Manager) roceLoad(ports int) Load {
	l := Load{Ports: ports}
	m.gsi().Do(func(_ time.Time, c *protocol.Manager) {
		x, r := c.Load(), c.Refusals()
		l.Pending, l.HalfOpen = x.HalfOpen, x.HalfOpen-x.Waiting
		l.Refused = Refusals{Peer: r.Peer, Backlog: r.Backlog, Context: r.Account, Pending: r.Total}
	})
	return l
}

// An Info describes an ID.
type Info struct {
	State         string
	Space         PortSpace
	Local, Remote netip.AddrPort
	QPN           uint32 // 0: none
	Waiting       int    // of a listener: requests half open or unanswered
}

// Info describes id.
func (id *ID) Info() Info {
	id.mu.Lock()
	defer id.mu.Unlock()
	i := Info{State: id.state.String(), Space: id.space, Local: id.local, Remote: id.remote}
	if id.attempt != nil {
		i.QPN = id.attempt.qp.Num()
	}
	if l := id.listen; l != nil && l.roce != nil {
		id.m.gsi().Do(func(time.Time, *protocol.Manager) { i.Waiting = l.roce.Waiting() })
	} else if id.listen != nil {
		a := &id.m.admit
		a.mu.Lock()
		i.Waiting = id.listen.waiting
		a.mu.Unlock()
	}
	return i
}
