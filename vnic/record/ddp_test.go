package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// A ddpEnd is a Mux that is recorded, and the sessions that it has given out.
type ddpEnd struct {
	*sctpddp.Mux
	a     *sctpddptest.Assoc
	now   time.Time
	given []*sctpddp.Session
	sinks map[*sctpddp.Session]*ddpUser
}

// newDDPEnds are the two ends of an association, of vrnic0, which has opened it, and vrnic1.
func newDDPEnds(t testing.TB, r *Recorder, l sctpddptest.Link, cfg sctpddp.Config) (e [2]*ddpEnd) {
	t.Helper()
	x, y := sctpddptest.NewPair(l)
	ports := [2]string{"10.0.0.1:9", "10.0.0.2:7"}
	for i, a := range []*sctpddptest.Assoc{x, y} {
		tape := r.Tape([]string{"vrnic0", "vrnic1"}[i], 0)
		tape.Between("sctp", ports[i], ports[1-i])
		cfg.Initiator, cfg.Journal = i == 0, NewDDP(tape)
		now := r.began.Add(time.Second)
		m, err := sctpddp.NewMux(a, cfg, now)
		if err != nil {
			t.Fatal(err)
		}
		e[i] = &ddpEnd{Mux: m, a: a, now: now, sinks: make(map[*sctpddp.Session]*ddpUser)}
	}
	return e
}

// give notes a session that was given out.
func (e *ddpEnd) give(s *sctpddp.Session) { e.given = append(e.given, s) }

// release gives one back.
func (e *ddpEnd) release(s *sctpddp.Session) {
	e.given = slices.DeleteFunc(e.given, func(x *sctpddp.Session) bool { return x == s })
	e.Release(e.now, s)
}

// carry lets everything arrive that is under way between two ends.
func carryDDP(e [2]*ddpEnd) {
	for again := true; again; {
		again = false
		for _, x := range e {
			for m, ok := x.a.Next(); ok; m, ok = x.a.Next() {
				x.Input(x.now, m)
				again = true
			}
			for _, s := range x.given {
				before := len(x.a.Log())
				_ = s.Step() // an error would be the association's, which has none
				again = again || len(x.a.Log()) > before
			}
			x.Step(x.now)
		}
	}
}

// A ddpUser is the Sink of a session: it places what is tagged at once.
type ddpUser struct {
	stalls func() bool // nil: never
	failed error
	got    []string
}

func (u *ddpUser) Ahead(seg []byte) int {
	if u.failed != nil || len(seg) < iwarp.TaggedHeaderLen || !iwarp.DDPControl(seg[0]).Tagged() {
		return len(seg)
	}
	return iwarp.TaggedHeaderLen
}

func (u *ddpUser) Segment(seg []byte, size int) error {
	if u.failed == nil && u.stalls != nil && u.stalls() {
		return fmt.Errorf("there is none: %w", iwarp.ErrNoReceive)
	}
	u.got = append(u.got, fmt.Sprintf("%d of %d", len(seg), size))
	return nil
}

func (u *ddpUser) Fail(c iwarp.TermCode, err error) {
	u.failed = &iwarp.LocalError{Cause: c, Err: err}
}

// segment is one with those octets, of a Write or of a Send.
func segment(tagged bool, text string) []byte {
	if tagged {
		return append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0), text...)
	}
	return append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0), text...)
}

// plainStart asks for nothing enhanced.
var plainStart = iwarp.StartConfig{Revision: 1, IRD: 4, ORD: 4}

