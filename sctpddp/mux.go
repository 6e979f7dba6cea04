package sctpddp

import (
	"fmt"
	"slices"
	"time"

	"github.com/vrnic/vrnic/iwarp"
)

// A Config holds what the owner of a Mux can choose. The zero value is fine, for the end that did
// not open the association and takes no requests.
type Config struct {
	// Initiator says that this end opened the association. It takes even streams for its own
	// requests and the other end odd ones, so that they do not cross (docs/decisions.md#D4).
	Initiator bool
	// Backlog is how many requests of the peer may be unanswered; one more is refused. 0: none are
	// taken.
	Backlog int
	// Start is what this end can do, for requests that it has to refuse by itself, and for what it
	// says when a program refuses. The zero value is iwarp.DefaultStartConfig.
	Start iwarp.StartConfig
	// Opaque: segments are not DDP's, and nothing of them is looked at.
	Opaque bool
	// HoldSession and HoldAll bound the octets that one session, and all of them, keep of what has
	// come ahead of order; 0: 1 MiB and 16 MiB.
	HoldSession, HoldAll int
	// Allowance is how many messages may be missing beyond those that SCTP knows of, because a
	// peer sends in another order than it numbers; 0: 1024.
	Allowance int
	// Grace is how long an association lives on when its last session has ended; 0: 1 s. Unused is how
	// long it waits for the first one, which may be late if packets of the set-up are lost; 0: 30 s.
	Grace, Unused time.Duration
	// Linger is how long a session that was released when the peer had not said Terminate waits for
	// that, so that its stream can be used again, and one whose Initiate has been overtaken for the
	// Initiate; 0: 5 s.
	Linger time.Duration

	// Budget is what bounds the octets that are held; nil: one of HoldAll octets.
	Budget Budget `json:"-"`
	// Journal hears of all that is done with the Mux and its Sessions; nil: nobody does.
	Journal Journal `json:"-"`
}

const (
	defaultHoldSession = 1 << 20
	defaultHoldAll     = 16 << 20
	defaultAllowance   = 1024
	defaultGrace       = time.Second
	defaultUnused      = 30 * time.Second
	defaultLinger      = 5 * time.Second
)

// A Mux has the DDP streams of an association.
type Mux struct {
	assoc Association
	cfg   Config
	n     int // streams that exist both ways

	sessions map[uint16]*Session
	lost     map[uint16]bool // streams whose last session failed; whether the peer may begin another
	used     map[uint16]bool // streams that have had a session
	requests []*Session      // to be given by Request
	// streams whose sessions this owner has, and that have something to say or to hear
	waiting []uint16
	waits   map[uint16]bool // those
	lingers []lingering     // oldest first
	pool    Budget
	idle    time.Time // since when there is no session; zero: there is one
	down    bool
	stats   MuxStats
	journal Journal // hears of calls; nil: nobody does, or one is under way
}

// A lingering stream has a session that was released before the peer's Terminate came, or had one.
type lingering struct {
	id    uint16
	until time.Time
}

// MuxStats counts what a Mux did.
type MuxStats struct {
	Sessions uint64 // begun, by either end
	Refused  uint64 // requests refused by the Mux itself
	OneWay   uint64 // messages for streams that exist one way only
	Ignored  uint64 // messages for streams that are not used any more
}

// NewMux begins DDP on an association. It fails, wrapping ErrNoDDP, if the peer does not speak it;
// the association is the caller's to abort then. iwarp.ErrConfig.
func NewMux(a Association, cfg Config, now time.Time) (*Mux, error) {
	b := cfg.Budget
	if b == nil {
		b = newBudget(cfg.HoldAll)
	}
	j := cfg.Journal
	if j == nil {
		return newMux(a, b, cfg, now)
	}
	a, b = j.Around(a, b)
	j.Begin(&Call{Kind: CallNew, Now: now, Config: &cfg})
	m, err := newMux(a, b, cfg, now)
	if j.End(&Result{Err: err}) && m != nil {
		m.journal = j
	}
	return m, err
}

