package vnic

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/vnic/internal/ah"
)

// A Config describes a Device. Name and at least one address are needed.
type Config struct {
	Name  string
	MAC   [6]byte
	MTU   int // octets of an IP packet; 0: 1500
	Addrs []netip.Prefix

	// Network reaches other devices; nil: only QPs of this device reach each other.
	Network Network
	// Route says which of Addrs a connection to remote starts from; an error wraps a
	// syscall.Errno. nil: the address of the longest prefix in Addrs that holds remote.
	Route func(remote netip.Addr) (local netip.Addr, err error)

	Limits   Limits   // of each context that asks for no other; zero fields: DefaultLimits
	Timeouts Timeouts // zero fields: DefaultTimeouts
	// MaxPending bounds the connection requests that are half open or unanswered, of all
	// listeners together; 0: 1024. MaxPendingPerPeer bounds those of one peer, and, at
	// 64 if it is more, the SCTP associations that it has set up; 0: 256. A peer is an IPv4 address,
	// an IPv6 network of 64 bits, or a context of this device.
	MaxPending, MaxPendingPerPeer int
	// MaxHalfOpen and MaxHalfOpenPerPeer bound those of them of which no complete MPA Request has
	// come; 0: 512 and 128.
	MaxHalfOpen, MaxHalfOpenPerPeer int
	// MaxConnsPerPeer bounds the connections that one peer has asked for, requests included; 0: 4096.
	MaxConnsPerPeer int
	// StrictCQ refuses a QP whose queues, with all others that complete there, could fill a CQ beyond
	// its depth: for programs whose peers do not trust each other and share a CQ (RFC 5042, section
	// 6.4.3.2).
	StrictCQ bool
	// HalfClose has the two halves of a connection over the network end apart (RFC 5041, section
	// 6.2.1): behind the peer's FIN what is posted still goes out, for Timeouts.Drain at most, and
	// behind our own, which Disconnect sends when all is out, the peer's messages are still
	// taken until it closes, for Timeouts.Close at most. Without it both halves end together.
	HalfClose bool
	// RoCE makes it a device of RoCEv2, whose queue pairs speak InfiniBand's transport over UDP: they
	// are connected by QP.Modify, begin in Reset, and may be of any type. Without it the device
	// speaks iWARP.
	RoCE bool
	// DCQCN has connected queue pairs of a RoCE device mark their packets as those of a sender that
	// takes note of congestion, tell their peers of packets that come marked (CNP), and slow down when
	// their peer tells of some. Without it CNPs are ignored, and none are sent: docs/decisions.md#R2.
	DCQCN bool
	// Beside are the RoCE devices, this one among them, whose QPs reach each other without packets
	// where that makes no difference: docs/decisions.md#R15. nil: this one alone.
	Beside *Beside
	// ForceWire sends also what stays on this device, or is between it and those beside it, through
	// the Network.
	ForceWire bool
	// Adverse has the device do what the standards allow and others do not do: reliable connections
	// of RoCE wait as long as they may before they send again what is not answered, and longer than
	// they must what found no receive (roce.Config.LastMoment), and queue pairs of iWARP have numbers
	// in no order, as those of RoCE have in any case.
	Adverse bool
	// OnCopied is shown what a queue pair of an iWARP device sends to another one there as a DDP
	// segment through memory, while WatchCopies has it be. It must not wait, nor keep the segment.
	// nil: nobody looks.
	OnCopied func(from, to netip.AddrPort, segment []byte)
	Log      *slog.Logger // nil: none
}

// Limits are what one context may have. A field of 0 asks for the default.
type Limits struct {
	PD, MR, CQ, QP, CMID int
	SRQ                  int
	Pending              int // connection requests half open or unanswered
	MW                   int // memory windows
	AH                   int // address handles, of a RoCE device; at most 65536
	Depth                int // work requests in a queue
	CQDepth              int // completions in a CQ
	SGE                  int
	Inline               int // octets
	IRD, ORD             int
	MRLen, MRTotal       uint64 // octets of one MR; of all
}

