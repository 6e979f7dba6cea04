// Package link says how a queue pair and what joins it to its peer see each other: as a QP and as a
// Link. A transport is a package with a Link of its own; package vnic chooses in one place
// (connection.go), and linktest runs each through one list.
//
// Requests and receives are package wqe's: a Link takes, places and completes there.
package link

import (
	"errors"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// TurnOctets is a turn: how many octets a QP moves, in one step, before others that wait have
// theirs. StepOctets is what it moves in one go while nobody waits. Of messages either is
// wqe.StepMessages.
const (
	TurnOctets = 256 << 10
	StepOctets = 1 << 20
)

// A Link joins a connected QP to its peer. It is called by the QP's owner, but for Abandon and
// Prefetch. A Link embeds Basic for what it has no answer of its own to.
type Link interface {
	// Open begins: the QP has the link and is RTS.
	Open()
	// Step receives TurnOctets and sends as many, or more where they cannot be parted. It says how
	// many octets that were, and whether there may be more. What it finds out it tells the QP.
	Step() (moved int, more bool)
	// Idle reports that nothing is under way in either direction.
	Idle() bool
	// Expire is called when the deadline of QP.SetDeadline is over.
	Expire()
	// Terminate sends code to the peer behind what is being sent.
	Terminate(code iwarp.TermCode, err error)
	// Terminated reports that the Terminate has gone out.
	Terminated() bool
	// CloseWrite tells the peer that nothing more comes.
	CloseWrite()
	// Close and Abort give the connection back, and the peer comes to know: by Close behind what was
	// sent, if it was not told by CloseWrite, by Abort at once, and what was sent and has not got
	// there is dropped. Nothing of the link is called afterwards. Abort is also for a link that was
	// not opened.
	Close()
	Abort()
	// CloseWithin is Close, and Abort in d if the peer has not taken what was sent by then.
	CloseWithin(d time.Duration)

	Abilities
}

// Abilities are what some links can do and others cannot.
type Abilities interface {
	// HalfCloses reports that one direction can go on when the other has ended.
	HalfCloses() bool
	// Blocking reports that a Step may touch memory that can block, if the context has any.
	Blocking() bool
	// SendMapped sends what is posted without touching memory that can block; true: there is nothing
	// else to do now.
	SendMapped() bool
	// Yield is how many times StepOctets the QP's goroutine moves before it lets others run, if none
	// are known to wait.
	Yield() int
	// Delivered is told that a Send with Invalidate, which had to wait, was delivered.
	Delivered()
	// Abandon takes the connection from a QP whose owner does not come back, if its peer would wait
	// for that. Any goroutine may call it.
	Abandon()
	// Prefetch asks the caches for what a message needs, at both ends if it has both. Any goroutine
	// may call it.
	Prefetch()
	// Near is the QP at the other end, if it is one of this device and each request is done when it
	// is retired; nil: not, or not any more. Any goroutine may call it.
	Near() QP
	// ShowCopies has messages that are copied to the peer go there as segments, which QP.Copied is
	// shown, from now on.
	ShowCopies()
	// Movable reports whether MoveTo may do something. Any goroutine may call it.
	Movable() bool
	// MoveTo has a connection within the device, whose messages go through memory, go on over one of
	// TCP, whose ends are own and peers. done is closed when nobody sends there any more. nil: it does
	// not, and they remain the caller's, as they do if moved says no then. Any goroutine may call it.
	MoveTo(own, peers iwarp.Stream) (done <-chan struct{}, moved func() bool)
}

// Basic has the defaults of Abilities: a link whose halves end together, whose steps may touch any
// memory, and that lets others run after each StepOctets.
type Basic struct{}

func (Basic) HalfCloses() bool { return false }
func (Basic) Blocking() bool   { return true }
func (Basic) SendMapped() bool { return false }
func (Basic) Yield() int       { return 1 }
func (Basic) Delivered()       {}
func (Basic) Abandon()         {}
func (Basic) Prefetch()        {}
func (Basic) Near() QP         { return nil }
func (Basic) ShowCopies()      {}
func (Basic) Movable() bool    { return false }
func (Basic) MoveTo(_, _ iwarp.Stream) (done <-chan struct{}, moved func() bool) {
	return nil, nil
}

// NoStream is embedded by a Link of RoCE: packets have no stream to end, and nobody asks for it.
type NoStream struct{}

func (NoStream) Terminate(iwarp.TermCode, error) {}
func (NoStream) Terminated() bool                { return true }
func (NoStream) CloseWrite()                     {}
func (NoStream) Close()                          {}
func (NoStream) CloseWithin(time.Duration)       {}

// A QP is a queue pair as its Link sees it, beside its Requests. Its methods are for the QP's
// owner, but for Wake, Run and Front.
type QP interface {
	// Work is the QP's requests and receives.
	Work() *wqe.Requests
	State() rdma.QPState
	// Param is what was agreed on for the connection.
	Param() iwarp.Params
	// Tape records what is made for the connection now; nil: nobody wants that.
	Tape() *record.Tape

	// AwaitReceive says that a Send of the peer waits for a receive, GotReceive that it does no more.
	AwaitReceive()
	GotReceive()
	// PeerEnds says that the peer has ended its half behind a Send that waits for a receive.
	PeerEnds()
	// Leaving says that the connection is being ended in order: a Send that finds no receive is
	// dropped.
	Leaving() bool

	// EOF says that the peer sends nothing more; Ended reports that it was called.
	EOF()
	Ended() bool
	// Lost ends the connection: the link is no more.
	Lost(err error)
	// Fail ends the connection for a fault found on this side.
	Fail(e *iwarp.LocalError, by Origin)
	// PeerTerminated ends it after a Terminate of the peer. culprit is the request that it is about,
	// nil: it does not say.
	PeerTerminated(code iwarp.TermCode, culprit *wqe.Request)
	// Replace has the QP go on with l, which is opened then.
	Replace(l Link)

	// Carried says that a connection within the device goes on over TCP: as FPDUs with CRCs and
	// without markers if it is a wire, and else as was agreed on. Any goroutine may call it, with any
	// lock held, and again.
	Carried(local, remote netip.AddrPort, emss int, wire bool)
	// Parted says that Near is nil from now on. Any goroutine may call it, with any lock held.
	Parted()

	// Copied shows who wants to see it a DDP segment that goes to the peer through memory.
	Copied(segment []byte)

	// SetDeadline has Expire called in d, and takes back what was set before; 0: not at all.
	SetDeadline(d time.Duration)
	// Moved says that the peer is not silent, or takes what is left to send.
	Moved()

	// Blocking reports whether memory that can block may be touched by this QP.
	Blocking() bool

	// Wake has the QP run, by its goroutine or by who runs it; with any lock held.
	Wake()
	// Run runs the QP here, for a bounded time and without touching memory that can block, with no
	// lock held. more, if not nil, reports that the caller has more to bring.
	Run(more func() bool)
	// Front is the memory of the QP that messages need, for the caches to be asked for it together.
	Front() []byte
}

// An Origin says how a fault on this side was found.
type Origin uint8

const (
	ByQP    Origin = iota // by the QP: the link has to send the Terminate
	ByLink                // by the link, which sends it
	Refused               // by the link, which sends it, since the peer wanted what it may not have
)

// How connections end.
var (
	ErrPeerClosed = errors.New("the peer closed the connection while work was outstanding")
	ErrTooLong    = errors.New("the Send is longer than the receive")
)
