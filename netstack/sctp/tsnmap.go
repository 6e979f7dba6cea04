package sctp

import "math/bits"

// maxGap is how far from the cumulative TSN a gap ack block can speak of a TSN.
const maxGap = 1<<16 - 1

// A tsnMap is the set of TSNs that have come: all up to cum, and above it those whose bit is set.
// The bit of a TSN is where its low bits say, so nothing moves when cum does.
type tsnMap struct {
	cum   TSN
	high  TSN // highest that has come; cum if none is above it
	above int // how many above cum have come
	bits  []uint64
}

func (m *tsnMap) init(cum TSN) { *m = tsnMap{cum: cum, high: cum, bits: m.bits}; clear(m.bits) }

func (m *tsnMap) size() int { return len(m.bits) * 64 }

func (m *tsnMap) bit(t TSN) (word *uint64, mask uint64) {
	i := int(t) & (m.size() - 1)
	return &m.bits[i>>6], 1 << (i & 63)
}

// reaches says whether t is near enough to cum to be marked.
func (m *tsnMap) reaches(t TSN) bool { return uint32(t-m.cum) <= maxGap || !m.cum.before(t) }

// has says whether t has come.
func (m *tsnMap) has(t TSN) bool {
	if !m.cum.before(t) {
		return true
	}
	if m.high.before(t) {
		return false
	}
	w, b := m.bit(t)
	return *w&b != 0
}

// mark adds t, which has not come and is within reach.
func (m *tsnMap) mark(t TSN) {
	if t == m.cum+1 && m.above == 0 { // the usual case
		m.cum, m.high = t, t
		return
	}
	if n := int(uint32(t - m.cum)); n >= m.size() {
		m.grow(n)
	}
	w, b := m.bit(t)
	*w |= b
	m.above++
	if m.high.before(t) {
		m.high = t
	}
	for m.above > 0 {
		w, b := m.bit(m.cum + 1)
		if *w&b == 0 {
			return
		}
		*w &^= b
		m.cum++
		m.above--
	}
}

// grow makes room for TSNs up to n above cum.
func (m *tsnMap) grow(n int) {
	size := max(256, m.size())
	for size <= n {
		size *= 2
	}
	old := *m
	m.bits = make([]uint64, size/64)
	for t := old.cum + 1; old.above > 0 && !old.high.before(t); t++ {
		if w, b := old.bit(t); *w&b != 0 {
			w, b = m.bit(t)
			*w |= b
		}
	}
}

// missing is how many TSNs below the highest have not come.
func (m *tsnMap) missing() int { return int(uint32(m.high-m.cum)) - m.above }

// gaps appends the gap ack blocks, from the lowest on, until gs has max of them.
func (m *tsnMap) gaps(gs []gap, max int) []gap {
	if m.above == 0 {
		return gs
	}
	end := int(uint32(m.high - m.cum))
	for off := 1; len(gs) < max; {
		start := m.next(off, end, true)
		if start > end {
			break
		}
		off = m.next(start, end, false)
		gs = append(gs, gap{uint16(start), uint16(off - 1)})
	}
	return gs
}

// next finds the first offset from off on whose bit is set, or is not; end+1 if there is none up to
// end.
func (m *tsnMap) next(off, end int, set bool) int {
	for off <= end {
		i := int(uint32(m.cum)+uint32(off)) & (m.size() - 1)
		w := m.bits[i>>6]
		if !set {
			w = ^w
		}
		if w >>= i & 63; w != 0 {
			return min(off+bits.TrailingZeros64(w), end+1)
		}
		off += 64 - i&63
	}
	return end + 1
}