// streams records the two ends of an association, in which sessions are opened, used and closed,
// rejected, withdrawn and broken off, until it is lost.
func streams(t testing.TB, r *Recorder) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e := newDDPEnds(t, r, sctpddptest.Link{}, sctpddp.Config{Backlog: 2, HoldSession: 4000,
		HoldAll: 6000})
	x, y := e[0], e[1]
	open := func(cfg iwarp.StartConfig, privateData string) *sctpddp.Session {
		t.Helper()
		s, err := x.Open(cfg, []byte(privateData))
		check(err)
		x.give(s)
		return s
	}
	asked := func() *sctpddp.Session {
		t.Helper()
		carryDDP(e)
		s, ok := y.Request()
		if !ok {
			t.Fatal("there is no request")
		}
		y.give(s)
		return s
	}
	write := func(s *sctpddp.Session, seg []byte) {
		t.Helper()
		if n, err := s.WriteFrom(bytes.NewReader(seg)); n != len(seg) || err != nil {
			t.Fatal(n, err)
		}
	}
	accepted := func(cfg iwarp.StartConfig, privateData string) (p, q *sctpddp.Session,
		k, l *ddpUser) {
		t.Helper()
		p, q = open(cfg, "who is there?"), asked()
		q.Event()
		_, err := q.Accept(iwarp.DefaultStartConfig(), []byte(privateData))
		check(err)
		carryDDP(e)
		p.Event()
		k, l = &ddpUser{}, &ddpUser{}
		check(errors.Join(p.Attach(k), q.Attach(l)))
		return p, q, k, l
	}
	end := func(p, q *sctpddp.Session) {
		t.Helper()
		check(errors.Join(p.Close(), q.Close()))
		carryDDP(e)
		for ev, ok := p.Event(); ok; ev, ok = p.Event() {
			if ev.Err != nil {
				t.Fatal(ev.Err)
			}
		}
		x.release(p)
		y.release(q)
		carryDDP(e)
	}

	// One with the enhanced form, whose segments come the wrong way round: of those ahead of order
	// some are held and some are placed, and one Send waits for its receive.
	p, q, k, l := accepted(iwarp.DefaultStartConfig(), "come in")
	p.Journal().(*DDP).Belongs(40)
	q.Journal().(*DDP).Belongs(41)
	x.a.SetMaxPayload(900)
	p.MULPDU()
	for i := range 4 {
		write(p, segment(i%2 == 0, fmt.Sprintf("what is said is said, the %dth time", i)))
	}
	for _, i := range []int{3, 2, 1, 0} {
		y.Input(y.now, y.a.Pick(i))
	}
	waits := true
	l.stalls = func() bool { return waits }
	write(p, segment(false, "a Send that waits"))
	write(q, segment(true, "an answer"))
	carryDDP(e)
	waits = false
	q.Resume()
	if len(l.got) != 5 || len(k.got) != 1 {
		t.Fatalf("%q and %q have come", k.got, l.got)
	}
	end(p, q)

	// Many are held, and all taken at once.
	p, q, _, l = accepted(plainStart, "")
	const many = 20
	for range many {
		write(p, segment(true, ""))
	}
	for i := range many {
		y.Input(y.now, y.a.Pick(many-1-i))
	}
	if len(l.got) != many {
		t.Fatalf("%q have come", l.got)
	}
	end(p, q)

	// On the same stream: rejected, refused, withdrawn.
	p, q = open(iwarp.DefaultStartConfig(), ""), asked()
	check(q.Reject([]byte("not today")))
	y.release(q)
	carryDDP(e)
	if ev, _ := p.Event(); ev.Kind != sctpddp.EventRejected {
		t.Fatalf("%+v", ev)
	}
	x.release(p)
	carryDDP(e)
	p, q = open(plainStart, ""), asked()
	check(q.Refuse())
	carryDDP(e)
	x.release(p)
	y.release(q)
	p, q = open(plainStart, ""), asked()
	check(p.Close())
	carryDDP(e)
	x.release(p)
	y.release(q)

	// More is held than may be, by the session and by all.
	p, q, _, l = accepted(plainStart, "")
	l.stalls = func() bool { return true }
	write(p, segment(false, ""))
	for y.Step(y.now); l.failed == nil; carryDDP(e) {
		write(p, segment(false, strings.Repeat("more than there is room for", 20)))
	}
	end(p, q)

	// What no peer says breaks a session off, and what breaks it off is not for the next one.
	p, q, _, _ = accepted(plainStart, "")
	x.a.Inject(sctpddptest.Sent{Stream: p.Stream(), PPID: 77, Data: []byte("what is it?")})
	carryDDP(e)
	if q.State() != sctpddp.StateFailed {
		t.Fatal(q.State())
	}
	q.Event()
	y.release(q)
	check(p.Abort())
	x.release(p)

	// An answer that the peer does not hear, and one that cannot be.
	p, q = open(iwarp.DefaultStartConfig(), ""), asked()
	_, err := q.Accept(iwarp.StartConfig{IRD: 1, ORD: 1}, nil)
	check(err)
	x.a.Inject(sctpddptest.Sent{Stream: 9, PPID: sctpddp.PPIDControl, Data: []byte{0, 0, 0, 1}})
	carryDDP(e)
	check(p.FailNegotiation(errors.New("it will not do")))
	carryDDP(e)
	q.Abandon()
	lost, ok := y.Request()
	if !ok {
		t.Fatal("there is no request")
	}
	for _, s := range []*sctpddp.Session{p, q, lost} {
		s.Lost(sctpddp.LossFailure, errors.New("it is silent"))
		s.Event()
	}
	x.Down()
	y.Down()

	// An association that nobody has used is shut down.
	for _, x := range newDDPEnds(t, r, sctpddptest.Link{}, sctpddp.Config{Unused: unused}) {
		x.Step(x.now.Add(unused))
		if x.a.Downs != 1 {
			t.Fatal("it is not shut down")
		}
	}
}

