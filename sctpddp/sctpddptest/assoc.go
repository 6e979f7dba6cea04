// Package sctpddptest has an in-memory SCTP association for tests of DDP over SCTP: two ends joined
// back to back, that deliver what was sent in a seeded order, late, held or at once, and lose
// nothing, as SCTP does. It starts no goroutine and uses no clock.
package sctpddptest

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
)

var _ sctpddp.Association = (*Assoc)(nil)

// Link describes the pair. The zero value is fine: everything arrives in order.
type Link struct {
	Seed uint64
	// Reorder is among how many messages under way the next one to arrive is chosen; 0: 1.
	Reorder int
	// Shuffle has SCTP number the messages as they arrive, and not as they were sent: none is ever
	// missing.
	Shuffle bool
	// Room is how many messages may be under way in a direction; 0: 1 << 20.
	Room int
	// MaxPayload is that of the path; 0: 1432.
	MaxPayload int
	// Out and In are the streams of the first end; 0: 64.
	Out, In int
}

// A Sent is a message as it was sent.
type Sent struct {
	Stream uint16
	PPID   uint32
	Data   []byte
}

func (s Sent) String() string {
	return fmt.Sprintf("%d: %s", s.Stream, sctpddp.Describe(s.PPID, s.Data))
}

// An Assoc is one end.
type Assoc struct {
	link       Link
	rng        *rand.Rand
	peer       *Assoc
	out, in    int
	maxPayload int

	underWay []packet // sent and not arrived
	sent     uint64   // messages ever
	cum      uint64   // all up to this have arrived
	beyond   map[uint64]bool
	highest  uint64 // of those that have arrived
	arrived  uint64
	spoil    []byte // the message that arrived last

	log   []Sent
	acked uint64 // what Acked said when acknowledgements were held
	held  bool
	hold  bool // nothing of this end arrives
	waits int  // those under way from this one on wait in SCTP; -1: none

	// Code is the adaptation indication that this end has shown; None: it has shown none.
	Code uint32
	None bool
	// Downs counts the calls of Shutdown.
	Downs int
	// Fail is what Send returns, if set.
	Fail error
}

type packet struct {
	id uint64
	s  Sent
}

// NewPair joins two ends.
func NewPair(l Link) (a, b *Assoc) {
	for v, d := range map[*int]int{&l.Reorder: 1, &l.Room: 1 << 20, &l.MaxPayload: 1432, &l.Out: 64,
		&l.In: 64} {
		if *v == 0 {
			*v = d
		}
	}
	a = &Assoc{link: l, rng: rand.New(rand.NewPCG(l.Seed, 1)), out: l.Out, in: l.In}
	b = &Assoc{link: l, rng: rand.New(rand.NewPCG(l.Seed, 2)), out: l.In, in: l.Out}
	a.peer, b.peer = b, a
	for _, e := range []*Assoc{a, b} {
		e.maxPayload, e.Code, e.beyond = l.MaxPayload, sctpddp.IndicationDDP, map[uint64]bool{}
		e.waits = -1
	}
	return a, b
}

// Send implements sctpddp.Association. It reads src in odd pieces.
func (a *Assoc) Send(stream uint16, ppid uint32, src iwarp.Source) (id uint64, err error) {
	if a.Fail != nil {
		return 0, a.Fail
	}
	if len(a.underWay) >= a.link.Room {
		return 0, nil
	}
	p := make([]byte, src.Len())
	for at := 0; at < len(p); {
		n := min(len(p)-at, 1+a.rng.IntN(len(p)))
		k, err := src.Read(p[at : at+n : at+n])
		if err != nil {
			return 0, err
		}
		if k != n {
			return 0, io.ErrUnexpectedEOF // Len promised more
		}
		at += k
	}
	return a.Inject(Sent{stream, ppid, p}), nil
}

// Inject sends s, whatever it is.
func (a *Assoc) Inject(s Sent) uint64 {
	a.sent++
	a.underWay = append(a.underWay, packet{a.sent, s})
	a.log = append(a.log, s)
	return a.sent
}

// Acked implements sctpddp.Association.
func (a *Assoc) Acked() uint64 {
	if a.held {
		return a.acked
	}
	return a.cum
}

