package sctpddp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// A whole session: asked for, accepted, used both ways, closed by one side and then by the other.
//
// SDDP-021, 025, 026, 027, 035, 036, 037, 043; ESDDP-015.
func TestSession(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, err := a.OpenOn(3, plain, []byte("ping"))
	if err != nil {
		t.Fatal(err)
	}
	y := requested(t, a, b)
	if r, ok := y.Request(); !ok || string(r.PrivateData) != "ping" || r.Enhanced || y.Stream() != 3 ||
		y.Active() || !x.Active() {
		t.Errorf("request %+v", r)
	}
	wantState(t, y, StateAsked)
	wantSent(t, b.a, 0, "") // nothing before the program has decided
	if _, err := y.Accept(plain, []byte("pong")); err != nil {
		t.Fatal(err)
	}
	run(a, b)
	kx, ky := &sink{}, &sink{}
	if err := errors.Join(x.Attach(kx), y.Attach(ky)); err != nil {
		t.Fatal(err)
	}
	writeText(t, x, "one")
	writeText(t, x, "two")
	writeText(t, y, "three")
	x.Close()
	run(a, b)
	wantState(t, x, StateClosing)
	wantState(t, y, StatePeerClosed)
	if _, err := x.WriteFrom(strings.NewReader("late")); !errors.Is(err, ErrState) {
		t.Errorf("a segment behind Terminate: %v", err)
	}
	writeText(t, y, "four") // it may still send
	y.Close()
	run(a, b)
	wantState(t, x, StateOver)
	wantState(t, y, StateOver)
	wantSent(t, a.a, 0, "0:1 1:seg 2:seg 3:4")
	wantSent(t, b.a, 0, "0:2 1:seg 2:seg 3:4")
	wantLog(t, ky, "one", "two")
	wantLog(t, kx, "three", "four")
	if got := events(x); got != "Accepted(pong) Closed" {
		t.Error(got)
	}
	if got := events(y); got != "Request(ping) Closed" {
		t.Error(got)
	}
	for _, s := range append(a.a.Log(), b.a.Log()...) {
		if s.Stream != 3 {
			t.Errorf("on stream %d", s.Stream)
		}
	}
	if !x.Quiet() || !y.Quiet() || x.Err() != nil || y.Err() != nil {
		t.Errorf("quiet %t %t, %v, %v", x.Quiet(), y.Quiet(), x.Err(), y.Err())
	}
}

// states brings a session on stream 3 into each state. next is the number of the peer's next
// message.
var states = map[State]func(t *testing.T, peer *sctpddptest.Assoc, b *end) (s *Session, next int){
	StateIdle: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		inject(peer, 3, PPIDSegment, write(9, "early"))
		run(b)
		return b.Session(3), 0
	},
	StateInitiating: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		s, err := b.OpenOn(3, plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		take(peer)
		return s, 0
	},
	StateWithdrawing: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		s, err := b.OpenOn(3, plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		take(peer)
		s.Close()
		take(peer)
		return s, 0
	},
	StateAsked: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		inject(peer, 3, PPIDControl, ctl(0, FuncInitiate, ""))
		run(b)
		s, _ := b.Request()
		return s, 1
	},
	StateOpen: openPassive,
	StateClosing: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		s, n := openPassive(t, peer, b)
		s.Close()
		take(peer)
		return s, n
	},
	StatePeerClosed: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		s, n := openPassive(t, peer, b)
		inject(peer, 3, PPIDControl, ctl(n, FuncTerminate, ""))
		run(b)
		return s, n + 1
	},
	StateOver: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		s, n := openPassive(t, peer, b)
		s.Close()
		inject(peer, 3, PPIDControl, ctl(n, FuncTerminate, ""))
		run(b)
		take(peer)
		return s, n + 1
	},
	StateFailed: func(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
		s, n := openPassive(t, peer, b)
		inject(peer, 3, 50, "0000")
		run(b)
		take(peer)
		return s, n
	},
}

