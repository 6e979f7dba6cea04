package load

import (
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
)

// A Result is what a measurement has come to.
type Result struct {
	Messages uint64 // of both directions
	Octets   uint64 // of their payload
	// Start is when the first end that sends began, End when the last one knew that all had arrived:
	// on the machine's monotonic clock, which all processes share.
	Start, End time.Duration
	Times      *hist.Hist
	// Allocs is how many objects were allocated by ends in other processes.
	Allocs uint64
}

// Elapsed is how long it took.
func (r Result) Elapsed() time.Duration { return r.End - r.Start }

// BitsPerSecond counts the octets of the messages, no headers.
func (r Result) BitsPerSecond() float64 {
	if r.Elapsed() <= 0 {
		return 0
	}
	return float64(r.Octets) * 8 / r.Elapsed().Seconds()
}

// Merge adds what another end, or another pair, has come to in the same time.
func (r *Result) Merge(o Result) {
	if o.Messages > 0 {
		if r.Messages == 0 || o.Start < r.Start {
			r.Start = o.Start
		}
		if r.Times == nil {
			r.Times = hist.New()
		}
		r.Times.Merge(o.Times)
	}
	r.End = max(r.End, o.End)
	r.Messages += o.Messages
	r.Octets += o.Octets
	r.Allocs += o.Allocs
}
