// Package hist counts durations in an HdrHistogram: every percentile to 0.1 %, without allocating.
package hist

import (
	"encoding/json"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// highest is the longest duration that has a bucket of its own; what is longer counts as that,
	// and only Max tells.
	highest = 2 * time.Minute
	figures = 3 // decimal figures that are kept of each value
)

// A Hist is a histogram of durations. One goroutine uses it.
type Hist struct {
	h      *hdrhistogram.Histogram
	sum    time.Duration
	lo, hi time.Duration
}

// New makes an empty one.
func New() *Hist { return &Hist{h: hdrhistogram.New(1, int64(highest), figures)} }

// Add counts d; below 0 counts as 0.
func (h *Hist) Add(d time.Duration) {
	d = max(d, 0)
	if h.Count() == 0 || d < h.lo {
		h.lo = d
	}
	h.hi = max(h.hi, d)
	h.sum += d
	if err := h.h.RecordValue(int64(min(d, highest))); err != nil {
		panic(err) // highest has a bucket
	}
}

// Merge adds what o has counted.
func (h *Hist) Merge(o *Hist) {
	if o.Count() == 0 {
		return
	}
	if h.Count() == 0 || o.lo < h.lo {
		h.lo = o.lo
	}
	h.hi = max(h.hi, o.hi)
	h.sum += o.sum
	if dropped := h.h.Merge(o.h); dropped != 0 {
		panic("hist: values without a bucket") // they are all made by New
	}
}

// Count is how many were added.
func (h *Hist) Count() uint64 { return uint64(h.h.TotalCount()) }

// Min, Max and Mean are exact; 0 if none was added.
func (h *Hist) Min() time.Duration { return h.lo }
func (h *Hist) Max() time.Duration { return h.hi }
func (h *Hist) Mean() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return h.sum / time.Duration(h.Count())
}

// Quantile returns a duration that a share q (0 to 1) of those added does not exceed; 0 if none was
// added.
func (h *Hist) Quantile(q float64) time.Duration {
	return max(min(time.Duration(h.h.ValueAtQuantile(q*100)), h.hi), h.lo)
}

// Print writes the percentiles in microseconds, in the text form that HdrHistogram's plotters read.
func (h *Hist) Print(w io.Writer) error {
	const ticksPerHalf = 5
	_, err := h.h.PercentilesPrint(w, ticksPerHalf, float64(time.Microsecond))
	return err
}

// wire is how a Hist goes from one process to another.
type wire struct {
	Counts      []byte // HdrHistogram's compressed form, version 2
	Sum, Lo, Hi time.Duration
}

// MarshalJSON implements json.Marshaler.
func (h *Hist) MarshalJSON() ([]byte, error) {
	counts, err := h.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, err
	}
	return json.Marshal(wire{counts, h.sum, h.lo, h.hi})
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Hist) UnmarshalJSON(b []byte) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	d, err := hdrhistogram.Decode(w.Counts)
	if err != nil {
		return err
	}
	*h = *New()
	h.h.Merge(d)
	h.sum, h.lo, h.hi = w.Sum, w.Lo, w.Hi
	return nil
}
