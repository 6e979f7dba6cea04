package cm

import (
	"container/list"
	"errors"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// A Config says what a Manager works with.
type Config struct {
	GUID uint64 // of the device
	// PathMTU is the code of the largest path MTU at present: 1 is 256 octets, 5 is 4096.
	PathMTU func() uint8
	// Rand gives numbers that a stranger cannot predict: communication ids, transaction ids and
	// starting PSNs are made of them.
	Rand func() uint32
	// MaxHalfOpen bounds the requests of peers that have not come to a connection, and
	// MaxHalfOpenPerPeer those of one peer: an IPv4 address, or an IPv6 network of 64 bits.
	// 0: 1024 and 256.
	MaxHalfOpen, MaxHalfOpenPerPeer int
	// MaxPerPeer bounds what one peer has asked for and what is not over, connections included;
	// 0: 4096.
	MaxPerPeer int
	// MaxKept bounds what is kept for peers whose messages come late or again, once it is over and
	// nobody owns it; 0: 4096.
	MaxKept int
}

// Errors of calls.
var (
	ErrState   = errors.New("not in this state of the connection")
	ErrOpen    = errors.New("the connection is open already")
	ErrInUse   = errors.New("somebody listens there")
	ErrPrivate = errors.New("too many octets of private data")
)

// How many octets of a program's private data there is room for: REQs and SIDR_REQs have an address
// header in front of them, but for a service that has a Service ID of its own.
const (
	MaxServiceData = 92
	MaxConnectData = MaxServiceData - mad.AddressLen
	MaxAcceptData  = 196
	MaxRejectData  = 148
	MaxReadyData   = 224
	MaxLookupData  = 216 - mad.AddressLen
	MaxAnswerData  = 136
)

// A Manager is the connection manager of a device. It has one owner at a time. Who has called it
// takes what has come of it by Packets and Events.
type Manager struct {
	cfg    Config
	timers timers

	conns     map[uint32]*Conn // by the own communication id
	asked     map[askedKey]*Conn
	connected map[endKey]*Conn // by the peer's QP, but for those in time wait
	listeners map[listenKey]*Listener
	lulls     map[Service]time.Time // until when requests for services without a Listener wait
	early     []*early              // those
	lookups   map[uint32]*Lookup    // by request id
	queries   map[queryKey]*Query

	admission
	kept list.List // of *Conn and *Query that are over, the oldest first

	numbers uint64  // of objects there were
	journal Journal // nil: nobody wants to hear of calls
	packets []Packet
	events  []Event
	stats   Stats
}

// An askedKey names a REQ.
type askedKey struct {
	peer netip.Addr
	id   uint32
	guid uint64
}

// An endKey names a QP of a peer.
type endKey struct {
	peer netip.Addr
	guid uint64
	qpn  uint32
}

// A queryKey names a SIDR_REQ.
type queryKey struct {
	peer netip.Addr
	id   uint32
}

// New makes a Manager.
func New(cfg Config) *Manager {
	for at, other := range map[*int]int{&cfg.MaxHalfOpen: 1024, &cfg.MaxHalfOpenPerPeer: 256,
		&cfg.MaxPerPeer: 4096, &cfg.MaxKept: 4096} {
		if *at <= 0 {
			*at = other
		}
	}
	return &Manager{
		cfg: cfg, conns: map[uint32]*Conn{}, asked: map[askedKey]*Conn{},
		connected: map[endKey]*Conn{}, listeners: map[listenKey]*Listener{},
		lulls: map[Service]time.Time{}, lookups: map[uint32]*Lookup{}, queries: map[queryKey]*Query{},
		admission: admission{peers: map[peerKey]*share{}},
	}
}

// Packets takes the MADs that are to be sent.
func (m *Manager) Packets() []Packet {
	p := m.packets
	m.packets = nil
	return p
}

// Events takes what has happened, in order.
func (m *Manager) Events() []Event {
	e := m.events
	m.events = nil
	return e
}

// Stats is what m has counted.
func (m *Manager) Stats() Stats { return m.stats }

// A Load says what a Manager has at present.
type Load struct {
	Conns    int // also those that nobody owns any more
	HalfOpen int // requests of peers that have not come to a connection
	Waiting  int // of them, that no program has answered
	Kept     int // of what is over
	Peers    int // that have something
	Lookups  int
}

// Load says what m has at present.
func (m *Manager) Load() Load {
	return Load{
		Conns: len(m.conns), HalfOpen: m.halfOpen, Waiting: m.waiting, Kept: m.kept.Len(),
		Peers: len(m.peers), Lookups: len(m.lookups),
	}
}

// Receive takes a MAD that has come from QP 1 of from to address to of the device, with QP 1's
// Q_Key. b is good for the call only. What is no message of connection management is dropped.
func (m *Manager) Receive(now time.Time, from, to netip.Addr, b []byte) {
	c := Call{Kind: CallReceive, From: plain(from), To: plain(to), Octets: b}
	_ = m.noted(now, c, func() error { // which does not fail
		if msg := m.take(now, c.From, c.To, b); msg != nil {
			m.stats.Received[msg.Attribute()-mad.AttrREQ]++
		}
		return nil
	})
}

// take is Receive but for the counters; nil: b is none.
func (m *Manager) take(now time.Time, from, to netip.Addr, b []byte) mad.Message {
	transaction, msg, err := mad.Parse(b)
	if err != nil {
		return nil
	}
	in := &incoming{m: m, now: now, from: from, to: to, transaction: transaction, mad: b}
	switch msg := msg.(type) {
	case *mad.REQ:
		in.req(msg)
	case *mad.MRA:
		in.mra(msg)
	case *mad.REJ:
		in.rej(msg)
	case *mad.REP:
		in.rep(msg)
	case *mad.RTU:
		in.rtu(msg)
	case *mad.DREQ:
		in.dreq(msg)
	case *mad.DREP:
		in.drep(msg)
	case *mad.SIDRREQ:
		in.sidrREQ(msg)
	case *mad.SIDRREP:
		in.sidrREP(msg)
	}
	return msg
}

// An incoming is a message on its way through the Manager.
type incoming struct {
	m           *Manager
	now         time.Time
	from, to    netip.Addr
	transaction uint64
	mad         []byte // all of it
}

// answer sends msg back to where the message has come from, and nowhere else.
func (in *incoming) answer(msg mad.Message) {
	in.m.send(Packet{From: in.to, To: in.from, Answers: true,
		MAD: mad.Append(nil, in.transaction, msg)}, msg.Attribute())
}

func (in *incoming) duplicate(a mad.Attribute) { in.m.stats.Duplicates[a-mad.AttrREQ]++ }

func (m *Manager) send(p Packet, a mad.Attribute) {
	m.stats.Sent[a-mad.AttrREQ]++
	m.packets = append(m.packets, p)
	if m.journal != nil {
		m.journal.Sent(&p)
	}
}

func (m *Manager) tell(e Event) {
	m.events = append(m.events, e)
	if m.journal != nil {
		m.journal.Told(&e)
	}
}

// newID is a number that nobody has guessed, and that none in use is.
func newID[V any](m *Manager, used map[uint32]V) uint32 {
	for {
		id := m.draw()
		if _, taken := used[id]; id != 0 && !taken {
			return id
		}
	}
}

func (m *Manager) transaction() uint64 { return uint64(m.draw())<<32 | uint64(m.draw()) }

func (m *Manager) psn() uint32 { return m.draw() & 0xffffff }

// A keepsake is what is over, and can be let go of.
type keepsake interface{ drop() }

// keep notes that x is over, and lets go of the oldest one if there are too many.
func (m *Manager) keep(x keepsake) *list.Element {
	if m.kept.Len() >= m.cfg.MaxKept {
		m.kept.Front().Value.(keepsake).drop()
	}
	return m.kept.PushBack(x)
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
