package recovery

import (
	"container/heap"
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

	prev, next *gap // in a queue
	at         int  // in missing
}

func (g *gap) len() int { return int(g.end - g.start) }

// A queue has gaps in the order in which their time comes.
type queue struct{ first, last *gap }

// insert puts g behind another gap; nil: at the front.
func (q *queue) insert(behind, g *gap) {
	g.prev, g.next = behind, q.first
	if behind != nil {
		g.next = behind.next
		behind.next = g
	} else {
		q.first = g
	}
	if g.next != nil {
		g.next.prev = g
	} else {
		q.last = g
	}
}

func (q *queue) remove(g *gap) {
	if g.prev != nil {
		g.prev.next = g.next
	} else {
		q.first = g.next
	}
	if g.next != nil {
		g.next.prev = g.prev
	} else {
		q.last = g.prev
	}
	g.prev, g.next = nil, nil
}

// A missing has gaps that are lost, the lowest first.
type missing []*gap

func (m missing) Len() int           { return len(m) }
func (m missing) Less(i, j int) bool { return m[i].start.before(m[j].start) }
func (m missing) Swap(i, j int) {
	m[i], m[j] = m[j], m[i]
	m[i].at, m[j].at = i, j
}
func (m *missing) Push(x any) {
	g := x.(*gap)
	g.at = len(*m)
	*m = append(*m, g)
}
func (m *missing) Pop() any {
	n := len(*m) - 1
	g := (*m)[n]
	(*m)[n] = nil
	*m = (*m)[:n]
	return g
}

// A scoreboard is what a peer has acknowledged. Octets from una to high have arrived, but for the
// gaps. What an ACK and a retransmission cost hardly hangs on how many gaps there are: the peer and
// the network decide about that.
type scoreboard struct {
	una, high Seq
	gaps      []*gap // in their order, not empty, below high
	free      *gap   // by next
	open      int    // octets in gaps
	lost      int    // octets in those that are lost
	resent    int    // octets in those that are resent

	// Each gap is in one of these.
	late    queue   // those that may be late: waiting, or overtaken
	again   queue   // those that are resent, and not overtaken
	missing missing // those that are lost
}

// sacked is how many octets have arrived beyond una.
func (b *scoreboard) sacked() int { return int(b.high-b.una) - b.open }

// A filled is a part of a gap that has arrived.
type filled func(g *gap, octets int)

// queue is where g is, or nil: in missing.
func (b *scoreboard) queue(g *gap) *queue {
	switch {
	case g.state == lost:
		return nil
	case g.state == resent && !g.overtaken:
		return &b.again
	default:
		return &b.late
	}
}

// join puts g where it belongs by its state: to the end, or behind another gap if that is not nil.
func (b *scoreboard) join(g, behind *gap) {
	q := b.queue(g)
	if q == nil {
		heap.Push(&b.missing, g)
		return
	}
	if behind == nil {
		behind = q.last
	}
	q.insert(behind, g)
}

// leave is the reverse.
func (b *scoreboard) leave(g *gap) {
	if q := b.queue(g); q != nil {
		q.remove(g)
	} else {
		heap.Remove(&b.missing, g.at)
	}
}

// count counts n octets in a state.
func (b *scoreboard) count(s gapState, n int) {
	switch s {
	case lost:
		b.lost += n
	case resent:
		b.resent += n
	case waiting:
	}
}

// change gives g another state.
func (b *scoreboard) change(g *gap, to gapState, overtaken bool) {
	b.leave(g)
	b.count(g.state, -g.len())
	g.state, g.overtaken = to, overtaken
	b.count(to, g.len())
	b.join(g, nil)
}

// add puts a gap like g in place i.
func (b *scoreboard) add(i int, g gap, behind *gap) {
	n := b.free
	if n == nil {
		n = new(gap)
	} else {
		b.free = n.next
	}
	*n = g
	n.prev, n.next = nil, nil
	b.gaps = slices.Insert(b.gaps, i, n)
	b.join(n, behind)
}

