package cm

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// A State is all that a Manager has between two calls, but for what is still to be taken by Packets
// and Events. Times are nanoseconds from some moment on; what is told apart by Number is named so.
type State struct {
	Numbers           uint64
	HalfOpen, Waiting int
	Refused           Refusals
	Stats             Stats
	Accounts          []AccountState
	Peers             []PeerState
	Listeners         []ListenerState
	Lulls             []LullState
	Conns             []ConnState
	Early             []EarlyState
	Lookups           []LookupState
	Queries           []QueryState
	Kept              []uint64     // the oldest first
	Timers            []TimerState // in the order of the heap
}

// An AccountState is an Account. They have numbers of their own, from 1 on; 0 is none.
type AccountState struct{ Number, Max, HalfOpen int }

// A PeerKey names who has a share: an address, or an account.
type PeerKey struct {
	Addr    netip.Addr
	Account int
}

// A PeerState is the share of a peer.
type PeerState struct {
	PeerKey
	HalfOpen, Held, Unasked int
	Refused                 uint64
	Hears                   bool
}

// A ListenerState is a Listener, or one that was closed and has requests still.
type ListenerState struct {
	Number           uint64
	Open             bool
	Service          Service
	Addr             netip.Addr
	Backlog, Waiting int
	Peers            []PeerCount
	Only6            bool
	Account          int
}

// A PeerCount says of how many requests a peer is.
type PeerCount struct {
	PeerKey
	N int
}

// A LullState is a service that waits for a Listener.
type LullState struct {
	Service Service
	Until   int64
}

// A ConnState is a Conn.
type ConnState struct {
	Number                               uint64
	State                                uint8
	Since                                int64
	Active, Half, Waiting, Held          bool
	Ownerless, Asked, Connected, Patient bool
	Local, Peer                          netip.Addr
	LocalID, RemoteID                    uint32
	GUID, Exchange, Listener             uint64
	Share                                PeerKey
	Account                              int
	Retries                              uint8
	QPN, PeerQPN, PSN, PeerPSN           uint32
	Depth, Resources, MTU                uint8
	Path                                 mad.Path
	RetryCount, RNRRetries, ACKTimeout   uint8
	RTU, Sent                            []byte
	Kind                                 uint16
	Left                                 int
	Every                                int64
}

// An EarlyState is a request that waits for a Listener.
type EarlyState struct {
	Number   uint64
	Service  Service
	From, To netip.Addr
	MAD      []byte
}

// A LookupState is a Lookup.
type LookupState struct {
	Number      uint64
	ID          uint32
	Local, Peer netip.Addr
	Account     int
	Class       uint8
	Sent        []byte
	Left        int
}

// A QueryState is a Query.
type QueryState struct {
	Number               uint64
	Peer, Local          netip.Addr
	ID                   uint32
	Share                PeerKey
	Listener             uint64
	Service, Transaction uint64
	Answer               []byte
}

// A TimerState is a timer that is set, of the object with that number.
type TimerState struct {
	Of uint64
	At int64
}

// A saver makes a State.
type saver struct {
	s         *State
	from      time.Time
	accounts  func(*Account) int
	known     map[*Account]bool
	listeners map[*Listener]bool
	timers    map[*timer]uint64
}

// Save is the State of m, with times from a moment on. account is the number of an Account; of nil
// it is not asked.
func (m *Manager) Save(from time.Time, account func(*Account) int) *State {
	v := &saver{s: &State{Numbers: m.numbers, HalfOpen: m.halfOpen, Waiting: m.waiting,
		Refused: m.refused, Stats: m.stats}, from: from, accounts: account,
		known: map[*Account]bool{}, listeners: map[*Listener]bool{}, timers: map[*timer]uint64{}}
	s := v.s
	for k, p := range m.peers {
		s.Peers = append(s.Peers, PeerState{v.key(k), p.halfOpen, p.held, p.unasked, p.refused, p.hears})
	}
	for _, l := range m.listeners {
		v.listener(l)
	}
	for service, until := range m.lulls {
		s.Lulls = append(s.Lulls, LullState{service, v.at(until)})
	}
	for _, c := range m.all() {
		s.Conns = append(s.Conns, v.conn(c))
	}
	for _, e := range m.early {
		v.timers[&e.timer] = e.num
		s.Early = append(s.Early, EarlyState{e.num, e.service, e.from, e.to, e.mad})
	}
	for _, l := range m.lookups {
		v.timers[&l.timer] = l.num
		s.Lookups = append(s.Lookups, LookupState{l.num, l.id, l.local, l.peer, v.account(l.account),
			l.class, l.sent, l.left})
	}
	for _, q := range m.queries {
		v.timers[&q.timer] = q.num
		s.Queries = append(s.Queries, QueryState{q.num, q.key.peer, q.local, q.key.id, v.key(q.share),
			v.listener(q.listener), q.service, q.transaction, q.answer})
	}
	for e := m.kept.Front(); e != nil; e = e.Next() {
		switch x := e.Value.(type) {
		case *Conn:
			s.Kept = append(s.Kept, x.num)
		case *Query:
			s.Kept = append(s.Kept, x.num)
		}
	}
	for _, t := range m.timers {
		s.Timers = append(s.Timers, TimerState{v.timers[t], v.at(t.at)})
	}
	return s
}

