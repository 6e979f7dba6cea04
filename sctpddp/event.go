package sctpddp

import (
	"errors"
	"fmt"
)

// An EventKind says what has happened to a session.
type EventKind uint8

const (
	EventRequest   EventKind = iota + 1 // passive: the peer asks; see Request
	EventWithdrawn                      // passive: it does so no more
	EventAccepted                       // active: see Params
	// active: by the peer's program; Err is an *iwarp.RejectedError
	EventRejected
	EventRefused // active: by a Terminate, so by something below the program
	EventClosed  // the peer's Terminate: nothing more comes from it
	EventFailed  // the session broke off; Err says why
	EventLost    // the association is gone; Err is a *LostError
)

var eventNames = [...]string{
	EventRequest: "Request", EventWithdrawn: "Withdrawn", EventAccepted: "Accepted",
	EventRejected: "Rejected",
	EventRefused:  "Refused", EventClosed: "Closed", EventFailed: "Failed", EventLost: "Lost",
}

func (k EventKind) String() string {
	if int(k) >= len(eventNames) || k == 0 {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return eventNames[k]
}

// An Event tells the owner of a session what has happened to it.
type Event struct {
	Kind EventKind
	// PrivateData is the peer program's: with a request, an accept and a reject.
	PrivateData []byte
	Err         error
}

// A LossKind says how an association ended.
type LossKind uint8

const (
	LossShutdown LossKind = iota // the peer shut it down; everything sent has arrived
	LossAbort                    // it was aborted, by either side
	LossFailure                  // the peer does not answer any more
	LossRestart                  // the peer has forgotten it and begun anew
)

var lossTexts = [...]string{"the peer shut the association down", "the association was aborted",
	"the peer does not answer any more", "the peer restarted the association"}

// A LostError says that the association below a session has ended.
type LostError struct {
	Kind LossKind
	Err  error // what SCTP says, or nil
}

func (e *LostError) Error() string {
	s := "sctpddp: "
	if int(e.Kind) < len(lossTexts) {
		s += lossTexts[e.Kind]
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *LostError) Unwrap() error { return e.Err }

// A ProtocolError is a message of the peer that fits no legal session. The session is terminated;
// RFC 5043 has no codes for it.
type ProtocolError struct {
	Stream uint16
	State  State // before it
	Err    error
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("sctpddp: stream %d, %v: %v", e.Stream, e.State, e.Err)
}

func (e *ProtocolError) Unwrap() error { return e.Err }

// Errors that calls return.
var (
	// ErrState: the session is not where that can be done.
	ErrState = errors.New("sctpddp: not possible in this state of the session")
	// ErrTooLong: the segment is longer than MULPDU.
	ErrTooLong = errors.New("sctpddp: segment longer than MULPDU")
	// ErrNoStream: all streams of the association are in use or lost; open another association.
	ErrNoStream = errors.New("sctpddp: no stream of the association is free; use another association")
	// ErrRefused: the peer terminated the request below its program: too many requests, nobody
	// listens, no resources, or it does not know the enhanced form (docs/decisions.md#D8).
	ErrRefused = errors.New("sctpddp: the peer refused the session; if it keeps doing so, ask in " +
		"the plain form (revision 1)")
	// ErrCrossed: both ends initiated a session on one stream; try again, on another one.
	ErrCrossed = errors.New("sctpddp: both ends initiated a session on this stream; try again")
	// ErrDown: the association has ended or is about to.
	ErrDown = errors.New("sctpddp: the association is going down")
	// ErrAbandoned: the owner gave the session up.
	ErrAbandoned = errors.New("sctpddp: the session was given up")
)