func newMux(a Association, b Budget, cfg Config, now time.Time) (*Mux, error) {
	if err := CheckIndication(a.PeerAdaptation()); err != nil {
		return nil, err
	}
	if cfg.Start == (iwarp.StartConfig{}) {
		cfg.Start = iwarp.DefaultStartConfig()
	}
	var err error
	if cfg.Start, err = cfg.Start.WithDefaults(); err != nil {
		return nil, err
	}
	for v, d := range map[*int]int{&cfg.HoldSession: defaultHoldSession,
		&cfg.Allowance: defaultAllowance} {
		if *v <= 0 {
			*v = d
		}
	}
	if cfg.Grace <= 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.Unused <= 0 {
		cfg.Unused = defaultUnused
	}
	if cfg.Linger <= 0 {
		cfg.Linger = defaultLinger
	}
	out, in := a.Streams()
	return &Mux{
		assoc: a, pool: b, cfg: cfg, n: min(out, in), sessions: map[uint16]*Session{},
		lost: map[uint16]bool{}, used: map[uint16]bool{}, waits: map[uint16]bool{}, idle: now,
	}, nil
}

// Streams is how many DDP streams there are: numbers 0 to Streams()-1.
func (m *Mux) Streams() int { return m.n }

// Stats is what has happened so far.
func (m *Mux) Stats() MuxStats { return m.stats }

// Session is the session on a stream, nil if there is none.
func (m *Mux) Session(id uint16) *Session { return m.sessions[id] }

// Sessions calls f for each session.
func (m *Mux) Sessions(f func(*Session)) {
	for _, s := range m.sessions {
		f(s)
	}
}

func (m *Mux) add(id uint16, start iwarp.StartConfig) *Session {
	s := &Session{id: id, assoc: m.assoc, start: start, allowance: m.cfg.Allowance,
		opaque: m.cfg.Opaque}
	s.in.limit, s.in.pool = m.cfg.HoldSession, m.pool
	if j := m.cfg.Journal; j != nil {
		s.assoc, s.in.pool = j.Around(m.assoc, m.pool)
	}
	m.sessions[id], m.used[id] = s, true
	m.idle = time.Time{}
	m.stats.Sessions++
	return s
}

// free says whether a session can begin on stream id, and forgets the last one.
func (m *Mux) free(id uint16) bool {
	if s := m.sessions[id]; s != nil {
		if !s.own || !s.Quiet() {
			return false
		}
		m.remove(s)
	}
	_, lost := m.lost[id]
	return !lost
}

func (m *Mux) remove(s *Session) {
	s.in.clear()
	delete(m.sessions, s.id)
	s.own = false
	if s.state == StateFailed {
		// Another Initiate of the peer can be told from what is late, unless its first has not come.
		m.lost[s.id] = s.heard
	}
}

// Open asks the peer for a session on a free stream. It is the caller's until Release. The result
// comes as an event: EventAccepted, EventRejected, EventRefused or EventFailed. ErrNoStream,
// ErrDown, iwarp.ErrConfig, iwarp.ErrPrivateData.
func (m *Mux) Open(cfg iwarp.StartConfig, privateData []byte) (s *Session, err error) {
	if m.journal != nil {
		start := cfg
		m.noted(&Call{Kind: CallOpen, Start: &start, PrivateData: privateData}, func(r *Result) {
			s, err = m.Open(cfg, privateData)
			m.noteGiven(s)
			r.Err = err
		})
		return s, err
	}
	if m.down {
		return nil, ErrDown
	}
	first := 1
	if m.cfg.Initiator {
		first = 0
	}
	for id := first; id < m.n; id += 2 {
		if m.free(uint16(id)) {
			return m.OpenOn(uint16(id), cfg, privateData)
		}
	}
	return nil, ErrNoStream
}

// OpenOn is Open on a given stream. ErrNoStream: it does not exist, or is not free.
func (m *Mux) OpenOn(id uint16, cfg iwarp.StartConfig, privateData []byte) (s *Session,
	err error) {
	if m.journal != nil {
		start := cfg
		m.noted(&Call{Kind: CallOpenOn, Stream: id, Start: &start, PrivateData: privateData},
			func(r *Result) {
				s, err = m.OpenOn(id, cfg, privateData)
				m.noteGiven(s)
				r.Err = err
			})
		return s, err
	}
	cfg, err = cfg.WithDefaults()
	if err != nil {
		return nil, err
	}
	c := Control{Function: FuncInitiate, PrivateData: append([]byte(nil), privateData...)}
	// "The initiator MUST NOT use the enhanced RDMA connection establishment formats or function
	// codes when no enhanced functionality is desired." RFC 6581, section 10.
	data, enhanced := cfg.Offer()
	if enhanced {
		c.Function, c.HasData, c.Data = FuncEnhancedInitiate, true, data
	}
	if _, err := c.Append(nil); err != nil {
		return nil, err
	}
	switch {
	case m.down:
		return nil, ErrDown
	case int(id) >= m.n || !m.free(id):
		return nil, ErrNoStream
	}
	s = m.add(id, cfg)
	s.active, s.enhanced = true, enhanced
	s.setState(StateInitiating)
	s.queue(c)
	if err := s.Step(); err != nil {
		m.remove(s)
		return nil, fmt.Errorf("%w: %w", ErrDown, err) // it takes nothing any more
	}
	return s, nil
}

