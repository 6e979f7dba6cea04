package load

import (
	"fmt"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
)

// An Op is the operation under load.
type Op string

const (
	Write Op = "write"
	Read  Op = "read"
	Send  Op = "send"
)

// Ops are all of them.
var Ops = []Op{Write, Read, Send}

const (
	// MinSize leaves room for the number that a ping-pong of Writes watches.
	MinSize  = 8
	MaxSize  = 64 << 20
	MaxDepth = 1024
	// maxMemory limits what the slots of one end may take.
	maxMemory = 1 << 30
)

// A Spec says what to measure.
type Spec struct {
	Op    Op
	Size  int // of a message in octets
	Depth int // requests outstanding
	// It ends after Time or, if that is not 0, after Messages.
	Time     time.Duration
	Messages int
	// Elsewhere says that the RNICs are other processes: whoever waits then leaves the processor to
	// processes, not to goroutines.
	Elsewhere bool
}

// Check says what is wrong with s, if anything.
func (s Spec) Check() error {
	switch {
	case s.Op != Write && s.Op != Read && s.Op != Send:
		return fmt.Errorf("op %q: want write, read or send", s.Op)
	case s.Size < MinSize || s.Size > MaxSize || s.Size%8 != 0:
		return fmt.Errorf("size %d: want a multiple of 8 from %d to %d", s.Size, MinSize, MaxSize)
	case s.Depth < 1 || s.Depth > MaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", s.Depth, MaxDepth)
	case s.Depth*s.Size > maxMemory/2:
		return fmt.Errorf("size %d and depth %d: want a product of at most %d", s.Size, s.Depth, maxMemory/2)
	case s.Time <= 0 && s.Messages <= 0:
		return fmt.Errorf("neither a time nor a number of messages")
	}
	return nil
}

// PingPong says whether messages go in both directions in turn.
func (s Spec) PingPong() bool { return s.Depth == 1 && s.Op != Read }

// A Result is what a Spec has come to.
type Result struct {
	Messages uint64 // of both directions
	Elapsed  time.Duration
	Times    *hist.Hist
}

// BitsPerSecond counts the octets of the messages, no headers.
func (r Result) BitsPerSecond(size int) float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Messages) * float64(size) * 8 / r.Elapsed.Seconds()
}
