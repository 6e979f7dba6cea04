package sctpddp

import (
	"time"

	"github.com/vrnic/vrnic/iwarp"
)

// A Journal hears of each call of a Mux, or of a Session that the Mux has given out, that changes
// anything, and of what has come of it; and it stands between them and whom they ask, so that it
// has all that is needed to make the calls again. It is called inside of them, by their owner. What
// the Mux does with a Session that it has not given out is part of the Mux's call.
type Journal interface {
	// Around gives what a Mux asks in place of a and b; and then, of these, for each session that
	// begins, what that one asks.
	Around(a Association, b Budget) (Association, Budget)
	// Begin may put other ones in the place of c's Sink and Source.
	Begin(c *Call)
	// Given is called within Open, OpenOn and Request of a Mux: who hears of s until Release; nil:
	// nobody. a is what Around gave for it.
	Given(s *Session, a Association) Journal
	// End says whether it wants to hear of more calls.
	End(r *Result) (more bool)
}

// A CallKind says which call it is.
type CallKind uint8

// The calls. Those that neither ask anything nor change anything are not told of.
const (
	CallNew CallKind = iota // NewMux
	CallOpen
	CallOpenOn
	CallMuxInput
	CallRequest
	CallRelease
	CallMuxStep
	CallDown

	// Of a Session.
	CallInput
	CallWriteFrom
	CallStep
	CallMULPDU
	CallEvent
	CallAttach
	CallResume
	CallAccept
	CallReject
	CallRefuse
	CallFailNegotiation
	CallClose
	CallAbort
	CallAbandon
	CallLost
)

// A Call is one with its arguments.
type Call struct {
	Kind        CallKind
	Now         time.Time
	Config      *Config // of NewMux
	Stream      uint16  // of OpenOn
	Start       *iwarp.StartConfig
	PrivateData []byte
	Message     *Message
	Session     *Session    // that is released
	Asked       Association // by that one
	Sink        Sink
	Source      iwarp.Source
	Loss        LossKind
	Err         error // of Lost and FailNegotiation
}

// A Result is what a call has returned.
type Result struct {
	Session *Session // whose call it was; nil: the Mux's
	N       int
	Err     error
	Event   *Event
	Idle    bool // it has changed nothing, and need not be made again
}

// Journal is who hears of s; nil: nobody.
func (s *Session) Journal() Journal { return s.journal }

// note makes a call by f, which makes it again of the same: then nobody hears of that.
func note(at *Journal, r Result, c *Call, f func(r *Result)) {
	j := *at
	*at = nil
	j.Begin(c)
	f(&r)
	if j.End(&r) {
		*at = j
	}
}

// noted makes a call of s by f.
func (s *Session) noted(c *Call, f func(r *Result)) {
	note(&s.journal, Result{Session: s}, c, f)
}

// notedError is noted of a call that returns an error only.
func (s *Session) notedError(c *Call, f func() error) (err error) {
	s.noted(c, func(r *Result) {
		err = f()
		r.Err = err
	})
	return err
}

// noted makes a call of m by f.
func (m *Mux) noted(c *Call, f func(r *Result)) { note(&m.journal, Result{}, c, f) }

// noteGiven is for what a noted call gives out; nil: nothing.
func (m *Mux) noteGiven(s *Session) {
	if s != nil {
		s.journal = m.cfg.Journal.Given(s, s.assoc)
	}
}