// unused is how long an association waits for somebody to use it.
const unused = time.Minute

// Each call of a Mux and of its Sessions that may change anything is recorded: one that is new has
// to be put into either list.
func TestDDPMethods(t *testing.T) {
	called := func(first, last sctpddp.CallKind) (names []string) {
		for kind := first; kind <= last; kind++ {
			names = append(names, (opDDP + Op(kind)).String())
		}
		return names
	}
	for typ, known := range map[reflect.Type][]string{
		reflect.TypeFor[*sctpddp.Mux](): append(called(sctpddp.CallOpen, sctpddp.CallDown),
			"Streams", "Stats", "Session", "Sessions", "String",
			"Deadline", // which forgets no more than Step would
			"Lost"),    // which calls what is recorded
		reflect.TypeFor[*sctpddp.Session](): append(called(sctpddp.CallInput, sctpddp.CallLost),
			"Stream", "State", "Active", "Err", "Params", "Stats", "Request", "Blocked", "Ending",
			"Pending", "Journal",
			"Unacked", "Quiet"), // which forget what is acknowledged, as all others do
	} {
		for _, name := range known {
			if _, ok := typ.MethodByName(name); !ok {
				t.Errorf("%v has no method %s", typ, name)
			}
		}
		for i := range typ.NumMethod() {
			if name := typ.Method(i).Name; !slices.Contains(known, name) {
				t.Errorf("%v.%s: is it recorded?", typ, name)
			}
		}
	}
}

// wander records what two Muxes do that are used at random, by peers that keep to no rules.
func wander(t testing.TB, r *Recorder, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 9))
	chance := func(of int) bool { return rng.IntN(of) == 0 }
	e := newDDPEnds(t, r, sctpddptest.Link{Seed: seed, Reorder: 1 + rng.IntN(8),
		Room: 4 + rng.IntN(40), Shuffle: chance(2), Out: 6, In: 6}, sctpddp.Config{
		Backlog: rng.IntN(4), HoldSession: 300 + rng.IntN(3000), HoldAll: 500 + rng.IntN(9000),
		Allowance: 1 + rng.IntN(200), Opaque: chance(5), Start: start(rng), Linger: time.Second})
	for range 600 {
		x := e[rng.IntN(2)]
		switch rng.IntN(14) {
		case 0:
			if s, err := x.Open(start(rng), make([]byte, rng.IntN(20))); err == nil {
				x.give(s)
			}
		case 1:
			if s, err := x.OpenOn(uint16(rng.IntN(8)), start(rng), nil); err == nil {
				x.give(s)
			}
		case 2:
			if s, ok := x.Request(); ok {
				x.give(s)
			}
		case 3:
			x.now = x.now.Add(time.Duration(rng.IntN(500)) * time.Millisecond)
			x.Step(x.now)
		case 4:
			x.a.Inject(hostile(rng))
		case 5:
			weather(rng, x.a)
		case 6, 7, 8, 9:
			if len(x.given) > 0 {
				use(rng, x, x.given[rng.IntN(len(x.given))])
			}
		default:
			if m, ok := x.a.Next(); ok {
				x.Input(x.now, m)
			}
		}
	}
	for _, x := range e {
		over := errors.New("it is over")
		switch rng.IntN(3) {
		case 0:
			x.Lost(sctpddp.LossAbort, over)
		case 1:
			x.Down()
			for _, s := range x.given {
				s.Lost(sctpddp.LossAbort, over)
			}
		default:
			for _, s := range slices.Clone(x.given) {
				x.release(s)
			}
			x.Step(x.now.Add(time.Minute))
			x.Down()
		}
	}
}

