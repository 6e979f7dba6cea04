package cm

import "net/netip"

// Who may ask for connections, and how many at once: one peer, or the listeners of one user, must
// not keep others out. Where a packet has come from nobody has proved, and a program is told of it
// all the same (C11): what is sent to a peer that has not shown that it hears us is bounded, too.

// An Account is one user's of a device.
type Account struct {
	// Max bounds the requests to its listeners that have not come to a connection; 0: nothing does.
	Max int
	// Owner is the caller's.
	Owner any

	halfOpen int
}

// A peerKey is whom a share is for: an IPv4 address, a network of IPv6 of 64 bits, in which a host
// chooses its addresses freely, or a user of this device.
type peerKey struct {
	addr    netip.Addr
	account *Account // nil: on the network
}

// keyOf is whom a request of in is for. asker is who of this device has asked, if that is where it
// has come from.
func (in *incoming) keyOf(asker *Account) peerKey {
	switch {
	case asker != nil:
		return peerKey{account: asker}
	case in.from.Is6():
		p, _ := in.from.Prefix(64)
		return peerKey{addr: p.Addr()}
	}
	return peerKey{addr: in.from}
}

// A share is what one peer has.
type share struct {
	halfOpen int
	held     int // half open or not
	refused  uint64
	// A peer that has used an id of ours hears us. unasked is what one that has not has been sent of
	// its own accord: what the first packet has drawn, and no other.
	hears   bool
	unasked int
}

// maxUnasked is how often answers to a peer's requests are repeated that nothing of it has asked
// for, before it has shown that it hears us: as often as those of one request are. Otherwise each
// packet with a forged source would have so many sent there (C7).
const maxUnasked = cmRetries

// Refusals count the requests for which there was no room, by what was full.
type Refusals struct {
	Peer    uint64 // what one peer may have
	Backlog uint64 // the listener's
	Account uint64 // what the listeners of one user may have
	Total   uint64 // requests in all
}

// admission is what a Manager has admitted.
type admission struct {
	halfOpen int
	waiting  int // of them, that no program has answered
	peers    map[peerKey]*share
	refused  Refusals
}

// admit counts a request of a peer; false: there is no room for it, and it is dropped (C5).
func (m *Manager) admit(l *Listener, key peerKey) bool {
	p := m.peers[key]
	if p == nil {
		p = new(share)
	}
	var full *uint64
	switch {
	case p.halfOpen >= m.cfg.MaxHalfOpenPerPeer, p.held >= m.cfg.MaxPerPeer:
		full = &m.refused.Peer
	// A peer that has nothing waiting here finds room beyond the backlog, so that one that has filled
	// it does not keep all others out.
	case l.waiting >= l.backlog && (l.peers[key] > 0 || l.waiting >= 2*l.backlog):
		full = &m.refused.Backlog
	case l.account != nil && l.account.Max > 0 && l.account.halfOpen >= l.account.Max:
		full = &m.refused.Account
	case m.halfOpen >= m.cfg.MaxHalfOpen, !p.hears && m.halfOpen >= m.strangers():
		full = &m.refused.Total
	}
	if full != nil {
		*full++
		p.refused++
		m.stats.Refused++
		return false
	}
	m.peers[key] = p
	m.halfOpen++
	m.waiting++
	p.halfOpen++
	p.held++
	l.waiting++
	l.peers[key]++
	if l.account != nil {
		l.account.halfOpen++
	}
	return true
}

// strangers is how many requests there are until only those of peers find room that have had a
// connection of theirs confirmed: any number of addresses can be forged, but none of these.
func (m *Manager) strangers() int { return m.cfg.MaxHalfOpen - m.cfg.MaxHalfOpen/8 }

// decided gives back the place of a request at its listener, as the program has answered it.
func (l *Listener) decided(key peerKey) {
	l.waiting--
	l.m.waiting--
	if l.peers[key]--; l.peers[key] == 0 {
		delete(l.peers, key)
	}
}

// opened gives back the place of a request at the device: it has come to a connection, or nothing.
func (l *Listener) opened(key peerKey) {
	l.m.halfOpen--
	l.m.peers[key].halfOpen--
	if l.account != nil {
		l.account.halfOpen--
	}
}

// over gives back the place of what a peer has asked for.
func (m *Manager) over(key peerKey) {
	if m.peers[key].held--; m.peers[key].held == 0 {
		delete(m.peers, key)
	}
}

// mayRepeat reports whether a peer may be sent once more what it has not asked for again.
func (m *Manager) mayRepeat(key peerKey) bool {
	p := m.peers[key]
	if p == nil || p.hears {
		return true
	}
	p.unasked++
	return p.unasked <= maxUnasked
}

// Refusals is what m has refused.
func (m *Manager) Refusals() Refusals { return m.refused }

// A PeerLoad is what one peer has of a Manager.
type PeerLoad struct {
	Addr     netip.Addr // or its network's, of 64 bits
	Account  *Account   // of a user of this device, which has no Addr
	HalfOpen int        // requests that have not come to a connection
	Conns    int        // and what has
	Refused  uint64     // since it has had something
}

// Peers is what each peer has that has something, in any order.
func (m *Manager) Peers() []PeerLoad {
	all := make([]PeerLoad, 0, len(m.peers))
	for k, p := range m.peers {
		all = append(all, PeerLoad{Addr: k.addr, Account: k.account, HalfOpen: p.halfOpen,
			Conns: p.held - p.halfOpen, Refused: p.refused})
	}
	return all
}
