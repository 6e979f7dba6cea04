package record

import (
	"errors"
	"fmt"
	"time"
)

// A Player makes the calls of a recording again, of new engines.
type Player struct {
	began time.Time
	conns map[uint64]*conn
	sink  lastRecord // of all: one call is played at a time
	held  int        // octets, by all engines
	room  []byte     // for what a call is to read
}

// heldRoom bounds what engines hold in a replay: a few octets of a file may ask for the memory of
// thousands of messages, and there may be as many of them as anybody likes.
const heldRoom = 512 << 20

// errHeld says that they would hold more.
var errHeld = fmt.Errorf("the engines of this recording ask for more memory than the %d MiB that "+
	"a replay gives them", heldRoom>>20)

// NewPlayer plays a recording of m.
func NewPlayer(m Meta) *Player {
	return &Player{began: m.Began, conns: make(map[uint64]*conn)}
}

// A Difference is where what is played differs from the recording. Its Steps are good until the
// next record.
type Difference struct {
	Subject *Subject
	At      time.Duration
	Call    int  // of the connection's, from 1 on
	Was     Step // zero: there was no more in that call
	Is      Step
}

// A conn is a connection that is played.
type conn struct {
	engine engine
	script script
	rec    *Recorder
	sink   *lastRecord
	at     time.Duration
	calls  int
	held   int   // by engine, but for what plays DDP's sessions, which counts by itself
	broken *bool // it differs, or could not be made, or another one that has to do with it
}

// An engine is one that is recorded, and whose calls are made by Steps.
type engine interface {
	// play makes the call that s is. An error: it is none that anybody makes.
	play(s *Step) error
	// memory is how many octets it has, as far as a file gets more of them than it has itself.
	memory() int
}

// Take takes the next record. What differs from it is the Difference, the first of its connection:
// behind that nothing of that one is played. played: it was a call. An error says that the
// recording cannot be played.
func (p *Player) Take(rec *Record) (played bool, d *Difference, err error) {
	s := rec.Subject
	if s == nil || !s.Played() {
		return false, nil, nil
	}
	if rec.Opened {
		c, err := p.open(s)
		p.conns[s.ID] = c
		return false, nil, err
	}
	c := p.conns[s.ID]
	if c == nil || *c.broken || rec.Lost || rec.Steps[0].Op == OpBelongs {
		return false, nil, nil
	}
	c.calls++
	c.at = rec.At
	is, err := c.play(rec.Steps)
	if err == nil {
		err = p.hold(c)
	}
	if err != nil {
		*c.broken = true
		return false, nil, fmt.Errorf("%v, call %d: %w", s, c.calls, err)
	}
	for i := range max(len(rec.Steps), len(is)) {
		d := &Difference{Subject: s, At: rec.At, Call: c.calls}
		if i < len(rec.Steps) {
			d.Was = rec.Steps[i]
		}
		if i < len(is) {
			d.Is = is[i]
		}
		if !d.Was.equal(&d.Is) {
			*c.broken = true
			return true, d, nil
		}
	}
	return true, nil, nil
}

// open makes the engine of s.
func (p *Player) open(s *Subject) (*conn, error) {
	c := &conn{sink: &p.sink, broken: new(bool)}
	c.rec = &Recorder{to: c.sink, began: p.began, now: func() time.Duration { return c.at }}
	t := &Tape{r: c.rec, about: *s}
	err := p.make(c, t, s)
	if err == nil {
		err = p.hold(c)
	}
	if err != nil {
		*c.broken = true
		err = fmt.Errorf("%v: %w", s, err)
	}
	return c, err
}

// hold counts what the engine of c has now. None takes much in one call.
func (p *Player) hold(c *conn) error {
	n := c.engine.memory()
	p.held += n - c.held
	if c.held = n; p.held > heldRoom {
		return errHeld
	}
	return nil
}

