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

// noted makes a call of s, by f, which calls s again: then nobody hears of that.
func (s *Session) noted(c *Call, f func(r *Result)) {
	j := s.journal
	s.journal = nil
	j.Begin(c)
	r := Result{Session: s}
	f(&r)
	if j.End(&r) {
		s.journal = j
	}
}

// notedError is noted of a call that returns an error only.
func (s *Session) notedError(c *Call, f func() error) (err error) {
	s.noted(c, func(r *Result) {
		err = f()
		r.Err = err
	})
	return err
}

// noted is as that of a Session.
func (m *Mux) noted(c *Call, f func(r *Result)) {
	j := m.journal
	m.journal = nil
	j.Begin(c)
	var r Result
	f(&r)
	if j.End(&r) {
		m.journal = j
	}
}

// noteGiven is for what a noted call gives out; nil: nothing.
func (m *Mux) noteGiven(s *Session) {
	if s != nil {
		s.journal = m.cfg.Journal.Given(s, s.assoc)
	}
}