// HoldAcks keeps acknowledgements from this end; ReleaseAcks lets it have them.
func (a *Assoc) HoldAcks()    { a.held, a.acked = true, a.cum }
func (a *Assoc) ReleaseAcks() { a.held = false }

// Hold keeps what this end sends, or has sent, from arriving; Release lets it go on.
func (a *Assoc) Hold()    { a.hold = true }
func (a *Assoc) Release() { a.hold = false }

// ShutWindow has what this end sends from now on wait in SCTP, as behind a window that is shut;
// OpenWindow lets it go.
func (a *Assoc) ShutWindow() { a.waits = len(a.underWay) }
func (a *Assoc) OpenWindow() { a.waits = -1 }

// Drop implements sctpddp.Association: it gives up what waits in SCTP.
func (a *Assoc) Drop(stream uint16) (n int) {
	if a.waits < 0 {
		return 0
	}
	kept := a.underWay[:a.waits:a.waits]
	for _, p := range a.underWay[a.waits:] {
		if p.s.Stream == stream {
			n++
			a.beyond[p.id] = true // counts as acknowledged with those behind it
			a.arrived++
			continue
		}
		kept = append(kept, p)
	}
	a.underWay = kept
	return n
}

// MaxPayload implements sctpddp.Association.
func (a *Assoc) MaxPayload() int { return a.maxPayload }

// SetMaxPayload changes what MaxPayload says.
func (a *Assoc) SetMaxPayload(n int) { a.maxPayload = n }

// Streams implements sctpddp.Association.
func (a *Assoc) Streams() (out, in int) { return a.out, a.in }

// PeerAdaptation implements sctpddp.Association.
func (a *Assoc) PeerAdaptation() (code uint32, present bool) { return a.peer.Code, !a.peer.None }

// Shutdown implements sctpddp.Association.
func (a *Assoc) Shutdown() { a.Downs++ }

// UnderWay is how many messages of this end have not arrived.
func (a *Assoc) UnderWay() int { return len(a.underWay) }

// Log is what this end has sent.
func (a *Assoc) Log() []Sent { return a.log }

// Next is the next message that arrives here; false: none is under way, or it is held.
func (a *Assoc) Next() (m sctpddp.Message, ok bool) {
	p := a.peer
	n := len(p.underWay)
	if p.waits >= 0 {
		n = p.waits
	}
	if n == 0 || p.hold {
		return m, false
	}
	return p.arrive(p.rng.IntN(min(p.link.Reorder, n))), true
}

// Pick is Next with the i-th of those under way.
func (a *Assoc) Pick(i int) sctpddp.Message { return a.peer.arrive(i) }

func (a *Assoc) arrive(i int) sctpddp.Message {
	pk := a.underWay[i]
	if a.waits > 0 {
		a.waits--
	}
	if i < len(a.underWay)/2 {
		copy(a.underWay[1:], a.underWay[:i])
		a.underWay = a.underWay[1:]
	} else {
		a.underWay = append(a.underWay[:i], a.underWay[i+1:]...)
	}
	a.arrived++
	a.highest = max(a.highest, pk.id)
	a.beyond[pk.id] = true
	for a.beyond[a.cum+1] {
		a.cum++
		delete(a.beyond, a.cum)
	}
	missing := max(int(a.highest-a.arrived), 0)
	if a.link.Shuffle {
		missing = 0
	}
	// A copy with nothing behind it, that is spoiled when the next one comes: who keeps it shows.
	for i := range a.spoil {
		a.spoil[i] = 0xdb
	}
	a.spoil = append(make([]byte, 0, len(pk.s.Data)), pk.s.Data...)
	return sctpddp.Message{Stream: pk.s.Stream, PPID: pk.s.PPID, Unordered: true, Missing: missing,
		Data: a.spoil}
}

// Find is the place of the first message under way to this end that is on stream, has that PPID and
// the number ssn; -1: there is none.
func (a *Assoc) Find(stream uint16, ppid uint32, ssn uint16) int {
	for i, p := range a.peer.underWay {
		d := p.s.Data
		if p.s.Stream == stream && p.s.PPID == ppid && len(d) >= 2 && uint16(d[0])<<8|uint16(
			d[1]) == ssn {
			return i
		}
	}
	return -1
}
