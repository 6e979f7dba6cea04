package iwarptest

import (
	"io"
	"math/rand/v2"

	"github.com/vrnic/vrnic/iwarp"
)

// A SegmentReader takes segments from an LLP that keeps their bounds; iwarp.Endpoint is one.
type SegmentReader interface {
	Ahead(seg []byte) (keep int)
	Segment(seg []byte, size int) error
}

var _ SegmentReader = (*iwarp.Endpoint)(nil)

// Records is one end of an LLP that keeps segments apart and delivers them in their order, though
// they arrive in another one.
type Records struct {
	peer *Records
	rng  *rand.Rand
	span int // the next one to arrive is among so many

	underWay []record // sent by this end and not arrived
	sent     int

	next int            // of those that are taken here
	held map[int]record // arrived here, and not taken
	last []byte         // what was shown last
}

type record struct {
	n    int
	size int
	b    []byte
}

// NewRecords joins two ends. reorder is among how many segments under way the next one to arrive is
// chosen: 1 is order.
func NewRecords(seed uint64, reorder int) (a, b *Records) {
	a = &Records{rng: rand.New(rand.NewPCG(seed, 1)), span: max(reorder, 1), held: map[int]record{}}
	b = &Records{rng: rand.New(rand.NewPCG(seed, 2)), span: max(reorder, 1), held: map[int]record{}}
	a.peer, b.peer = b, a
	return a, b
}

// WriteFrom takes one segment from src, in odd pieces, and says how many octets that were.
func (r *Records) WriteFrom(src iwarp.Source) (n int, err error) {
	n = src.Len()
	if n == 0 {
		return 0, nil
	}
	p := make([]byte, n)
	for at := 0; at < n; {
		end := at + 1 + r.rng.IntN(n-at)
		k, err := src.Read(p[at:end:end])
		if err != nil {
			return 0, err
		}
		if at += k; at < end {
			return 0, io.ErrUnexpectedEOF // Len promised more
		}
	}
	r.underWay = append(r.underWay, record{r.sent, n, p})
	r.sent++
	return n, nil
}

// UnderWay is how many segments of this end have not arrived.
func (r *Records) UnderWay() int { return len(r.underWay) }

// Held is how many have arrived at this end and are not taken.
func (r *Records) Held() int { return len(r.held) }

// Arrive lets one segment arrive, if one is under way, and k take what is in order then.
func (r *Records) Arrive(k SegmentReader) bool {
	p := r.peer
	if len(p.underWay) == 0 {
		return false
	}
	i := r.rng.IntN(min(r.span, len(p.underWay)))
	m := p.underWay[i]
	p.underWay = append(p.underWay[:i], p.underWay[i+1:]...)
	if m.n != r.next {
		m.b = m.b[:k.Ahead(r.show(m.b))]
	}
	r.held[m.n] = m
	r.Resume(k)
	return true
}

// show gives a copy with nothing behind it, that is spoiled by the next one: who keeps it, shows.
func (r *Records) show(b []byte) []byte {
	for i := range r.last {
		r.last[i] = 0xdb
	}
	r.last = append(make([]byte, 0, len(b)), b...)
	return r.last
}

// Resume lets k take what is in order.
func (r *Records) Resume(k SegmentReader) {
	for {
		m, ok := r.held[r.next]
		if !ok || k.Segment(r.show(m.b), m.size) != nil {
			return
		}
		delete(r.held, r.next)
		r.next++
	}
}