func openPassive(t *testing.T, peer *sctpddptest.Assoc, b *end) (*Session, int) {
	inject(peer, 3, PPIDControl, ctl(0, FuncInitiate, ""))
	run(b)
	s, _ := b.Request()
	if _, err := s.Accept(plain, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(&sink{}); err != nil {
		t.Fatal(err)
	}
	take(peer)
	return s, 1
}

// take has everything arrive at a crafted peer, so that it is acknowledged.
func take(peer *sctpddptest.Assoc) {
	for {
		if _, ok := peer.Next(); !ok {
			return
		}
	}
}

// Every state and everything that can be the peer's next message in it. What is not listed is
// illegal: the session ends, with a Terminate if our last message was not out, and the association
// lives.
//
// SDDP-011, 018, 020, 023, 028, 034, 035, 036, 039, 045; ESDDP-012.
func TestSequences(t *testing.T) {
	type cell struct {
		state State
		msg   string
	}
	legal := map[cell]State{
		{StateIdle, "Initiate"}: StateAsked, {StateIdle, "Enhanced Initiate"}: StateAsked,
		{StateInitiating, "Accept"}: StateOpen, {StateInitiating, "Reject"}: StateOver,
		{StateInitiating, "Terminate"}: StateOver,
		{StateWithdrawing, "Accept"}:   StateClosing, {StateWithdrawing, "Reject"}: StateOver,
		{StateWithdrawing, "Terminate"}: StateOver,
		{StateAsked, "segment"}:         StateAsked, {StateAsked, "Terminate"}: StateOver,
		{StateOpen, "segment"}: StateOpen, {StateOpen, "Terminate"}: StatePeerClosed,
		{StateClosing, "segment"}: StateClosing, {StateClosing, "Terminate"}: StateOver,
	}
	block := "00010001"
	for from, enter := range states {
		for _, m := range []struct {
			name string
			ppid uint32
			make func(n int) string
		}{
			{"segment", PPIDSegment, func(n int) string { return write(n, "x") }},
			{"Initiate", PPIDControl, func(n int) string { return ctl(n, FuncInitiate, "") }},
			{"Accept", PPIDControl, func(n int) string { return ctl(n, FuncAccept, "") }},
			{"Reject", PPIDControl, func(n int) string { return ctl(n, FuncReject, "") }},
			{"Terminate", PPIDControl, func(n int) string { return ctl(n, FuncTerminate, "") }},
			{"Enhanced Initiate", PPIDControl, func(n int) string {
				return ctl(n, FuncEnhancedInitiate, "") + block
			}},
			{"Enhanced Accept", PPIDControl, func(n int) string {
				return ctl(n, FuncEnhancedAccept, "") + block
			}},
			{"Enhanced Reject", PPIDControl, func(n int) string {
				return ctl(n, FuncEnhancedReject, "") + block
			}},
			{"function 0", PPIDControl, func(n int) string { return ctl(n, 0, "") }},
			{"function 8", PPIDControl, func(n int) string { return ctl(n, 8, "") }},
			{"function ffff", PPIDControl, func(n int) string { return ctl(n, 0xffff, "") }},
			{"513 octets", PPIDControl, func(n int) string {
				return ctl(n, FuncInitiate, strings.Repeat("p", 513))
			}},
			{"short block", PPIDControl, func(n int) string { return ctl(n, FuncEnhancedInitiate, "abc") }},
			{"short segment", PPIDSegment, func(n int) string { return write(n, "")[:30] }},
			{"short control", PPIDControl, func(n int) string { return ctl(n, 1, "")[:6] }},
			{"no number", PPIDSegment, func(n int) string { return "00" }},
			{"PPID 0", 0, func(n int) string { return write(n, "x") }},
			{"PPID 50", 50, func(n int) string { return write(n, "x") }},
		} {
			t.Run(fmt.Sprintf("%v/%s", from, m.name), func(t *testing.T) {
				peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 4})
				// A neighbour, which is not concerned.
				inject(peer, 5, PPIDControl, ctl(0, FuncInitiate, ""))
				run(b)
				other, _ := b.Request()
				s, next := enter(t, peer, b)
				wantState(t, s, from)
				events(s)
				before := len(b.a.Log())
				closed := from == StateWithdrawing || from == StateClosing || from == StateOver ||
					from == StateFailed
				illegal := s.Stats().Illegal + s.Stats().Ignored
				inject(peer, 3, m.ppid, m.make(next))
				run(b)
				to, ok := legal[cell{from, m.name}]
				if !ok && from != StateOver {
					to = StateFailed
				} else if !ok {
					to = StateOver
				}
				wantState(t, s, to)
				switch {
				case ok && to == StateOver && from == StateAsked:
					wantSent(t, b.a, before, "0:4") // D11: withdrawn
				case ok || closed:
					wantSent(t, b.a, before, "")
				default:
					wantSent(t, b.a, before, fmt.Sprintf("%d:4", map[State]int{StateInitiating: 1, StateOpen: 1,
						StatePeerClosed: 1}[from]))
				}
				if got := s.Stats().Illegal + s.Stats().Ignored - illegal; (got != 0) == ok {
					t.Errorf("%d counted as illegal", got)
				}
				var pe *ProtocolError
				if ev := events(s); !ok && !closed && (ev != "Failed" || !errors.As(s.Err(), &pe) ||
					pe.State != from || pe.Stream != 3) {
					t.Errorf("events %q, error %v", ev, s.Err())
				}
				wantState(t, other, StateAsked)
				if b.a.Downs != 0 {
					t.Error("the association was shut down")
				}
			})
		}
	}
}