// DefaultLimits holds the defaults of a context.
func DefaultLimits() Limits {
	return Limits{
		PD: 16384, MR: 1 << 18, MW: 1 << 18, CQ: 32768, QP: 16384, CMID: 65536, SRQ: 4096, Pending: 512,
		Depth: 32768, CQDepth: 1 << 19, SGE: 16, Inline: 512, IRD: 128, ORD: 128,
		MRLen: 1 << 40, MRTotal: 1 << 46, AH: 32768,
	}
}

func (l Limits) or(d Limits) Limits {
	or(&l.PD, d.PD)
	or(&l.MR, d.MR)
	or(&l.MW, d.MW)
	or(&l.AH, d.AH)
	or(&l.CQ, d.CQ)
	or(&l.QP, d.QP)
	or(&l.CMID, d.CMID)
	or(&l.SRQ, d.SRQ)
	or(&l.Pending, d.Pending)
	or(&l.Depth, d.Depth)
	or(&l.CQDepth, d.CQDepth)
	or(&l.SGE, d.SGE)
	or(&l.Inline, d.Inline)
	or(&l.IRD, d.IRD)
	or(&l.ORD, d.ORD)
	or(&l.MRLen, d.MRLen)
	or(&l.MRTotal, d.MRTotal)
	l.AH = min(l.AH, ah.Max)
	l.IRD, l.ORD = min(l.IRD, maxReads), min(l.ORD, maxReads)
	return l
}

func or[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Timeouts of a device. A field of 0 asks for the default, one below 0 switches it off.
type Timeouts struct {
	// for the transport to connect: TCP, or an SCTP association if there is none
	Connect    time.Duration
	MPARequest time.Duration // from a TCP connection to a complete MPA Request
	// from our MPA Request to a complete Reply; over SCTP, from our Initiate to the answer
	MPAReply    time.Duration
	ReceiveHold time.Duration // a Send waits this long for a receive to be posted
	Drain       time.Duration // a graceful disconnect waits this long for what was posted
	Close       time.Duration // and then for the peer's FIN, or the end of its session over SCTP
	Terminate   time.Duration // from a Terminate of RDMAP to that
	// a connection on which nothing moves for so long is ended; off by default
	Idle  time.Duration
	Nudge time.Duration // an initiator reminds a peer that has been silent this long since the start
	// a connection, or request, that does not get on delays later ones from or to the same address
	// this long
	Turn time.Duration
}

// DefaultTimeouts are siw's for the start-up (docs/decisions.md#M16), and ours.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		Connect: 10 * time.Second, MPARequest: 5 * time.Second, MPAReply: 10 * time.Second,
		ReceiveHold: 5 * time.Second,
		Drain:       5 * time.Second, Close: 5 * time.Second, Terminate: time.Second, Idle: -1,
		Nudge: 100 * time.Millisecond,
		Turn:  100 * time.Millisecond,
	}
}

func (t Timeouts) or(d Timeouts) Timeouts {
	or(&t.Connect, d.Connect)
	or(&t.MPARequest, d.MPARequest)
	or(&t.MPAReply, d.MPAReply)
	or(&t.ReceiveHold, d.ReceiveHold)
	or(&t.Drain, d.Drain)
	or(&t.Close, d.Close)
	or(&t.Terminate, d.Terminate)
	or(&t.Idle, d.Idle)
	or(&t.Turn, d.Turn)
	or(&t.Nudge, d.Nudge)
	return t
}

const (
	maxReads       = 128  // what an IRD or ORD may be
	defaultPending = 1024 // of all listeners of a device

	defaultPeerPending  = 256
	defaultHalfOpen     = 512
	defaultPeerHalfOpen = 128
	defaultPeerConns    = 4096

	blockingAtOnce = 8 // goroutines of a context that may touch memory that can block
)
