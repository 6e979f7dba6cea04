package sctpddp

import "fmt"

// A State is where a session is.
//
//	active:   Initiating -> Open, or -> Over if refused
//	          Initiating -> Withdrawing -> Closing (it was accepted first), or -> Over
//	passive:  Idle -> Asked -> Open, or -> Over if refused or withdrawn
//	both:     Open -> Closing -> Over         we said Terminate first
//	          Open -> PeerClosed -> Over      the peer did
//	          any but Over -> Failed
type State uint8

const (
	StateIdle        State = iota // nothing of a session has been sequenced
	StateInitiating               // active: our Initiate is not answered
	StateWithdrawing              // active: nor is the Terminate behind it
	StateAsked                    // passive: the peer's Initiate is not answered
	StateOpen                     // accepted: both send segments
	StateClosing                  // our Terminate is queued or sent, the peer may still send
	StatePeerClosed               // the peer's Terminate has been sequenced, we may still send
	StateOver                     // ended as it should
	StateFailed                   // ended as it should not: this stream is not used again
)

var stateNames = [...]string{
	StateIdle: "Idle", StateInitiating: "Initiating", StateWithdrawing: "Withdrawing",
	StateAsked: "Asked", StateOpen: "Open",
	StateClosing: "Closing", StatePeerClosed: "PeerClosed", StateOver: "Over", StateFailed: "Failed",
}

func (s State) String() string {
	if int(s) >= len(stateNames) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return stateNames[s]
}

// A kind is what a message is for the legal sequences of RFC 5043, sections 6.2 to 6.4.
type kind uint8

const (
	kindBad kind = iota // malformed: fits no sequence
	kindSegment
	kindInitiate
	kindAccept
	kindReject
	kindTerminate
	kindCount
)

var kindNames = [kindCount]string{"malformed message", "segment", "Initiate", "Accept", "Reject",
	"Terminate"}

func (k kind) String() string { return kindNames[k] }

func kindOf(f Function) kind {
	switch f {
	case FuncInitiate, FuncEnhancedInitiate:
		return kindInitiate
	case FuncAccept, FuncEnhancedAccept:
		return kindAccept
	case FuncReject, FuncEnhancedReject:
		return kindReject
	case FuncTerminate:
		return kindTerminate
	}
	return kindBad
}

// arrivals holds, for each state, what the message that is next in order may be, and the state it
// leads to. What is not listed ends the session: "if the adaptation layer receives a Payload Data
// Chunk that conforms to none of the enumerated legal patterns, the DDP Stream Session MUST be
// terminated" (RFC 5043, section 6.1).
//
// Asked and segments: they stay where they are until there is an answer, and are then looked at
// again. Withdrawing and Accept: the two have crossed, the peer's Terminate is still to come. That
// the plain form is answered by the plain one is looked at beside this.
var arrivals = [...]map[kind]State{
	StateIdle:        {kindInitiate: StateAsked},
	StateInitiating:  {kindAccept: StateOpen, kindReject: StateOver, kindTerminate: StateOver},
	StateWithdrawing: {kindAccept: StateClosing, kindReject: StateOver, kindTerminate: StateOver},
	StateAsked:       {kindSegment: StateAsked, kindTerminate: StateOver},
	StateOpen:        {kindSegment: StateOpen, kindTerminate: StatePeerClosed},
	StateClosing:     {kindSegment: StateClosing, kindTerminate: StateOver},
	StatePeerClosed:  {},
	StateOver:        {},
	StateFailed:      {},
}

// stateNext holds the states that may follow each state, by a message or by a call.
var stateNext = [...]uint16{
	StateIdle:        1<<StateInitiating | 1<<StateAsked | 1<<StateFailed,
	StateInitiating:  1<<StateOpen | 1<<StateWithdrawing | 1<<StateOver | 1<<StateFailed,
	StateWithdrawing: 1<<StateClosing | 1<<StateOver | 1<<StateFailed,
	StateAsked:       1<<StateOpen | 1<<StateOver | 1<<StateFailed,
	StateOpen:        1<<StateClosing | 1<<StatePeerClosed | 1<<StateFailed,
	StateClosing:     1<<StateOver | 1<<StateFailed,
	StatePeerClosed:  1<<StateOver | 1<<StateFailed,
	StateOver:        1 << StateFailed, // with the association
	StateFailed:      0,
}

// setState moves s to state to. Nothing else assigns s.state. A transition that is not listed is a
// bug here and fails the session.
func (s *Session) setState(to State) {
	if to == s.state {
		return
	}
	if stateNext[s.state]&(1<<to) == 0 {
		s.err = fmt.Errorf("sctpddp: stream %d: no transition %v to %v", s.id, s.state, to)
		to = StateFailed
	}
	switch {
	case to == StateAsked:
		s.in.pool.Ask(1)
	case s.state == StateAsked:
		s.in.pool.Ask(-1)
	}
	s.state = to
}