// The verdict on a session is that of its numbers, whatever order the messages come in.
//
// SDDP-033, 050, 069, 070, 071.
func TestArrivalOrder(t *testing.T) {
	for name, msgs := range map[string][]struct {
		ppid uint32
		data string
	}{
		"legal": {
			{PPIDControl, ctl(0, FuncAccept, "pd")}, {PPIDSegment, write(1, "one")},
			{PPIDSegment, send(2, "second")}, {PPIDSegment, write(3, "three")},
			{PPIDControl, ctl(4, FuncTerminate, "")},
		},
		"second accept": {
			{PPIDControl, ctl(0, FuncAccept, "")}, {PPIDSegment, write(1, "one")},
			{PPIDControl, ctl(2, FuncAccept, "")}, {PPIDSegment, write(3, "three")},
			{PPIDControl, ctl(4, FuncTerminate, "")},
		},
		"behind terminate": {
			{PPIDControl, ctl(0, FuncAccept, "")}, {PPIDSegment, write(1, "one")},
			{PPIDSegment, write(2, "second")}, {PPIDControl, ctl(3, FuncTerminate, "")},
			{PPIDSegment, write(4, "four")},
		},
		"malformed": {
			{PPIDControl, ctl(0, FuncAccept, "")}, {PPIDSegment, write(1, "one")},
			{PPIDSegment, write(2, "")[:20]}, {PPIDControl, ctl(3, FuncTerminate, "")},
			{PPIDSegment, write(4, "four")},
		},
		"segment first": {
			{PPIDSegment, write(0, "zero")}, {PPIDSegment, write(1, "one")},
			{PPIDSegment, write(2, "second")}, {PPIDControl, ctl(3, FuncTerminate, "")},
			{PPIDSegment, write(4, "four")},
		},
	} {
		var first string
		permute([]int{0, 1, 2, 3, 4}, func(order []int) {
			peer, b := crafted(t, sctpddptest.Link{}, Config{})
			s, err := b.OpenOn(3, plain, nil)
			if err != nil {
				t.Fatal(err)
			}
			take(peer)
			k := &sink{}
			var ev string
			for _, n := range order {
				m := msgs[n]
				// As SCTP sees them they come in order: these numbers are others.
				peer.Inject(sctpddptest.Sent{Stream: 3, PPID: m.ppid, Data: unhex(m.data)})
				run(b)
				ev = strings.TrimSpace(ev + " " + events(s))
				if s.State() == StateOpen || s.State() == StatePeerClosed {
					s.Attach(k)
				}
			}
			ev = strings.TrimSpace(ev + " " + events(s))
			for i, l := range k.log {
				if text, ok := map[string]string{"placed 3": "one", "placed 6": "second",
					"placed 5": "three"}[l]; ok {
					k.log[i] = text
				}
			}
			got := fmt.Sprintf("%v %q %q %v", s.State(), ev, k.log, s.Err())
			if first == "" {
				first = got
			} else if got != first {
				t.Errorf("%s in order %v:\n %s\n want %s", name, order, got, first)
			}
		})
		t.Logf("%s: %s", name, first)
		if name == "legal" && !strings.HasPrefix(first,
			`PeerClosed "Accepted(pd) Closed" ["one" "second" "three"]`) {
			t.Error(first)
		}
	}
}

