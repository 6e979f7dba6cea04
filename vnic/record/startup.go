package record

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
)

// A Start is what one end of the MPA start-up of a connection was made with.
type Start struct {
	Initiator   bool              `json:"initiator"`
	Config      iwarp.StartConfig `json:"config"`
	PrivateData []byte            `json:"private_data,omitempty"` // the Initiator's
}

// starting is what an iwarp.Initiator and an iwarp.Responder have in common.
type starting interface {
	Write(b []byte) (int, error)
	Len() int
	Read(p []byte) (int, error)
	Commit(n int)
}

// startUp records what goes in and out of either.
type startUp struct {
	starting
	t    *Tape
	done func() (what string, err error) // what has come of it; "": nothing yet
	told bool
}

// open begins to record, if there is room.
func (s *startUp) open(of *Start) {
	s.t.about.Kind, s.t.about.Start = StartUp, of
	s.t.offer()
}

// end ends a call, and says once what has come of the start-up.
func (s *startUp) end(n int, octets []byte, err error) {
	if what, why := s.done(); what != "" && !s.told {
		s.told = true
		s.t.step(opStarted, nil, what, codeOf(why))
	}
	s.t.done(uint64(n), octets, err)
}

func (s *startUp) Write(b []byte) (n int, err error) {
	if s.t.off() {
		return s.starting.Write(b)
	}
	s.t.call(opTakeFrame, b, "")
	n, err = s.starting.Write(b)
	s.end(n, nil, err)
	return n, err
}

func (s *startUp) Read(p []byte) (n int, err error) {
	if s.t.off() {
		return s.starting.Read(p)
	}
	s.t.call(opGiveFrame, nil, "", uint64(len(p)))
	n, err = s.starting.Read(p)
	s.end(n, p[:n], err)
	return n, err
}

func (s *startUp) Commit(n int) {
	if s.t.off() {
		s.starting.Commit(n)
		return
	}
	s.t.call(opFrameGone, nil, "", uint64(max(n, 0)))
	s.starting.Commit(n)
	s.end(0, nil, nil)
}

// asText is v, which has nothing that JSON has not, as a Step has it.
func asText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("record: %v", err))
	}
	return string(b)
}

// An Initiator is an iwarp.Initiator whose calls are recorded.
type Initiator struct {
	startUp
	of *iwarp.Initiator
}

// NewInitiator is iwarp.NewInitiator, recorded by t.
func NewInitiator(t *Tape, cfg iwarp.StartConfig, privateData []byte) (*Initiator, error) {
	of, err := iwarp.NewInitiator(cfg, privateData)
	if err != nil {
		return nil, err
	}
	s := &Initiator{of: of}
	s.startUp = startUp{starting: of, t: t, done: func() (string, error) {
		if !of.Done() {
			return "", nil
		}
		p, err := of.Result()
		return startedText(&p, err), err
	}}
	s.open(&Start{Initiator: true, Config: cfg, PrivateData: privateData})
	return s, nil
}

// startedText says what has come of a start-up.
func startedText(p *iwarp.Params, err error) string {
	if err == nil {
		return asText(p)
	}
	if rej := (*iwarp.RejectedError)(nil); errors.As(err, &rej) {
		return "rejected: " + asText(rej)
	}
	return err.Error()
}

// Done is iwarp.Initiator's.
func (s *Initiator) Done() bool { return s.of.Done() }

// Result is iwarp.Initiator's.
func (s *Initiator) Result() (iwarp.Params, error) { return s.of.Result() }

// A Responder is an iwarp.Responder whose calls are recorded.
type Responder struct {
	startUp
	of *iwarp.Responder
}

// NewResponder is iwarp.NewResponder, recorded by t.
func NewResponder(t *Tape, cfg iwarp.StartConfig) (*Responder, error) {
	of, err := iwarp.NewResponder(cfg)
	if err != nil {
		return nil, err
	}
	s := &Responder{of: of}
	s.startUp = startUp{starting: of, t: t, done: func() (string, error) {
		if r, ok := of.Request(); ok {
			return asText(&r), nil
		}
		if err := of.Err(); err != nil {
			return err.Error(), err
		}
		return "", nil
	}}
	s.open(&Start{Config: cfg})
	return s, nil
}

// Err is iwarp.Responder's.
func (s *Responder) Err() error { return s.of.Err() }

// Request is iwarp.Responder's.
func (s *Responder) Request() (iwarp.Request, bool) { return s.of.Request() }

// Belongs says of which queue pair the connection is to be.
func (s *Responder) Belongs(qpn uint32) { s.t.belongs(qpn) }

// Reconfigure is iwarp.Responder's.
func (s *Responder) Reconfigure(cfg iwarp.StartConfig) error {
	if s.t.off() {
		return s.of.Reconfigure(cfg)
	}
	s.t.call(opReconfigure, nil, asText(&cfg))
	err := s.of.Reconfigure(cfg)
	s.end(0, nil, err)
	return err
}

// Accept is iwarp.Responder's.
func (s *Responder) Accept(ird, ord uint16, privateData []byte) (iwarp.Params, error) {
	if s.t.off() {
		return s.of.Accept(ird, ord, privateData)
	}
	s.t.call(opAcceptStart, privateData, "", uint64(ird), uint64(ord))
	p, err := s.of.Accept(ird, ord, privateData)
	s.t.step(opStarted, nil, startedText(&p, err), codeOf(err))
	s.end(0, nil, err)
	return p, err
}

// Reject is iwarp.Responder's.
func (s *Responder) Reject(privateData []byte) error {
	if s.t.off() {
		return s.of.Reject(privateData)
	}
	s.t.call(opRejectStart, privateData, "")
	err := s.of.Reject(privateData)
	s.end(0, nil, err)
	return err
}

// A startPlayer plays an Initiator or a Responder.
type startPlayer struct {
	s    *startUp
	r    *Responder // nil: it is an Initiator
	room *[]byte
}

func newStartPlayer(t *Tape, of *Start, room *[]byte) (engine, error) {
	if of.Initiator {
		s, err := NewInitiator(t, of.Config, of.PrivateData)
		if err != nil {
			return nil, err
		}
		return &startPlayer{s: &s.startUp, room: room}, nil
	}
	r, err := NewResponder(t, of.Config)
	if err != nil {
		return nil, err
	}
	return &startPlayer{s: &r.startUp, r: r, room: room}, nil
}

func (p *startPlayer) play(s *Step) error {
	switch s.Op {
	case opTakeFrame:
		_, _ = p.s.Write(s.Octets) // as all results, it is recorded
	case opGiveFrame:
		room, err := roomFor(p.room, s, 0)
		if err != nil {
			return err
		}
		_, _ = p.s.Read(room)
	case opFrameGone:
		p.s.Commit(int(min(s.Args[0], maxOctets)))
	default:
		return p.answer(s)
	}
	return nil
}

func (p *startPlayer) memory() int { return 0 }

// answer makes the calls that only a Responder has.
func (p *startPlayer) answer(s *Step) error {
	if p.r == nil {
		return errNoCall
	}
	switch s.Op {
	case opReconfigure:
		var cfg iwarp.StartConfig
		if err := unmarshal([]byte(s.Text), &cfg); err != nil {
			return err
		}
		_ = p.r.Reconfigure(cfg)
	case opAcceptStart:
		_, _ = p.r.Accept(uint16(s.Args[0]), uint16(s.Args[1]), s.Octets)
	case opRejectStart:
		_ = p.r.Reject(s.Octets)
	default:
		return errNoCall
	}
	return nil
}