// forget takes g, which is not in gaps any more, out of where it is.
func (b *scoreboard) forget(g *gap) {
	b.leave(g)
	g.next = b.free
	b.free = g
}

// find is the place of the first gap that ends behind s.
func (b *scoreboard) find(s Seq) int {
	i, _ := slices.BinarySearchFunc(b.gaps, s, func(g *gap, s Seq) int {
		if s.before(g.end) {
			return 1
		}
		return -1
	})
	return i
}

// advance has octets up to to acknowledged.
func (b *scoreboard) advance(to Seq, f filled) {
	n := 0
	for n < len(b.gaps) && !to.before(b.gaps[n].end) {
		g := b.gaps[n]
		b.gone(g, g.len(), f)
		b.forget(g)
		n++
	}
	b.gaps = slices.Delete(b.gaps, 0, n)
	if len(b.gaps) > 0 && b.gaps[0].start.before(to) {
		g := b.gaps[0]
		b.gone(g, int(to-g.start), f)
		g.start = to
	}
	b.una, b.high = to, later(b.high, to)
	if len(b.gaps) == 0 && cap(b.gaps) > 64 {
		b.gaps, b.missing, b.free = nil, nil, nil // a bad time is over
	}
}

// gone counts n octets of g as arrived.
func (b *scoreboard) gone(g *gap, n int, f filled) {
	f(g, n)
	b.open -= n
	b.count(g.state, -n)
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
			b.open += int(k.Start - b.high)
			b.add(len(b.gaps), gap{start: b.high, end: k.Start, since: now}, nil)
		}
		b.high = k.End
		return int(k.End - k.Start)
	}
	if b.high.before(k.End) {
		n += int(k.End - b.high)
		b.high = k.End
	}
	i := b.find(k.Start)
	if i < len(b.gaps) && b.gaps[i].start.before(k.Start) {
		g, end := b.gaps[i], k.End
		if g.end.before(end) {
			end = g.end
		}
		b.gone(g, int(end-k.Start), f)
		n += int(end - k.Start)
		rest := *g
		g.end = k.Start
		i++
		if rest.start = end; end != rest.end {
			b.add(i, rest, g)
			return n
		}
	}
	first := i
	for ; i < len(b.gaps) && !k.End.before(b.gaps[i].end); i++ {
		g := b.gaps[i]
		b.gone(g, g.len(), f)
		n += g.len()
		b.forget(g)
	}
	b.gaps = slices.Delete(b.gaps, first, i)
	if first < len(b.gaps) && b.gaps[first].start.before(k.End) {
		g := b.gaps[first]
		b.gone(g, int(k.End-g.start), f)
		n += int(k.End - g.start)
		g.start = k.End
	}
	return n
}

// all makes what was sent up to nxt and has not arrived gaps that are lost. Where una itself is
// said to have arrived and is not acknowledged the peer has dropped what it had (RFC 2018, section
// 8): then nothing that it has said counts.
func (b *scoreboard) all(nxt Seq, now time.Duration) {
	if b.high != b.una && (len(b.gaps) == 0 || b.gaps[0].start != b.una) {
		*b = scoreboard{una: b.una, high: b.una}
	}
	if b.high.before(nxt) {
		b.open += int(nxt - b.high)
		b.add(len(b.gaps), gap{start: b.high, end: nxt, since: now}, nil)
		b.high = nxt
	}
	for _, g := range b.gaps {
		if g.state != lost {
			b.change(g, lost, false)
		}
	}
}

// cut makes the first n octets of g, which is lost, a gap of their own.
func (b *scoreboard) cut(g *gap, n int) {
	if g.len() <= n {
		return
	}
	rest := *g
	g.end = rest.start + Seq(n)
	rest.start = g.end
	b.add(b.find(g.start)+1, rest, nil)
}