// Input takes a message that has come in. It goes to the session of its stream: also to one that
// has another owner, who must be the caller then (see Session).
func (m *Mux) Input(now time.Time, msg Message) {
	// To one that is given out it is a call of that one.
	if m.journal != nil && !m.gaveOut(msg.Stream) {
		said := msg
		m.noted(&Call{Kind: CallMuxInput, Now: now, Message: &said},
			func(*Result) { m.Input(now, msg) })
		return
	}
	if m.down {
		m.stats.Ignored++
		return
	}
	if int(msg.Stream) >= m.n {
		// Nothing could be answered there.
		m.stats.OneWay++
		return
	}
	s := m.sessions[msg.Stream]
	if s == nil || s.state == StateOver && s.own && begins(msg) {
		if s != nil {
			m.remove(s) // the peer has seen the end of it, or would not begin anew
		}
		again, lost := m.lost[msg.Stream]
		if m.used[msg.Stream] && !begins(msg) || lost && !again {
			// "Data Chunks from one DDP Stream Session are never carried over to the next session."
			m.stats.Ignored++
			return
		}
		delete(m.lost, msg.Stream)
		s = m.add(msg.Stream, m.cfg.Start)
		s.own = true
	}
	was := s.state
	s.Input(msg)
	if !s.own {
		return
	}
	if s.state == StateIdle && s.until.IsZero() {
		m.linger(now, s)
	}
	switch {
	case was == StateAsked && s.state != StateAsked:
		m.requests = slices.DeleteFunc(m.requests, func(r *Session) bool { return r == s })
	case was == StateAsked || s.state != StateAsked:
	case m.pool.Asked() > m.cfg.Backlog:
		// "When a DDP Stream Session Initiate cannot be forwarded to the ULP due to such a limit, the
		// adaptation layer MUST respond with a DDP Stream Session Terminate message." RFC 5043, 5.2.3.
		m.stats.Refused++
		s.refuse(FuncTerminate, nil)
	default:
		m.requests = append(m.requests, s)
	}
	m.settle(now, s)
}

func (m *Mux) gaveOut(stream uint16) bool {
	s := m.sessions[stream]
	return s != nil && !s.own
}

// Request gives out a session that the peer asks for. It is the caller's until Release, to be
// answered with Accept, Reject or Refuse.
func (m *Mux) Request() (s *Session, ok bool) {
	if len(m.requests) == 0 {
		return nil, false
	}
	if m.journal != nil {
		m.noted(&Call{Kind: CallRequest}, func(*Result) {
			s, ok = m.Request()
			m.noteGiven(s)
		})
		return s, ok
	}
	s = m.requests[0]
	m.requests = m.requests[1:]
	s.own = false
	return s, true
}

// Release gives a session back that has ended, or that Close has ended here: then the peer's
// Terminate is still awaited, and what comes before it is dropped. One that has not ended is
// abandoned. What still has to be said is said by Step.
func (m *Mux) Release(now time.Time, s *Session) {
	if m.sessions[s.id] != s {
		return
	}
	s.journal = nil
	if m.journal != nil {
		m.noted(&Call{Kind: CallRelease, Now: now, Session: s, Asked: s.assoc},
			func(*Result) { m.Release(now, s) })
		return
	}
	s.own, s.sink, s.discard = true, nil, true
	if s.lingers() {
		s.Resume()
	} else {
		s.Abandon()
	}
	if s.lingers() {
		m.linger(now, s)
	}
	next := s.successor
	s.successor = nil
	m.settle(now, s)
	if next != nil {
		m.Input(now, Message{Stream: s.id, PPID: PPIDControl, Unordered: true, Data: next})
	}
}

// linger gives s up if the peer does not do in time what it has to.
func (m *Mux) linger(now time.Time, s *Session) {
	s.until = now.Add(m.cfg.Linger)
	m.lingers = append(m.lingers, lingering{s.id, s.until})
}