// start is what somebody may ask for.
func start(rng *rand.Rand) iwarp.StartConfig {
	cfg := plainStart
	if rng.IntN(2) == 0 {
		cfg = iwarp.DefaultStartConfig()
		cfg.IRD, cfg.ORD = uint16(rng.IntN(9)), uint16(rng.IntN(9))
		cfg.MaxIRD = max(cfg.IRD, uint16(rng.IntN(9)))
		cfg.ClientServer, cfg.RTR = rng.IntN(3) == 0, iwarp.RTRKinds(rng.IntN(4))
	}
	return cfg
}

// hostile is a message that a peer may send that keeps to no rules.
func hostile(rng *rand.Rand) sctpddptest.Sent {
	b := binary.BigEndian.AppendUint16(nil, uint16(rng.IntN(6)))
	ppid := uint32(sctpddp.PPIDControl)
	switch rng.IntN(8) {
	case 0:
		ppid, b = uint32(rng.IntN(20)), b[:rng.IntN(3)]
	case 1, 2:
		ppid, b = sctpddp.PPIDSegment, append(b, segment(rng.IntN(2) == 0, "hostile")...)
	default:
		if rng.IntN(2) == 0 {
			b[1] = 0
		}
		b = binary.BigEndian.AppendUint16(b, uint16(rng.IntN(9)))
		b = append(b, make([]byte, rng.IntN(9))...)
	}
	return sctpddptest.Sent{Stream: uint16(rng.IntN(7)), PPID: ppid, Data: b}
}

// weather changes what an association lets through.
func weather(rng *rand.Rand, a *sctpddptest.Assoc) {
	switch rng.IntN(6) {
	case 0:
		a.HoldAcks()
	case 1:
		a.ReleaseAcks()
	case 2:
		a.ShutWindow()
	case 3, 4:
		a.OpenWindow()
	default:
		a.SetMaxPayload(500 + rng.IntN(900))
	}
}

// use does something with a session; errors are what it says to that, and are recorded.
func use(rng *rand.Rand, x *ddpEnd, s *sctpddp.Session) {
	switch rng.IntN(24) {
	case 0, 1, 2:
		_, _ = s.Accept(start(rng), make([]byte, rng.IntN(600)))
	case 3:
		_ = s.Reject(make([]byte, rng.IntN(20)))
	case 4:
		_ = s.Refuse()
	case 5:
		_ = s.Close()
	case 6:
		_ = s.Abort()
	case 7:
		if rng.IntN(4) == 0 {
			s.Abandon()
		}
	case 8:
		_ = s.FailNegotiation(errors.New("no"))
	case 9:
		if rng.IntN(9) == 0 {
			s.Lost(sctpddp.LossRestart, nil)
		}
	case 10, 11, 12, 13:
		u := x.sinks[s]
		if u == nil {
			u = &ddpUser{stalls: func() bool { return rng.IntN(4) == 0 }}
			x.sinks[s] = u
		}
		_ = s.Attach(u)
	case 14:
		s.Resume()
	case 15:
		x.release(s)
	case 16:
		s.MULPDU()
	case 17:
		for _, ok := s.Event(); ok; _, ok = s.Event() {
		}
	case 18:
		_ = s.Step()
	default:
		_, _ = s.WriteFrom(bytes.NewReader(segment(rng.IntN(2) == 0, strings.Repeat("x",
			rng.IntN(60)))))
	}
}

