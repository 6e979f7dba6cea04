package cm

import (
	"container/list"
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// A Lookup asks a peer which QP serves by datagrams (SIDR: service id resolution).
type Lookup struct {
	// Owner is the caller's.
	Owner any

	m           *Manager
	num         uint64
	id          uint32
	local, peer netip.Addr
	account     *Account // who asks
	class       uint8
	sent        []byte
	left        int
	timer       timer
}

// A LookupRequest says what Lookup asks for.
type LookupRequest struct {
	From, To     netip.Addr
	SourcePort   uint16
	Service      Service
	Account      *Account `json:"-"` // who asks, or nil
	TrafficClass uint8
	PrivateData  []byte // up to MaxLookupData
}

// Lookup asks. EventFound follows, or EventUnreachable.
func (m *Manager) Lookup(now time.Time, r *LookupRequest) (l *Lookup, err error) {
	err = m.made(now, Call{Kind: CallLookup, What: r, Account: r.Account}, func() (uint64, error) {
		l, err = m.lookUp(now, r)
		return l.Number(), err
	})
	return l, err
}

func (m *Manager) lookUp(now time.Time, r *LookupRequest) (*Lookup, error) {
	if len(r.PrivateData) > MaxLookupData {
		return nil, fmt.Errorf("look up with %d octets, at most %d: %w", len(r.PrivateData),
			MaxLookupData, ErrPrivate)
	}
	l := &Lookup{m: m, num: m.number(), local: plain(r.From), peer: plain(r.To), account: r.Account,
		class: r.TrafficClass, left: cmRetries}
	l.id = newID(m, m.lookups)
	head := mad.Address{Source: l.local, Dest: l.peer, Port: r.SourcePort}
	l.sent = mad.Append(nil, m.transaction(), &mad.SIDRREQ{
		RequestID: l.id, PKey: fullMember, ServiceID: r.Service.id(),
		PrivateData: append(head.Append(nil), r.PrivateData...),
	})
	l.timer.due = l.expire
	m.lookups[l.id] = l
	l.ask(now)
	return l, nil
}

func (l *Lookup) ask(now time.Time) {
	l.m.send(Packet{From: l.local, To: l.peer, TrafficClass: l.class, Of: l.num,
		MAD: l.sent}, mad.AttrSIDRREQ)
	l.m.timers.set(&l.timer, now.Add(duration(cmTimeout)))
}

func (l *Lookup) expire(now time.Time) {
	if l.left > 0 {
		l.left--
		l.m.stats.Retries[mad.AttrSIDRREQ-mad.AttrREQ]++
		l.ask(now)
		return
	}
	l.m.tell(Event{Kind: EventUnreachable, Lookup: l, TimedOut: true})
	l.cancel()
}

// Cancel gives a Lookup up; nothing is told of it any more.
func (l *Lookup) Cancel(now time.Time) {
	_ = l.m.noted(now, Call{Kind: CallCancel, Of: l.num}, func() error { // which does not fail
		l.cancel()
		return nil
	})
}

func (l *Lookup) cancel() {
	l.m.timers.stop(&l.timer)
	if l.m.lookups[l.id] == l {
		delete(l.m.lookups, l.id)
	}
}

func (in *incoming) sidrREP(r *mad.SIDRREP) {
	l := in.m.lookups[r.RequestID]
	if l == nil || l.peer != in.from {
		return
	}
	l.cancel()
	in.m.tell(Event{Kind: EventFound, Lookup: l, Status: r.Status, QPN: r.QPN, QKey: r.QKey,
		PrivateData: clone(r.PrivateData)})
}

// A Query is a peer's Lookup.
type Query struct {
	// Owner is the caller's.
	Owner any

	m           *Manager
	num         uint64
	key         queryKey
	share       peerKey
	local       netip.Addr
	listener    *Listener
	service     uint64
	transaction uint64
	answer      []byte // once it is there
	gone        bool
	timer       timer
	kept        *list.Element
}

func (in *incoming) sidrREQ(r *mad.SIDRREQ) {
	m := in.m
	key := queryKey{in.from, r.RequestID}
	if q := m.queries[key]; q != nil {
		in.duplicate(mad.AttrSIDRREQ)
		if q.answer != nil {
			m.stats.Retries[mad.AttrSIDRREP-mad.AttrREQ]++
			q.send()
		} else {
			m.timers.set(&q.timer, in.now.Add(requestLife))
		}
		return
	}
	l := m.listener(r.ServiceID, in.to, true)
	if l == nil && in.lookUpWaits(r.ServiceID) {
		return
	}
	head, private, err := mad.ParseAddress(r.PrivateData)
	switch {
	case r.PKey&0x7fff != 0x7fff:
		return
	case l == nil:
		in.answer(&mad.SIDRREP{RequestID: r.RequestID, ServiceID: r.ServiceID,
			Status: mad.SIDRUnsupported})
		return
	case err != nil || head.Source != in.from || head.Dest != in.to:
		in.answer(&mad.SIDRREP{RequestID: r.RequestID, ServiceID: r.ServiceID,
			Status: mad.SIDRRejected})
		return
	}
	share := in.keyOf(in.seeker(r))
	if !m.admit(l, share) {
		return
	}
	q := &Query{m: m, num: m.number(), key: key, share: share, local: in.to, listener: l,
		service: r.ServiceID, transaction: in.transaction}
	q.timer.due = q.expire
	m.queries[key] = q
	m.timers.set(&q.timer, in.now.Add(requestLife))
	m.tell(Event{Kind: EventAsked, Query: q, Listener: l,
		Source: netip.AddrPortFrom(in.from, head.Port), Dest: in.to, PrivateData: clone(private)})
}

// seeker is who of this device has sent r; nil: nobody has.
func (in *incoming) seeker(r *mad.SIDRREQ) *Account {
	l := in.m.lookups[r.RequestID]
	if l == nil || l.local != in.from || l.peer != in.to {
		return nil
	}
	return l.account
}

// An Answer says which QP serves, or with another Status than mad.SIDRValid why none does.
type Answer struct {
	Status      uint8
	QPN, QKey   uint32
	PrivateData []byte // up to MaxAnswerData
}

// Answer answers. ErrState: it has been, or the peer has given up.
func (q *Query) Answer(now time.Time, a *Answer) error {
	return q.m.noted(now, Call{Kind: CallAnswer, Of: q.num, What: a}, func() error {
		return q.respond(now, a)
	})
}

func (q *Query) respond(now time.Time, a *Answer) error {
	switch {
	case q.gone || q.answer != nil:
		return fmt.Errorf("answer: %w", ErrState)
	case len(a.PrivateData) > MaxAnswerData:
		return fmt.Errorf("answer with %d octets, at most %d: %w", len(a.PrivateData), MaxAnswerData,
			ErrPrivate)
	}
	q.answer = mad.Append(nil, q.transaction, &mad.SIDRREP{RequestID: q.key.id, Status: a.Status,
		QPN: a.QPN, ServiceID: q.service, QKey: a.QKey, PrivateData: a.PrivateData})
	q.decided()
	q.send()
	q.kept = q.m.keep(q)
	q.m.over(q.share)
	q.m.timers.set(&q.timer, now.Add(requestLife))
	return nil
}

func (q *Query) send() {
	q.m.send(Packet{From: q.local, To: q.key.peer, Answers: true, Of: q.num,
		MAD: q.answer}, mad.AttrSIDRREP)
}

func (q *Query) decided() {
	q.listener.decided(q.share)
	q.listener.opened(q.share)
}

func (q *Query) expire(time.Time) { q.drop() }

// drop lets go of a Query that has been answered, or that nobody asks any more.
func (q *Query) drop() {
	if q.gone {
		return
	}
	if q.answer == nil {
		q.decided()
		q.m.over(q.share)
	}
	q.gone = true
	q.m.timers.stop(&q.timer)
	if q.m.queries[q.key] == q {
		delete(q.m.queries, q.key)
	}
	if q.kept != nil {
		q.m.kept.Remove(q.kept)
		q.kept = nil
	}
}
