package recovery

import (
	"slices"
	"time"
)

// A Seq is a sequence number of TCP. It wraps: use before, never <.
type Seq uint32

func (a Seq) before(b Seq) bool { return int32(a-b) < 0 }

func later(a, b Seq) Seq {
	if a.before(b) {
		return b
	}
	return a
}

// A Block is a block of a SACK option (RFC 2018): octets from Start up to End.
type Block struct{ Start, End Seq }

// maxGaps bounds a scoreboard. A peer that makes more gaps has its further blocks passed over.
const maxGaps = 8192

// The states of a gap.
type gapState uint8

const (
	waiting gapState = iota // overtaken; late, perhaps
	lost                    // to be sent again
	resent                  // under way again
)

// A gap is octets that have not been acknowledged, and behind which there are some that have.
type gap struct {
	start, end Seq
	state      gapState
	again      bool // it was sent more than once
	// since is when something that was sent after the gap was acknowledged; of a gap that was sent
	// again only with overtaken.
	since     time.Duration
	overtaken bool
	// of the last retransmission
	sentAt time.Duration
	order  uint64 // the how manyth retransmission it was
	mark   Seq    // what was sent after it begins here
}

func (g *gap) len() int { return int(g.end - g.start) }

// A scoreboard is what a peer has acknowledged. Octets from una to high have arrived, but for the
// gaps.
type scoreboard struct {
	una, high Seq
	gaps      []gap // in their order, not empty, below high
	open      int   // octets in gaps
	lost      int   // octets in those that are lost
	resent    int   // octets in those that are resent
}

// sacked is how many octets have arrived beyond una.
func (b *scoreboard) sacked() int { return int(b.high-b.una) - b.open }

// A filled is a part of a gap that has arrived.
type filled func(g *gap, octets int)

// advance has octets up to to acknowledged.
func (b *scoreboard) advance(to Seq, f filled) {
	n := 0
	for n < len(b.gaps) && !to.before(b.gaps[n].end) {
		b.gone(&b.gaps[n], b.gaps[n].len(), f)
		n++
	}
	b.gaps = slices.Delete(b.gaps, 0, n)
	if len(b.gaps) > 0 && b.gaps[0].start.before(to) {
		g := &b.gaps[0]
		b.gone(g, int(to-g.start), f)
		g.start = to
	}
	b.una, b.high = to, later(b.high, to)
	if len(b.gaps) == 0 && cap(b.gaps) > 64 {
		b.gaps = nil // a bad time is over
	}
}

// gone counts n octets of g as arrived.
func (b *scoreboard) gone(g *gap, n int, f filled) {
	f(g, n)
	b.open -= n
	switch g.state {
	case lost:
		b.lost -= n
	case resent:
		b.resent -= n
	case waiting:
	}
}

// sack has the octets of k, which is between una and what was sent, acknowledged selectively, and
// returns how many of them are new.
func (b *scoreboard) sack(k Block, now time.Duration, f filled) (n int) {
	if k.Start.before(b.una) {
		k.Start = b.una
	}
	if !k.Start.before(k.End) || len(b.gaps) >= maxGaps {
		return 0
	}
	if !k.Start.before(b.high) {
		if k.Start != b.high {
			g := gap{start: b.high, end: k.Start, since: now}
			b.open += g.len()
			b.gaps = append(b.gaps, g)
		}
		b.high = k.End
		return int(k.End - k.Start)
	}
	if b.high.before(k.End) {
		n += int(k.End - b.high)
		b.high = k.End
	}
	i, _ := slices.BinarySearchFunc(b.gaps, k.Start, func(g gap, s Seq) int {
		if s.before(g.end) {
			return 1
		}
		return -1
	})
	for i < len(b.gaps) && b.gaps[i].start.before(k.End) {
		g := &b.gaps[i]
		from, to := later(g.start, k.Start), k.End
		if g.end.before(to) {
			to = g.end
		}
		b.gone(g, int(to-from), f)
		n += int(to - from)
		switch {
		case from == g.start && to == g.end:
			b.gaps = slices.Delete(b.gaps, i, i+1)
		case from == g.start:
			g.start = to
			i++
		case to == g.end:
			g.end = from
			i++
		default:
			rest := *g
			rest.start, g.end = to, from
			b.gaps = slices.Insert(b.gaps, i+1, rest)
			i += 2
		}
	}
	return n
}

// all makes what was sent up to nxt and has not arrived gaps that are lost. Where una itself is
// said to have arrived and is not acknowledged the peer has dropped what it had (RFC 2018, section
// 8): then nothing that it has said counts.
func (b *scoreboard) all(nxt Seq, now time.Duration) {
	if b.high != b.una && (len(b.gaps) == 0 || b.gaps[0].start != b.una) {
		b.high, b.open, b.gaps = b.una, 0, nil
	}
	if b.high.before(nxt) {
		b.gaps = append(b.gaps, gap{start: b.high, end: nxt, since: now})
		b.open += int(nxt - b.high)
		b.high = nxt
	}
	for i := range b.gaps {
		b.gaps[i].state = lost
	}
	b.lost, b.resent = b.open, 0
}

// cut makes the first n octets of gap i a gap of their own.
func (b *scoreboard) cut(i, n int) {
	if b.gaps[i].len() <= n {
		return
	}
	rest := b.gaps[i]
	b.gaps[i].end = rest.start + Seq(n)
	rest.start = b.gaps[i].end
	b.gaps = slices.Insert(b.gaps, i+1, rest)
}