// Whatever is done with DDP's sessions, and said to them, is played again without a difference; and
// in all of that each call is made, and each thing asked for.
func TestReplayDDP(t *testing.T) {
	var seen [numOps]int
	for seed := range uint64(60) {
		b := written(t, func(r *Recorder) {
			wander(t, r, seed)
			streams(t, r)
		})
		o := play(b)
		if !errors.Is(o.err, io.EOF) || len(o.diffs) > 0 || o.calls < 100 {
			t.Fatalf("seed %d: %v, %q, %d calls", seed, o.err, o.diffs, o.calls)
		}
		if o.held != 0 {
			t.Errorf("seed %d: %d octets are held behind the end of all", seed, o.held)
		}
		in, err := NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		for rec, err := in.Next(); err == nil; rec, err = in.Next() {
			if rec.Lost {
				t.Fatalf("seed %d: %v is lost", seed, rec.Subject)
			}
			for i := range rec.Steps {
				seen[rec.Steps[i].Op]++
			}
		}
	}
	for op := opDDP; op < numOps; op++ {
		if seen[op] == 0 {
			t.Errorf("%v (%d) is in no recording", op, op)
		}
	}
}

// What differs of DDP's sessions is told, once for an association.
func TestDifferenceDDP(t *testing.T) {
	b := written(t, func(r *Recorder) { streams(t, r) })
	wantDifferences(t, b, []alteration{
		{"the octets of a request", func(s *Step) bool {
			if s.Op != opDDP+Op(sctpddp.CallMuxInput) || !bytes.HasSuffix(s.Octets, []byte("there?")) {
				return false
			}
			s.Octets[len(s.Octets)-1] = '!'
			return true
		}, []string{"vrnic1, DDP's streams from 10.0.0.2:7 to 10.0.0.1:9", "the same with other values",
			"gives out number=1"}},
		{"the answer to it", func(s *Step) bool {
			if s.Op != opDDPSend || !bytes.HasSuffix(s.Octets, []byte("come in")) {
				return false
			}
			s.Octets[3] = byte(sctpddp.FuncAccept)
			return true
		}, []string{"vrnic1, DDP session 1, on stream 0", "octet 3 is 0x02 in the one and 0x06"}},
		{"the number of a segment", func(s *Step) bool {
			if s.Op != opDDPSend || !bytes.HasSuffix(s.Octets, []byte("the 2th time")) {
				return false
			}
			s.Octets[1]++
			return true
		}, []string{"QP 40 of vrnic0, DDP session 1", "octet 1 is"}},
		{"the octets of a segment", func(s *Step) bool {
			if s.Op != opSource || !bytes.HasSuffix(s.Octets, []byte("the 2th time")) {
				return false
			}
			s.Octets[20] ^= 1
			return true
		}, []string{"QP 40 of vrnic0, DDP session 1", "octet 22 is"}},
		{"the number of a segment that comes", func(s *Step) bool {
			if s.Op != opDDP+Op(sctpddp.CallInput) || !bytes.HasSuffix(s.Octets, []byte("the 2th time")) {
				return false
			}
			s.Octets[1]--
			return true
		}, []string{"QP 41 of vrnic1, DDP session 1", "recorded: "}},
		{"what is held of one", func(s *Step) bool {
			if s.Op != opDDPAhead || s.Args[0] != iwarp.TaggedHeaderLen {
				return false
			}
			s.Args[0]++
			return true
		}, []string{"QP 41 of vrnic1, DDP session 1", "15 octets", "14 octets"}},
		{"the room that there is", func(s *Step) bool {
			if s.Op != opTake {
				return false
			}
			s.Args[1] = 0
			return true
		}, []string{"QP 41 of vrnic1, DDP session 1", "replayed: "}},
		{"a receive that is not there", func(s *Step) bool {
			if s.Op != opDDPSegment || s.Args[1] != codeNoReceive {
				return false
			}
			s.Args[1], s.Text = 0, ""
			return true
		}, []string{"QP 41 of vrnic1, DDP session 1", "replayed: returns"}},
		{"the peer's adaptation indication", func(s *Step) bool {
			if s.Op != opAdaptation {
				return false
			}
			s.Args[0] = 7
			return true
		}, []string{"vrnic0, DDP's streams", "recorded: Streams"}},
		{"the requests that wait", func(s *Step) bool {
			if s.Op != opAsked {
				return false
			}
			s.Args[0] = 3
			return true
		}, []string{"vrnic1, DDP's streams", "replayed: sends"}},
		{"the time", func(s *Step) bool {
			if s.Op != opDDP+Op(sctpddp.CallMuxStep) || s.Args[0] < uint64(unused) {
				return false
			}
			s.Args[0] -= uint64(2 * time.Second)
			return true
		}, []string{"vrnic0, DDP's streams", "recorded: Step at=59s", "replayed: nothing"}},
	})
}

