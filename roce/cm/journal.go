package cm

import (
	"net/netip"
	"time"
)

// A Journal hears of each call of a Manager and of what it has, of what it has asked for, and of
// what has come of it: all that is needed to make the calls again. It is called inside of them.
type Journal interface {
	Begin(now time.Time, c *Call)
	Drew(n uint32)  // Config.Rand has given that
	MTU(code uint8) // Config.PathMTU has
	Sent(p *Packet)
	Told(e *Event)
	End(made uint64, err error) // made is the Number of what the call has made; 0: nothing
}

// A CallKind says which call it is.
type CallKind uint8

// The calls.
const (
	CallReceive CallKind = iota
	CallExpire
	CallListen
	CallUnlisten
	CallConnect
	CallAccept
	CallReject
	CallReady
	CallEstablished
	CallDisconnect
	CallClose
	CallLookup
	CallCancel
	CallAnswer
)

// A Call is one with its arguments.
type Call struct {
	Kind CallKind
	Of   uint64 // the Number of whose call it is; 0: the Manager's
	From netip.Addr
	To   netip.Addr // of a message, as From; or where there is listened
	// Octets are a message, or private data.
	Octets []byte
	// What is a *Request, *Reply, *LookupRequest, *Answer or *ListenRequest.
	What    any
	Account *Account // of a Request, LookupRequest or ListenRequest; nil: none
}

// Note has j, unless it is nil, hear of all calls from now on.
func (m *Manager) Note(j Journal) { m.journal = j }

// noted makes a call.
func (m *Manager) noted(now time.Time, c Call, f func() error) error {
	return m.made(now, c, func() (uint64, error) { return 0, f() })
}

// made makes a call that makes something.
func (m *Manager) made(now time.Time, c Call, f func() (uint64, error)) error {
	j := m.journal
	if j != nil {
		j.Begin(now, &c)
	}
	n, err := f()
	if j != nil {
		j.End(n, err)
	}
	return err
}

// draw is a number that nobody can predict.
func (m *Manager) draw() uint32 {
	n := m.cfg.Rand()
	if m.journal != nil {
		m.journal.Drew(n)
	}
	return n
}

// mtu is the code of the largest path MTU at present.
func (m *Manager) mtu() uint8 {
	code := m.cfg.PathMTU()
	if m.journal != nil {
		m.journal.MTU(code)
	}
	return code
}

// number is that of the next object.
func (m *Manager) number() uint64 {
	m.numbers++
	return m.numbers
}

// Number tells a Conn, Listener, Lookup or Query of a Manager from all others that it has had; of
// nil it is 0.
func (c *Conn) Number() uint64 {
	if c == nil {
		return 0
	}
	return c.num
}

// Number is as that of a Conn.
func (l *Listener) Number() uint64 {
	if l == nil {
		return 0
	}
	return l.num
}

// Number is as that of a Conn.
func (l *Lookup) Number() uint64 {
	if l == nil {
		return 0
	}
	return l.num
}

// Number is as that of a Conn.
func (q *Query) Number() uint64 {
	if q == nil {
		return 0
	}
	return q.num
}
