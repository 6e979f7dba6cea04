package load

import (
	"context"
	"net/netip"
	"time"
)

// An End is one side of a run. One goroutine uses it, but for Abort. What fails ends its
// connections, so that the other side, too, fails rather than waits.
type End interface {
	// Listen and Accept, or Connect, join it with the other side's QPs.
	Listen(addr netip.Addr) (netip.AddrPort, error)
	Accept(ctx context.Context) error
	Connect(ctx context.Context, remote netip.AddrPort) error
	// Prepare makes the content of the slots that of seed, and clears what is written to; seed 0
	// clears all.
	Prepare(seed uint64) error
	// Move and Run are for both sides at the same time. Move moves each slot once and compares what
	// completions tell of; Check then compares what is in memory.
	Move(ctx context.Context) error
	Check() error
	Run(ctx context.Context, a Amount) (Result, error)
	Close()
}

// A Role is which of the two ends one is.
type Role string

const (
	A Role = "A" // connects, and sends first
	B Role = "B" // listens
)

// layout says where things are in the memory of one QP: sources, then targets.
type layout struct {
	size, sources, targets int
	recvs                  int  // receives that are posted
	recvTargets            bool // which have the targets as buffers
}

func layoutOf(s Spec) layout {
	l := layout{size: s.Size, sources: s.Depth, targets: s.Depth, recvs: 2} // notices
	switch s.Op {
	case Send:
		// One lap can be under way while the one before is posted again; one more for the notice.
		l.recvs = 2*s.Depth + 1
		l.targets, l.recvTargets = l.recvs, true
	case WriteImm:
		l.recvs = 2*s.Depth + 1
	}
	return l
}

func (l layout) source(i int) int { return i * l.size }
func (l layout) target(i int) int { return (l.sources + i) * l.size }
func (l layout) total() int       { return (l.sources + l.targets) * l.size }

// A recorder is what a run records into.
type recorder struct {
	amount Amount
	start  time.Time
	r      *Result
	size   int
}

// add counts n messages, the time of one of them.
func (c *recorder) add(n int, d time.Duration) {
	c.r.Times.Add(d)
	c.r.Messages += uint64(n)
	c.r.Octets += uint64(n * c.size)
}

// over says whether the amount is reached.
func (c *recorder) over(now time.Time) bool {
	if c.amount.Messages > 0 {
		return c.r.Messages >= uint64(c.amount.Messages)
	}
	return now.Sub(c.start) >= c.amount.Time
}
