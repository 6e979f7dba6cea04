package sctp

import (
	"math/bits"
	"time"
)

// A SACK says of every chunk that is outstanding whether it has arrived, and there may be thousands
// of chunks and of SACKs. So chunks are looked at one by one only where something has changed; the
// rest is found by sets of which a word has 64.

// A chunkSet is a set of the chunks that have TSNs, or several of them.
type chunkSet uint8

const (
	inFlight chunkSet = 1 << iota
	gapAcked          // by a gap ack block: outChunk.acked
	doubted           // of these, those that the last SACK, which may be an old one, has not told of
)

// chunkSets are the sets. The bit of a TSN is where its low bits say; the words of all sets for the
// same chunks are side by side.
type chunkSets struct{ words [][3]uint64 }

// fit makes room for n chunks from TSN first on.
func (s *chunkSets) fit(first TSN, n int) {
	old := len(s.words) * 64
	if n <= old {
		return
	}
	words := make([][3]uint64, max(4, 2*len(s.words)))
	for i := range old {
		t := first + TSN(i)
		from, mask := s.word(t)
		for k, w := range from {
			if w&mask != 0 {
				words[int(t)>>6&(len(words)-1)][k] |= mask
			}
		}
	}
	s.words = words
}

func (s *chunkSets) word(t TSN) (w *[3]uint64, mask uint64) {
	return &s.words[int(t)>>6&(len(s.words)-1)], 1 << (t & 63)
}

// add puts a chunk into sets, remove takes it out.
func (s *chunkSets) add(to chunkSet, t TSN) {
	w, mask := s.word(t)
	for k := range w {
		if to>>k&1 != 0 {
			w[k] |= mask
		}
	}
}

func (s *chunkSets) remove(from chunkSet, t TSN) {
	w, mask := s.word(t)
	for k := range w {
		if from>>k&1 != 0 {
			w[k] &^= mask
		}
	}
}

// The places of the sets in a word.
const (
	flightBits = iota
	ackedBits
	doubtedBits
)

// chunkBits are some of the chunks of a word.
type chunkBits struct {
	first TSN // of bit 0
	bits  uint64
}

// next takes one out, the lowest.
func (b *chunkBits) next() (t TSN, ok bool) {
	if b.bits == 0 {
		return 0, false
	}
	i := bits.TrailingZeros64(b.bits)
	b.bits &= b.bits - 1
	return b.first + TSN(i), true
}

// part is the first word of n chunks from TSN t on: those of them that are in it, and how many.
func (s *chunkSets) part(t TSN, n int) (w *[3]uint64, which chunkBits, k int) {
	at := int(t & 63)
	k = min(64-at, n)
	w, _ = s.word(t)
	return w, chunkBits{t - TSN(at), ^uint64(0) >> (64 - k) << at}, k
}

// A gapWalk goes over what is outstanding by the gap ack blocks of a SACK.
type gapWalk struct {
	a   *Association
	now time.Time

	advanced bool // the SACK says something new
	lacking  int  // chunks that an earlier one has acknowledged, and it does not
	reach    int  // chunks up to the end of the last block

	seen    int  // chunks that were looked at for path.waits
	allWait bool // every path with chunks in flight does
}

// ackGaps goes over what is outstanding.
//
// What an earlier SACK has acknowledged and this one does not may have been dropped by the peer:
// "consider the corresponding DATA that might be possibly missing", section 6.2.1 D iii. Or this
// SACK has been overtaken by the earlier one. A SACK that says something new has not been; what
// any other does not say is doubted, until one that says it, or T3: docs/decisions.md#P6.
func (a *Association) ackGaps(now time.Time, s sack, advanced bool) {
	for _, p := range a.paths {
		p.doubts = false
	}
	if s.blocks() == 0 && a.gapAcked == 0 {
		return
	}
	w := gapWalk{a: a, now: now, advanced: advanced}
	all := a.chunks.len()
	at := 0 // chunks that were looked at
	// Blocks are in order and apart; of those that are not, what lies behind counts for nothing.
	for i := 0; i < s.blocks() && at < all; i++ {
		start, end := s.block(i)
		if int(end) <= at {
			continue
		}
		from, to := min(max(int(start)-1, at), all), min(int(end), all)
		w.missing(at, min(from, to))
		if from < to {
			w.has(from, to)
		}
		at = to
	}
	if a.gapAcked > 0 {
		w.missing(at, all)
	}
	if w.lacking > 0 && w.advanced {
		a.takeBack(w.reach, nil)
	}
}

// has is told that chunks from from up to to have arrived.
func (w *gapWalk) has(from, to int) {
	a := w.a
	first := a.ackTSN + 1
	w.reach = to - 1
	for at := from; at < to; {
		word, which, k := a.sets.part(first+TSN(at), to-at)
		word[doubtedBits] &^= which.bits
		which.bits &^= word[ackedBits]
		word[ackedBits] |= which.bits
		for t, ok := which.next(); ok; t, ok = which.next() {
			w.waits(int(t - first))
			c := a.sentChunk(t)
			a.arrived(w.now, c, t)
			c.acked, w.advanced = true, true
			a.gapAcked++
			if c.lead {
				a.gapPackets++
			}
		}
		at += k
	}
}

// missing is told that nothing was said of chunks from from up to to.
func (w *gapWalk) missing(from, to int) {
	a := w.a
	for at := from; at < to; {
		word, which, k := a.sets.part(a.ackTSN+1+TSN(at), to-at)
		which.bits &= word[ackedBits]
		word[doubtedBits] |= which.bits
		w.lacking += bits.OnesCount64(which.bits)
		for t, ok := which.next(); ok; t, ok = which.next() {
			p := a.sentChunk(t).path
			p.doubts = true
			if p.t3.IsZero() {
				p.t3 = w.now.Add(p.rto)
			}
			if len(a.paths) == 1 {
				break // all are the same
			}
		}
		at += k
	}
}

// waits notes which paths have chunks in flight before chunk i.
func (w *gapWalk) waits(i int) {
	a := w.a
	for w.seen < i && !w.allWait {
		word, which, k := a.sets.part(a.ackTSN+1+TSN(w.seen), i-w.seen)
		which.bits &= word[flightBits]
		for t, ok := which.next(); ok && !w.allWait; t, ok = which.next() {
			if p := a.sentChunk(t).path; !p.waits {
				p.waits, w.allWait = true, true
				for _, q := range a.paths {
					w.allWait = w.allWait && (q.waits || q.listed == 0)
				}
			}
		}
		w.seen += k
	}
}

// takeBack has those of the first n chunks that were said to have arrived, and are doubted, sent
// again: on path p, or on all.
func (a *Association) takeBack(n int, p *path) {
	for at := 0; at < n; {
		word, which, k := a.sets.part(a.ackTSN+1+TSN(at), n-at)
		which.bits &= word[doubtedBits]
		for t, ok := which.next(); ok; t, ok = which.next() {
			if c := a.sentChunk(t); p == nil || c.path == p {
				a.uncount(c)
				c.acked = false
				a.sets.remove(gapAcked|doubted, t)
				a.markAgain(c, t)
			}
		}
		at += k
	}
}