// Two runs whose sessions come to something else differ, and those that do not are the same.
func TestDiffDDP(t *testing.T) {
	b := written(t, func(r *Recorder) { streams(t, r) })
	if s := First(readRun(t, b), readRun(t, written(t, func(r *Recorder) {
		streams(t, r)
	}))); s != "" {
		t.Errorf("the same: %s", s)
	}
	for want, f := range map[string]func(s *Step) bool{
		"outcome 1: ": func(s *Step) bool {
			if s.Op != opAgreed {
				return false
			}
			s.Text = strings.ReplaceAll(s.Text, "32", "31")
			return true
		},
		"event 1: Refused sctpddp: the peer refused": func(s *Step) bool {
			if s.Op != opDDPEvent || sctpddp.EventKind(s.Args[0]) != sctpddp.EventRejected {
				return false
			}
			s.Args[0], s.Text = uint64(sctpddp.EventRefused), sctpddp.ErrRefused.Error()
			return true
		},
	} {
		if s := First(readRun(t, change(t, b, f)), readRun(t, b)); !strings.Contains(s, want) {
			t.Errorf("%q is without %q", s, want)
		}
	}
}

// What is done by a session whose recording has ended is not known, so that neither is what its Mux
// does from then on; and of one for whose beginning there was no room there is nothing.
func TestDDPNoRoom(t *testing.T) {
	for name, f := range map[string]func(r *Recorder, e [2]*ddpEnd){
		"a session": func(_ *Recorder, e [2]*ddpEnd) {
			e[0].given[0].Journal().(*DDP).lose()
		},
		"one that is there still": func(r *Recorder, e [2]*ddpEnd) {
			// There is room for what says that the next one is there, and not for the call.
			c := r.Program("it", 1)
			q := r.to.(*queue)
			for range MaxWaiting >> 20 {
				q.mu.Lock()
				n := len(q.b)
				q.mu.Unlock()
				c.Call(3, 0, make([]byte, min(1<<20, max(MaxWaiting-n-700, 1))), nil, "")
			}
			if s, err := e[0].Open(plainStart, make([]byte, sctpddp.MaxPrivateData)); err == nil {
				_ = s.Close()
			}
		},
	} {
		var e [2]*ddpEnd
		b := written(t, func(r *Recorder) {
			e = newDDPEnds(t, r, sctpddptest.Link{}, sctpddp.Config{Backlog: 9})
			s, err := e[0].Open(plainStart, nil)
			if err != nil {
				t.Fatal(err)
			}
			e[0].give(s)
			f(r, e)
			_ = s.Close()
			carryDDP(e)
			e[0].release(s)
			for range 3 {
				if s, err := e[0].Open(plainStart, nil); err == nil && s.Journal() != nil {
					t.Errorf("%s: the next one is recorded", name)
				}
			}
			e[0].Down()
		})
		o := play(b)
		if !errors.Is(o.err, io.EOF) || len(o.diffs) > 0 {
			t.Errorf("%s: %v, %q", name, o.err, o.diffs)
		}
		lost := 0
		for _, l := range o.lines {
			if strings.Contains(l, "vrnic0") && strings.Contains(l, "had no room") {
				lost++
			}
		}
		if lost != 2 {
			t.Errorf("%s: %d are lost, want a session and its streams", name, lost)
		}
	}
}