// all are the connections that m knows by an id, its own or the peer's.
func (m *Manager) all() (all []*Conn) {
	for _, c := range m.conns {
		all = append(all, c)
	}
	for _, c := range m.asked { // one that was refused is known by the peer's only
		if m.conns[c.localID] != c {
			all = append(all, c)
		}
	}
	return all
}

func (v *saver) at(t time.Time) int64 { return int64(t.Sub(v.from)) }

func (v *saver) account(a *Account) int {
	if a == nil {
		return 0
	}
	n := v.accounts(a)
	if !v.known[a] {
		v.known[a] = true
		v.s.Accounts = append(v.s.Accounts, AccountState{n, a.Max, a.halfOpen})
	}
	return n
}

func (v *saver) key(k peerKey) PeerKey { return PeerKey{k.addr, v.account(k.account)} }

func (v *saver) listener(l *Listener) uint64 {
	if l == nil || v.listeners[l] {
		return l.Number()
	}
	v.listeners[l] = true
	s := ListenerState{Number: l.num, Open: l.m.listeners[l.key] == l, Service: l.key.service,
		Addr: l.key.addr, Backlog: l.backlog, Waiting: l.waiting, Only6: l.only6,
		Account: v.account(l.account)}
	for k, n := range l.peers {
		s.Peers = append(s.Peers, PeerCount{v.key(k), n})
	}
	v.s.Listeners = append(v.s.Listeners, s)
	return l.num
}

func (v *saver) conn(c *Conn) ConnState {
	v.timers[&c.timer] = c.num
	return ConnState{
		Number: c.num, State: uint8(c.state), Since: v.at(c.since), Active: c.active, Half: c.half,
		Waiting: c.waiting, Held: c.held, Ownerless: c.ownerless, Patient: c.patient,
		Asked:     c.m.asked[askedKey{c.peer, c.remoteID, c.guid}] == c,
		Connected: c.m.connected[endKey{c.peer, c.guid, c.peerQPN}] == c, Local: c.local, Peer: c.peer,
		LocalID: c.localID, RemoteID: c.remoteID, GUID: c.guid, Exchange: c.exchange,
		Listener: v.listener(c.listener), Share: v.key(c.share), Account: v.account(c.account),
		Retries: c.retries, QPN: c.qpn, PeerQPN: c.peerQPN, PSN: c.psn, PeerPSN: c.peerPSN,
		Depth: c.depth, Resources: c.resources, MTU: c.mtu, Path: c.path, RetryCount: c.retryCount,
		RNRRetries: c.rnrRetries, ACKTimeout: c.ackTimeout, RTU: c.rtu, Sent: c.sent,
		Kind: uint16(c.kind), Left: c.left, Every: int64(c.every),
	}
}

// A Restored is a Manager that was made of a State, and all that it has, by its Number.
type Restored struct {
	*Manager
	Conns     map[uint64]*Conn
	Listeners map[uint64]*Listener
	Lookups   map[uint64]*Lookup
	Queries   map[uint64]*Query
}