func permute(p []int, f func([]int)) {
	var rec func(i int)
	rec = func(i int) {
		if i == len(p) {
			f(p)
			return
		}
		for j := i; j < len(p); j++ {
			p[i], p[j] = p[j], p[i]
			rec(i + 1)
			p[i], p[j] = p[j], p[i]
		}
	}
	rec(0)
}

// A segment that comes ahead of order is placed before what is missing comes, and delivered behind
// it.
//
// SDDP-069, SDDP-071.
func TestPlacedAhead(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, ky := opened(t, a, b)
	for _, text := range []string{"one", "two", "three"} {
		writeText(t, x, text)
	}
	b.Input(epoch, b.a.Pick(2))
	b.Input(epoch, b.a.Pick(1))
	if fmt.Sprint(ky.placed) != "[three two]" || len(ky.log) != 0 || y.Stats().Placed != 2 {
		t.Errorf("placed %v, delivered %v", ky.placed, ky.log)
	}
	// Their TSNs may all be acknowledged: that is not what counts.
	b.Input(epoch, b.a.Pick(0))
	wantLog(t, ky, "one", "placed 3", "placed 5")
}

// The numbers wrap, with messages out of order all the time.
//
// SDDP-015, 029, 032, 072.
func TestNumbersWrap(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{Seed: 3, Reorder: 50})
	x, _, _, ky := opened(t, a, b)
	const n = 200_000
	sentSegs := 0
	for i := 0; i < n; {
		for range 100 {
			writeText(t, x, "")
			i++
		}
		for range 70 + i%60 {
			if m, ok := b.a.Next(); ok {
				b.Input(epoch, m)
			}
		}
	}
	x.Close()
	run(a, b)
	if len(ky.log) != n || x.Err() != nil {
		t.Errorf("%d delivered, %v", len(ky.log), x.Err())
	}
	for i, s := range a.a.Log() {
		if got := int(s.Data[0])<<8 | int(s.Data[1]); got != i&0xffff {
			t.Fatalf("message %d has number %d", i, got)
		}
		if s.PPID == PPIDSegment {
			sentSegs++
		}
	}
	if sentSegs != n {
		t.Errorf("%d segments", sentSegs)
	}
	if len(ky.placed) == 0 {
		t.Error("nothing came out of order")
	}
}

// A message whose number cannot be right ends the session: used before, too old, too far ahead for
// what is missing. SDDP-075, 076, 077, 078.
func TestBadNumbers(t *testing.T) {
	for name, tt := range map[string]struct {
		msgs []string
		good bool
	}{
		"again":                {msgs: []string{write(1, "a"), write(1, "b")}},
		"again ahead":          {msgs: []string{write(3, "a"), write(3, "b")}},
		"old":                  {msgs: []string{write(1, "a"), write(0, "b")}},
		"half round":           {msgs: []string{write(1+32767, "a")}},
		"far":                  {msgs: []string{write(20000, "a")}},
		"a lead of 100":        {msgs: []string{write(101, "a")}, good: true},
		"the allowance":        {msgs: []string{write(1+1024, "a")}, good: true},
		"beyond the allowance": {msgs: []string{write(1+1025, "a")}},
	} {
		peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
		s, _ := openPassive(t, peer, b)
		for _, m := range tt.msgs {
			inject(peer, 3, PPIDSegment, m)
		}
		run(b)
		if want := map[bool]State{true: StateOpen, false: StateFailed}[tt.good]; s.State() != want {
			t.Errorf("%s: %v, %v", name, s.State(), s.Err())
		}
		if !tt.good {
			wantSent(t, b.a, 1, "1:4")
		}
	}
	// However much may be missing, half of all numbers are behind.
	for _, ssn := range []int{1 + 32767, 0, 0xffff} {
		peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
		s, _ := openPassive(t, peer, b)
		s.Input(Message{Stream: 3, PPID: PPIDSegment, Unordered: true, Missing: 60000,
			Data: unhex(write(ssn, "x"))})
		wantState(t, s, StateFailed)
	}
	// What SCTP knows to be missing may be missing.
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
	s, _ := openPassive(t, peer, b)
	for i := range 20000 {
		inject(peer, 3, PPIDSegment, write(1+i, ""))
	}
	b.Input(epoch, b.a.Pick(19999))
	wantState(t, s, StateOpen)
	run(b)
	if s.Stats().Ahead != 1 || s.State() != StateOpen {
		t.Errorf("%+v, %v", s.Stats(), s.Err())
	}
}

