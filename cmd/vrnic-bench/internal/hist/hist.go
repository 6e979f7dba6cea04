// Package hist counts durations in buckets of constant relative width, without allocating.
package hist

import (
	"math/bits"
	"time"
)

// Each power of two is divided into 1<<subBits buckets: a value comes back at most 1/64 too high.
const (
	subBits = 6
	subs    = 1 << subBits
	buckets = (64 - subBits + 1) * subs
)

// A Hist is a histogram of durations; its zero value is empty. One goroutine uses it.
type Hist struct {
	count  [buckets]uint64
	n      uint64
	lo, hi time.Duration
}

// Add counts d; below 0 counts as 0.
func (h *Hist) Add(d time.Duration) {
	d = max(d, 0)
	if h.n == 0 || d < h.lo {
		h.lo = d
	}
	h.hi = max(h.hi, d)
	h.n++
	h.count[bucket(uint64(d))]++
}

func bucket(v uint64) int {
	if v < subs {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - subBits
	return (shift+1)*subs + int(v>>shift) - subs
}

// upper is the highest value of bucket i.
func upper(i int) uint64 {
	if i < subs {
		return uint64(i)
	}
	shift := i/subs - 1
	return uint64(i%subs+subs+1)<<shift - 1
}

// Count is how many were added.
func (h *Hist) Count() uint64 { return h.n }

// Min and Max are exact.
func (h *Hist) Min() time.Duration { return h.lo }
func (h *Hist) Max() time.Duration { return h.hi }

// Quantile returns a duration that a share q (0 to 1) of those added does not exceed; 0 if none was added.
func (h *Hist) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	want := max(uint64(q*float64(h.n)+0.5), 1)
	var seen uint64
	for i, c := range h.count {
		if seen += c; seen >= want {
			return min(time.Duration(upper(i)), h.hi)
		}
	}
	return h.hi
}
