package load

import (
	"fmt"
	"slices"
	"time"
)

// An Op is the operation under load.
type Op string

const (
	Write       Op = "write"
	Read        Op = "read"
	Send        Op = "send"
	WriteImm    Op = "write-imm" // a Write with RFC 7306 Immediate Data behind it
	FetchAdd    Op = "fetch-add"
	CompareSwap Op = "cmp-swap"
)

// Ops are all of them.
var Ops = []Op{Write, Read, Send, WriteImm, FetchAdd, CompareSwap}

// Atomic says whether op works on 8 octets at the peer.
func (op Op) Atomic() bool { return op == FetchAdd || op == CompareSwap }

// twoWay says whether the answer is a part of the operation, and the peer's program none.
func (op Op) twoWay() bool { return op == Read || op.Atomic() }

// extension says whether op is one of RFC 7306, which both programs have to agree on.
func (op Op) extension() bool { return op == WriteImm || op.Atomic() }

// A Pattern says in which order messages go.
type Pattern string

const (
	PingPong Pattern = "pingpong" // there and back, one at a time
	Stream   Pattern = "stream"   // one behind the other, Depth outstanding
)

// Patterns are both of them.
var Patterns = []Pattern{PingPong, Stream}

// PatternFor is what op is measured by if nobody says.
func PatternFor(op Op, depth int) Pattern {
	if depth == 1 && !op.twoWay() {
		return PingPong
	}
	return Stream
}

// A Wait says how an end waits for completions.
type Wait string

const (
	Adaptive Wait = "adaptive" // looks a few times, lets others run, and at last sleeps
	Poll     Wait = "poll"     // looks, lets others run, and never sleeps
	Event    Wait = "event"    // sleeps at once
)

// Waits are all of them.
var Waits = []Wait{Adaptive, Poll, Event}

const (
	// MinSize leaves room for the number that a ping-pong of Writes watches, and is an atomic's.
	MinSize  = 8
	MaxSize  = 64 << 20
	MaxDepth = 1024
	MaxQPs   = 10000
	// maxMemory limits what the slots of one end may take, maxSlots how many there are: the CQ of one
	// end has room for all of them.
	maxMemory = 1 << 30
	maxSlots  = 30000
)

// A Spec says what to measure.
type Spec struct {
	Op      Op
	Size    int // of a message in octets
	Depth   int // requests outstanding on each QP
	QPs     int
	Pattern Pattern
	Bidir   bool // of a stream: B sends as A does
	Wait    Wait
	RoCE    bool // RoCEv2, not iWARP
	SCTP    bool // not TCP
	NoCRC   bool // not asked for
	// Elsewhere says that the RNICs are other processes: whoever waits then leaves the processor to
	// processes, not to goroutines.
	Elsewhere bool
}

// Check says what is wrong with s, if anything.
func (s Spec) Check() error {
	switch {
	case !slices.Contains(Ops, s.Op):
		return fmt.Errorf("op %q: want one of %v", s.Op, Ops)
	case !slices.Contains(Waits, s.Wait):
		return fmt.Errorf("wait %q: want one of %v", s.Wait, Waits)
	case !slices.Contains(Patterns, s.Pattern):
		return fmt.Errorf("pattern %q: want one of %v", s.Pattern, Patterns)
	case s.RoCE && s.SCTP:
		return fmt.Errorf("RoCE and SCTP: RoCE goes over UDP, and iWARP over TCP or SCTP; take one")
	case s.RoCE && s.NoCRC:
		return fmt.Errorf("RoCE without CRCs: its ICRC cannot be left out")
	case s.Op.Atomic() && s.Size != MinSize:
		return fmt.Errorf("%s of %d octets: an atomic has %d", s.Op, s.Size, MinSize)
	case s.Size < MinSize || s.Size > MaxSize || s.Size%8 != 0:
		return fmt.Errorf("size %d: want a multiple of 8 from %d to %d", s.Size, MinSize, MaxSize)
	case s.Depth < 1 || s.Depth > MaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", s.Depth, MaxDepth)
	case s.QPs < 1 || s.QPs > MaxQPs:
		return fmt.Errorf("%d QPs: want 1 to %d", s.QPs, MaxQPs)
	case s.QPs*s.Depth > maxSlots:
		return fmt.Errorf(
			"%d QPs of depth %d: want a product of at most %d, what one completion queue holds", s.QPs,
			s.Depth, maxSlots)
	case s.memory() > maxMemory:
		return fmt.Errorf(
			"size %d, depth %d, %d QPs: each end would take %d octets of memory, at most %d", s.Size,
			s.Depth, s.QPs, s.memory(), maxMemory)
	case s.Pattern == PingPong && s.Op.twoWay():
		return fmt.Errorf("pattern pingpong: a %s has its answer in itself; take stream, at depth 1 "+
			"its time is that of the round trip", s.Op)
	case s.Pattern == PingPong && s.Depth != 1:
		return fmt.Errorf("pattern pingpong, depth %d: one message is on its way in a ping-pong; take "+
			"depth 1 or stream", s.Depth)
	case s.Pattern == PingPong && s.Bidir:
		return fmt.Errorf("bidirectional: a ping-pong goes both ways already; take a depth above 1, or " +
			"the pattern stream")
	case s.Pattern == PingPong && s.Op == Write && s.Wait == Event:
		return fmt.Errorf("wait event: a Write says nothing to the program that it goes to, which can " +
			"only look; take write-imm or send, or the pattern stream")
	}
	return nil
}

// memory is what the slots of one end take.
func (s Spec) memory() int {
	l := layoutOf(s)
	return s.QPs * l.total()
}

// An Amount says when a measurement ends: after Time or, if that is not 0, after so many Messages
// of each end that sends; those of a ping-pong count in both directions.
type Amount struct {
	Time     time.Duration
	Messages int
	// KeepPools has processes that only have an end collect no garbage meanwhile.
	KeepPools bool
}

// Check says what is wrong with a, if anything.
func (a Amount) Check() error {
	if a.Time <= 0 && a.Messages <= 0 {
		return fmt.Errorf("neither a time nor a number of messages")
	}
	return nil
}