// When a recording has ended nobody is told any more.
func TestDDPEnds(t *testing.T) {
	var s *sctpddp.Session
	written(t, func(r *Recorder) {
		e := newDDPEnds(t, r, sctpddptest.Link{}, sctpddp.Config{})
		var err error
		if s, err = e[0].Open(plainStart, nil); err != nil || s.Journal() == nil {
			t.Fatal(err, "it is not recorded")
		}
	})
	s.Resume()
	if s.Journal() != nil {
		t.Error("there is somebody who hears of it")
	}
}

// A file that says what no recording does is refused, and takes no memory for that.
func TestHostileDDP(t *testing.T) {
	for name, f := range map[string]func(r *Recorder){
		"a session of nothing": func(r *Recorder) {
			tape := r.Tape("vrnic0", 0)
			tape.about.Kind, tape.about.DDP = DDPSession, &DDPOf{Streams: 7}
			tape.offer()
		},
		"one that was not given out": func(r *Recorder) {
			d := NewDDP(r.Tape("vrnic0", 0))
			tape := d.open(&DDPOf{Number: 3})
			tape.call(opDDP+Op(sctpddp.CallStep), nil, "")
			tape.done(0, nil, nil)
		},
		"another session with that number": func(r *Recorder) {
			d := NewDDP(r.Tape("vrnic0", 0))
			d.open(&DDPOf{Number: 3})
			d.open(&DDPOf{Number: 3})
		},
		"a session without a kind of its own": func(r *Recorder) {
			tape := r.Tape("vrnic0", 0)
			tape.about.Kind = DDPSession
			tape.offer()
		},
		"a Mux that has not begun": func(r *Recorder) {
			tape := r.Tape("vrnic0", 0)
			NewDDP(tape)
			tape.call(opDDP+Op(sctpddp.CallDown), nil, "")
			tape.done(0, nil, nil)
		},
	} {
		if o := play(written(t, f)); o.err == nil || errors.Is(o.err, io.EOF) {
			t.Errorf("%s: %v", name, o.err)
		}
	}
	in, err := NewReader(bytes.NewReader(written(t, far)))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPlayer(in.Meta)
	p.held = heldRoom - 10<<20
	n := 0
	for ; err == nil; n++ {
		var rec Record
		if rec, err = in.Next(); err == nil {
			_, _, err = p.Take(&rec)
		}
	}
	if !errors.Is(err, errHeld) || n != 7 {
		t.Errorf("a file may ask for much: %v, behind %d records", err, n)
	}
}

// far is a Mux on each of whose streams something has come that is far ahead of order.
func far(r *Recorder) {
	tape := r.Tape("vrnic0", 0)
	NewDDP(tape)
	call := func(kind sctpddp.CallKind, octets []byte, text string, args ...uint64) {
		tape.call(opDDP+Op(kind), octets, text, args...)
	}
	call(sctpddp.CallNew, nil, asText(&sctpddp.Config{}), 0)
	tape.step(opAdaptation, nil, "", sctpddp.IndicationDDP, 1)
	tape.step(opStreams, nil, "", 64, 64)
	tape.done(0, nil, nil)
	for i := range uint64(64) {
		call(sctpddp.CallMuxInput, []byte{0x70, 0, 0, 1}, "", 0, i, sctpddp.PPIDControl, 1<<20, 1)
		tape.step(opTake, nil, "", ((1<<15)-16)*72, 1)
		tape.step(opTake, nil, "", 4, 1)
		tape.done(0, nil, nil)
	}
}