// Bogus numbers cost nothing: what a session holds is bounded by what has come. SDDP-076.
func TestHeldIsBounded(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1, HoldSession: 1000, HoldAll: 100_000})
	s, _ := openPassive(t, peer, b)
	for i := range 30 {
		inject(peer, 3, PPIDSegment, send(3+i, strings.Repeat("x", 30)))
	}
	run(b)
	wantState(t, s, StateFailed)
	if s.Stats().Overflow != 1 || s.Stats().Ahead < 10 {
		t.Errorf("%+v: %v", s.Stats(), s.Err())
	}
	// All sessions together.
	peer, b = crafted(t, sctpddptest.Link{}, Config{Backlog: 10, HoldSession: 1 << 20,
		HoldAll: 20_000})
	failed := 0
	for id := range uint16(10) {
		inject(peer, id, PPIDControl, ctl(0, FuncInitiate, ""))
		for i := range 40 {
			inject(peer, id, PPIDSegment, send(2+i, strings.Repeat("x", 100)))
		}
	}
	run(b)
	for id := range uint16(10) {
		if s := b.Session(id); s == nil || s.State() == StateFailed {
			failed++
		}
	}
	if failed < 5 || failed == 10 {
		t.Errorf("%d of 10 sessions failed", failed)
	}
	// What they held is given back, by whatever they end.
	peer, b = crafted(t, sctpddptest.Link{Out: 256, In: 256}, Config{Backlog: 10, HoldAll: 50_000})
	hold := func(id uint16) *Session {
		inject(peer, id, PPIDControl, ctl(0, FuncInitiate, ""))
		run(b)
		s, ok := b.Request()
		if !ok {
			t.Fatalf("no request on stream %d: %v", id, b)
		}
		s.Accept(plain, nil)
		s.Attach(&sink{})
		for i := range 15 {
			inject(peer, id, PPIDSegment, send(3+2*i, strings.Repeat("x", 1000)))
		}
		run(b)
		wantState(t, s, StateOpen)
		return s
	}
	for id := uint16(0); id < 180; id += 3 {
		s := hold(id) // fails, and is not released
		inject(peer, id, 50, "0000")
		run(b)
		wantState(t, s, StateFailed)

		s = hold(id + 1) // is closed, though there is something behind the peer's Terminate
		s.Close()
		inject(peer, id+1, PPIDSegment, write(1, ""))
		inject(peer, id+1, PPIDControl, ctl(2, FuncTerminate, ""))
		for i := range 14 {
			inject(peer, id+1, PPIDSegment, write(4+2*i, ""))
		}
		run(b)
		take(peer)
		b.Release(epoch, s)
		wantState(t, s, StateOver)

		s = hold(id + 2) // gets all that was missing
		inject(peer, id+2, PPIDSegment, write(1, ""))
		for i := range 15 {
			inject(peer, id+2, PPIDSegment, write(2+2*i, ""))
		}
		run(b)
		if s.Blocked() || len(sinkOf(s).log) != 31 {
			t.Errorf("%d delivered", len(sinkOf(s).log))
		}
	}
}

// A session that was closed before it had a Sink takes what the peer still sends, and keeps none of
// it.
func TestClosedEarly(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{HoldSession: 100})
	s, _ := b.OpenOn(2, plain, nil)
	inject(peer, 2, PPIDControl, ctl(0, FuncAccept, ""))
	run(b)
	s.Close()
	if err := s.Attach(&sink{}); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	for i := range 20 {
		inject(peer, 2, PPIDSegment, send(2+i, strings.Repeat("x", 1000)))
	}
	inject(peer, 2, PPIDSegment, send(1, strings.Repeat("x", 1000)))
	inject(peer, 2, PPIDControl, ctl(22, FuncTerminate, ""))
	run(b)
	wantState(t, s, StateOver)
	if s.Stats().Ignored != 21 {
		t.Errorf("%+v", s.Stats())
	}
}