// lingers says that this end has said its Terminate, and the peer has not.
func (s *Session) lingers() bool { return s.state == StateClosing || s.state == StateWithdrawing }

// awaited says that the peer must do something: say its Terminate, or send the Initiate that is
// before what has come, and may have been overtaken.
func (s *Session) awaited() bool { return s.state == StateIdle || s.lingers() }

// settle sends what a session of the Mux's owner has to say, and forgets it when that was all.
func (m *Mux) settle(now time.Time, s *Session) {
	_ = s.Step() // an error is that of the association, which says so by itself
	switch {
	case s.Quiet() || s.state == StateFailed && !s.Pending():
		m.remove(s)
	case !m.waits[s.id] && (s.state == StateOver || s.Pending()):
		m.waits[s.id] = true
		m.waiting = append(m.waiting, s.id)
	}
	if len(m.sessions) == 0 && m.idle.IsZero() {
		m.idle = now
	}
}

// Step does what can be done when there is room again, something was acknowledged, or Deadline has
// come.
func (m *Mux) Step(now time.Time) {
	if m.down {
		return
	}
	if m.journal != nil && m.due(now) {
		m.noted(&Call{Kind: CallMuxStep, Now: now}, func(*Result) { m.Step(now) })
		return
	}
	waiting := m.waiting
	m.waiting = nil
	for _, id := range waiting {
		delete(m.waits, id)
		if s := m.sessions[id]; s != nil && s.own {
			m.settle(now, s)
		}
	}
	for len(m.lingers) > 0 && !now.Before(m.lingers[0].until) {
		s := m.sessions[m.lingers[0].id]
		m.lingers = m.lingers[1:]
		if s != nil && s.own && s.awaited() && !now.Before(s.until) {
			s.Abandon()
			m.settle(now, s)
		}
	}
	if len(m.sessions) == 0 && m.idle.IsZero() {
		m.idle = now
	}
	// An association whose last stream has ended is to be torn down: RFC 5041, section 3 (10). The
	// grace time lets a retry, or one more session, have it (docs/decisions.md#D12).
	if d, ok := m.Deadline(); ok && !now.Before(d) {
		m.down = true
		m.assoc.Shutdown()
	}
}

// due says whether Step has anything to do.
func (m *Mux) due(now time.Time) bool {
	d, ok := m.Deadline()
	return len(m.waiting) > 0 || len(m.lingers) > 0 && !now.Before(m.lingers[0].until) ||
		len(m.sessions) == 0 && m.idle.IsZero() || ok && !now.Before(d)
}

// Deadline is when Step has to be called at the latest.
func (m *Mux) Deadline() (at time.Time, ok bool) {
	if m.down {
		return at, false
	}
	for len(m.lingers) > 0 {
		if s := m.sessions[m.lingers[0].id]; s != nil && s.own && s.awaited() {
			break
		}
		m.lingers = m.lingers[1:]
	}
	switch {
	case m.idle.IsZero() && len(m.lingers) > 0:
		return m.lingers[0].until, true
	case m.idle.IsZero():
		return at, false
	case m.stats.Sessions == 0:
		return m.idle.Add(m.cfg.Unused), true
	}
	return m.idle.Add(m.cfg.Grace), true
}

// Lost ends every session, for the association has ended. "The local interface SHOULD notify all
// consumers of DDP streams when the underlying SCTP stream has been terminated" (RFC 5043, section
// 11.3): each gets EventLost, once. If the sessions have owners of their own, call Down and let
// these call Session.Lost.
func (m *Mux) Lost(kind LossKind, err error) {
	for _, s := range m.sessions {
		s.Lost(kind, err)
	}
	m.Down()
}

// Down says that the association has ended.
func (m *Mux) Down() {
	if m.journal != nil {
		m.noted(&Call{Kind: CallDown}, func(*Result) { m.Down() })
		return
	}
	m.down = true
	m.requests = nil
	m.waiting, m.lingers = nil, nil
	for _, s := range m.sessions {
		if s.own { // what others hold they give back when they hear of it
			s.in.clear()
		}
	}
	clear(m.sessions)
}

func (m *Mux) String() string {
	return fmt.Sprintf("streams=%d sessions=%d asked=%d lost=%d", m.n, len(m.sessions),
		m.pool.Asked(), len(m.lost))
}