// Restore makes a Manager that has s. account is the Account of a number, with what a State says of
// it. An error: s is none that Save gives.
func Restore(cfg Config, from time.Time, s *State, account func(n int) *Account) (*Restored,
	error) {
	m := New(cfg)
	r := &Restored{m, map[uint64]*Conn{}, map[uint64]*Listener{}, map[uint64]*Lookup{},
		map[uint64]*Query{}}
	m.numbers, m.halfOpen, m.waiting, m.refused, m.stats = s.Numbers, s.HalfOpen, s.Waiting, s.Refused,
		s.Stats
	owner := func(n int) *Account {
		if n == 0 {
			return nil
		}
		return account(n)
	}
	key := func(k PeerKey) peerKey { return peerKey{k.Addr, owner(k.Account)} }
	for _, a := range s.Accounts {
		x := account(a.Number)
		x.Max, x.halfOpen = a.Max, a.HalfOpen
	}
	for _, p := range s.Peers {
		m.peers[key(p.PeerKey)] = &share{halfOpen: p.HalfOpen, held: p.Held, refused: p.Refused,
			hears: p.Hears, unasked: p.Unasked}
	}
	for _, x := range s.Listeners {
		l := &Listener{m: m, num: x.Number, key: listenKey{x.Service, x.Addr}, backlog: x.Backlog,
			waiting: x.Waiting, peers: map[peerKey]int{}, only6: x.Only6, account: owner(x.Account)}
		for _, p := range x.Peers {
			l.peers[key(p.PeerKey)] = p.N
		}
		if r.Listeners[x.Number] = l; x.Open {
			m.listeners[l.key] = l
		}
	}
	for _, x := range s.Lulls {
		m.lulls[x.Service] = from.Add(time.Duration(x.Until))
	}
	timers := map[uint64]*timer{}
	for i := range s.Conns {
		x := &s.Conns[i]
		if x.Every <= 0 || x.Left < 0 || x.Left > cmRetries || x.Retries > cmRetries {
			return nil, fmt.Errorf("a connection that is repeated %d times each %d ns", x.Left, x.Every)
		}
		c := x.restore(m, from, r.Listeners[x.Listener], key(x.Share), owner(x.Account))
		r.Conns[c.num], timers[c.num] = c, &c.timer
	}
	for _, x := range s.Early {
		e := &early{m: m, num: x.Number, service: x.Service, from: x.From, to: x.To, mad: x.MAD}
		e.timer.due = e.again
		m.early, timers[e.num] = append(m.early, e), &e.timer
	}
	for _, x := range s.Lookups {
		if x.Left < 0 || x.Left > cmRetries {
			return nil, fmt.Errorf("a look-up that is repeated %d times", x.Left)
		}
		l := &Lookup{m: m, num: x.Number, id: x.ID, local: x.Local, peer: x.Peer,
			account: owner(x.Account), class: x.Class, sent: x.Sent, left: x.Left}
		l.timer.due = l.expire
		m.lookups[l.id], r.Lookups[l.num], timers[l.num] = l, l, &l.timer
	}
	for _, x := range s.Queries {
		q := &Query{m: m, num: x.Number, key: queryKey{x.Peer, x.ID}, share: key(x.Share),
			local: x.Local, listener: r.Listeners[x.Listener], service: x.Service,
			transaction: x.Transaction, answer: x.Answer}
		q.timer.due = q.expire
		m.queries[q.key], r.Queries[q.num], timers[q.num] = q, q, &q.timer
	}
	return r, r.order(s, from, timers)
}

// order has what is over, and what waits for its time, in the order of s.
func (r *Restored) order(s *State, from time.Time, timers map[uint64]*timer) error {
	for _, n := range s.Kept {
		switch c, q := r.Conns[n], r.Queries[n]; {
		case c != nil:
			c.kept = r.kept.PushBack(c)
		case q != nil:
			q.kept = r.kept.PushBack(q)
		default:
			return fmt.Errorf("%d is over, and is nothing", n)
		}
	}
	for i, x := range s.Timers {
		t := timers[x.Of]
		if t == nil || t.index != 0 {
			return fmt.Errorf("a timer of %d", x.Of)
		}
		t.at, t.index = from.Add(time.Duration(x.At)), i+1
		r.timers = append(r.timers, t)
	}
	return nil
}

// restore makes a Conn of m.
func (x *ConnState) restore(m *Manager, from time.Time, l *Listener, share peerKey,
	a *Account) *Conn {
	c := &Conn{
		m: m, num: x.Number, state: state(x.State), since: from.Add(time.Duration(x.Since)),
		active: x.Active, half: x.Half, waiting: x.Waiting, held: x.Held, ownerless: x.Ownerless,
		patient: x.Patient, local: x.Local, peer: x.Peer, localID: x.LocalID, remoteID: x.RemoteID,
		guid: x.GUID, exchange: x.Exchange, listener: l, share: share, account: a, retries: x.Retries,
		qpn: x.QPN, peerQPN: x.PeerQPN, psn: x.PSN, peerPSN: x.PeerPSN, depth: x.Depth,
		resources: x.Resources, mtu: x.MTU, path: x.Path, retryCount: x.RetryCount,
		rnrRetries: x.RNRRetries, ackTimeout: x.ACKTimeout, rtu: slices.Clone(x.RTU),
		sent: slices.Clone(x.Sent), kind: mad.Attribute(x.Kind), left: x.Left,
		every: time.Duration(x.Every),
	}
	c.timer.due = c.expire
	if c.state != stateRejected { // whose own id is free again
		m.conns[c.localID] = c
	}
	if x.Asked {
		m.asked[askedKey{c.peer, c.remoteID, c.guid}] = c
	}
	if x.Connected {
		m.connected[endKey{c.peer, c.guid, c.peerQPN}] = c
	}
	return c
}