// While a Send waits for a receive buffer, what follows is held and placed; the wait ends with the
// buffer, or with too much behind it, and then the stream above ends, not the session below.
func TestStall(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1, HoldSession: 2000})
	s, _ := openPassive(t, peer, b)
	k := stalled(t, peer, b, s)
	k.stall = false
	s.Resume()
	if want := "first placed 6 third"; strings.Join(k.log, " ") != want || s.Blocked() {
		t.Errorf("%q, want %q", k.log, want)
	}

	peer, b = crafted(t, sctpddptest.Link{}, Config{Backlog: 1, HoldSession: 2000})
	s, _ = openPassive(t, peer, b)
	k = stalled(t, peer, b, s)
	for i := range 100 {
		inject(peer, 3, PPIDSegment, send(4+i, strings.Repeat("x", 100)))
	}
	inject(peer, 3, PPIDControl, ctl(104, FuncTerminate, ""))
	run(b)
	var le *iwarp.LocalError
	if !errors.As(k.failed, &le) || le.Cause != iwarp.TermNoBuffer {
		t.Errorf("the Sink failed with %v", k.failed)
	}
	wantState(t, s, StatePeerClosed) // its Terminate still counts
	if s.Stats().Overflow != 1 || s.Blocked() {
		t.Errorf("%+v", s.Stats())
	}
}

// Behind a Send that waits there may be as many messages as the numbers allow, for what is placed
// costs little; one more is too much.
func TestStallNumbers(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
	s, _ := openPassive(t, peer, b)
	k := stalled(t, peer, b, s)
	for i := range maxAhead - 2 {
		inject(peer, 3, PPIDSegment, write(4+i, "x"))
	}
	run(b)
	if k.failed != nil || s.State() != StateOpen || !s.Blocked() {
		t.Fatalf("%v, %v", k.failed, s.Err())
	}
	inject(peer, 3, PPIDSegment, write(4+maxAhead-2, "x"))
	inject(peer, 3, PPIDControl, ctl(4+maxAhead-1, FuncTerminate, ""))
	run(b)
	if k.failed == nil || s.Blocked() {
		t.Errorf("%v, blocked %t", k.failed, s.Blocked())
	}
	wantState(t, s, StatePeerClosed)
}

const maxAhead = 32766

// stalled has a Send wait, with a Write and a Send behind it.
func stalled(t *testing.T, peer *sctpddptest.Assoc, b *end, s *Session) *sink {
	t.Helper()
	k := sinkOf(s)
	k.stall = true
	inject(peer, 3, PPIDSegment, send(1, "first"))
	inject(peer, 3, PPIDSegment, write(2, "second"))
	inject(peer, 3, PPIDSegment, send(3, "third"))
	run(b)
	if len(k.log) != 0 || fmt.Sprint(k.placed) != "[second]" || !s.Blocked() {
		t.Fatalf("delivered %q, placed %q", k.log, k.placed)
	}
	return k
}

// Without the U flag a message is taken by its number all the same, and counted: D5.
func TestOrderedMessage(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
	s, _ := openPassive(t, peer, b)
	inject(peer, 3, PPIDSegment, write(1, "x"))
	m, _ := b.a.Next()
	m.Unordered = false
	b.Input(epoch, m)
	wantLog(t, sinkOf(s), "x")
	if s.Stats().Ordered != 1 {
		t.Errorf("%+v", s.Stats())
	}
	// D9: and so is a Terminate with something behind it.
	inject(peer, 3, PPIDControl, ctl(2, FuncTerminate, "why"))
	run(b)
	wantState(t, s, StatePeerClosed)
	if s.Stats().Excess != 3 {
		t.Errorf("%+v", s.Stats())
	}
}

func sinkOf(s *Session) *sink { return SinkOf(s).(*sink) }

// The table of messages and the drawn transitions are one.
func TestTransitions(t *testing.T) {
	if !ArrivalsFit() {
		t.Error("a message leads where no transition is drawn")
	}
	for s := StateIdle; s <= StateFailed; s++ {
		if strings.HasPrefix(s.String(), "state") || s.String() == "" {
			t.Errorf("%d has no name", s)
		}
	}
}