// make makes the engine of c, recorded by t.
func (p *Player) make(c *conn, t *Tape, s *Subject) (err error) {
	defer caught(&err)
	switch {
	case s.IWARP != nil:
		c.engine, err = newEndpointPlayer(t, s.IWARP, &c.script, &p.room)
	case s.RC != nil:
		c.engine, err = newRCPlayer(t, s.RC, &c.script, &p.room)
	case s.UC != nil:
		c.engine, err = newUCPlayer(t, s.UC, &c.script, &p.room)
	case s.UD != nil:
		c.engine = newDatagramPlayer(t, s.UD, &c.script, &p.room)
	case s.Kind == SCTPEndpoint:
		c.engine = newSCTPPlayer(t, &c.script, &p.room)
	case s.Kind == DDPStreams:
		c.engine = newDDPPlayer(t, c, &p.held)
	case s.DDP != nil:
		c.engine, err = newSessionPlayer(t, c, p.conns[s.DDP.Streams], s.DDP)
	case s.CM != nil:
		c.engine, err = newManagerPlayer(t, s.CM, &c.script)
	case s.Start != nil:
		c.engine, err = newStartPlayer(t, s.Start, &p.room)
	default:
		err = errors.New("the recording does not say what it was made with")
	}
	return err
}

// caught makes an error of a panic: engines believe their owner, and a file may say anything.
func caught(err *error) {
	switch r := recover(); {
	case r == errHeld:
		*err = errHeld
	case r != nil:
		*err = fmt.Errorf("%w: %v", errNoCall, r)
	}
}

var errNoCall = errors.New("the recording has a call that no run makes")

// play makes the call that steps begin with, and says what came of it.
func (c *conn) play(steps []Step) (is []Step, err error) {
	defer caught(&err)
	if !steps[0].Op.info().calls {
		return nil, errNoCall
	}
	c.script = script{left: steps[1:]}
	c.sink.b = c.sink.b[:0]
	if err := c.engine.play(&steps[0]); err != nil {
		return nil, err
	}
	return c.sink.steps()
}

// A script answers for a Host what the recording has.
type script struct {
	left  []Step
	wrong bool // it was asked for something else
}

// next is the Step of an answer; nil: the recording has another one, and what is asked from now on
// is answered by errors.
func (s *script) next(op Op) *Step {
	if s.wrong || len(s.left) == 0 || s.left[0].Op != op {
		s.wrong = true
		return nil
	}
	step := &s.left[0]
	s.left = s.left[1:]
	return step
}

var errOther = errors.New("the recording has no answer to this")

// answer is the error that the recording has for a call; i is its place among the arguments.
func (s *script) answer(op Op, i int) error {
	step := s.next(op)
	if step == nil {
		return errOther
	}
	return errorOf(step.Args[i], step.Text)
}

// CopyOut is that of all payloads: which one it is the recording says, too.
func (s *script) CopyOut(p []byte, _ uint32) error {
	step := s.next(opCopyOut)
	if step == nil {
		return errOther
	}
	if err := errorOf(step.Args[3], step.Text); err != nil {
		return err
	}
	if len(step.Octets) != len(p) {
		s.wrong = true
		return errOther
	}
	copy(p, step.Octets)
	return nil
}

// lastRecord is a sink that has the last record.
type lastRecord struct {
	b      []byte
	parser parser
}

func (l *lastRecord) put(content []byte, _ bool) bool {
	l.b = append(l.b[:0], content...)
	return true
}

// steps are those of the last record; none: there was no call, as of an engine that is asked for an
// event and has none.
func (l *lastRecord) steps() ([]Step, error) {
	b := l.b
	switch {
	case len(b) == 0:
		return nil, nil
	case b[0] != kindSteps:
		return nil, errNoCall
	}
	b = b[1:]
	for range 2 {
		if _, err := number(&b); err != nil {
			return nil, err
		}
	}
	return l.parser.parse(b)
}
