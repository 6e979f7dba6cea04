package sctpddp_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// Nothing happens on an association whose peer has shown no indication, or another one.
// SDDP-003, 004, 005.
func TestIndication(t *testing.T) {
	for _, tt := range []struct {
		code    uint32
		present bool
		want    string
	}{
		{1, true, ""}, {0, true, "indication 0x0"}, {7, true, "indication 0x7"},
		{0x01000000, true, "indication"},
		{0xffffffff, true, "indication"}, {1, false, "no adaptation indication"},
		{0, false, "no adaptation"},
	} {
		a, peer := sctpddptest.NewPair(sctpddptest.Link{})
		peer.Code, peer.None = tt.code, !tt.present
		m, err := NewMux(a, Config{Backlog: 1}, epoch)
		if tt.want == "" {
			if err != nil || m == nil {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		if m != nil || !errors.Is(err, ErrNoDDP) || !strings.Contains(err.Error(), tt.want) ||
			len(a.Log()) != 0 {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// Only PPIDs 16 and 17 are sent, whatever sessions do. SDDP-010, 013, 029.
func TestRandomSessions(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{Seed: 5, Reorder: 20, Out: 6, In: 6})
	kinds := map[uint32]int{}
	for round := range 60 {
		type pair struct{ x, y *Session }
		var open []pair
		for i := range 4 {
			from, to := a, b
			if i&1 == 1 {
				from, to = b, a
			}
			x, err := from.Open(plain, []byte("pd"))
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			run(a, b)
			y, ok := to.Request()
			if !ok {
				t.Fatal("no request")
			}
			switch (round + i) % 4 {
			case 0:
				y.Reject([]byte("no"))
			case 1:
				y.Refuse()
			default:
				y.Accept(plain, nil)
			}
			run(a, b)
			if x.State() == StateOpen {
				x.Attach(&sink{})
				y.Attach(&sink{})
				for n := range round {
					writeText(t, x, fmt.Sprint(n))
					writeText(t, y, fmt.Sprint(n))
				}
			}
			open = append(open, pair{x, y})
		}
		run(a, b)
		for _, p := range open {
			p.x.Close()
			if round&1 == 0 {
				run(a, b)
			}
			p.y.Close()
		}
		run(a, b)
		for i, p := range open {
			x, y := p.x, p.y
			if x.State() != StateOver || y.State() != StateOver {
				t.Fatalf("round %d: %v %v, %v %v", round, x.State(), y.State(), x.Err(), y.Err())
			}
			if i&1 == 1 {
				x, y = y, x
			}
			a.Release(a.now, x)
			b.Release(b.now, y)
		}
	}
	for _, log := range [][]sctpddptest.Sent{a.a.Log(), b.a.Log()} {
		next := map[uint16]int{}
		for _, s := range log {
			kinds[s.PPID]++
			n := int(s.Data[0])<<8 | int(s.Data[1])
			if n != 0 && n != next[s.Stream] {
				t.Fatalf("stream %d: number %d, want %d", s.Stream, n, next[s.Stream])
			}
			next[s.Stream] = n + 1
		}
	}
	if len(kinds) != 2 || kinds[PPIDSegment] == 0 || kinds[PPIDControl] == 0 {
		t.Errorf("PPIDs %v", kinds)
	}
}

// The requests that wait for an answer are limited; one more is refused at once, with a Terminate
// and not with a Reject, and takes nothing. SDDP-041, 042, 044.
func TestBacklog(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 3})
	for id := range uint16(5) {
		inject(peer, id, PPIDControl, ctl(0, FuncInitiate, ""))
	}
	run(b)
	wantSent(t, b.a, 0, "0:4 0:4")
	for _, s := range b.a.Log() {
		if s.Stream != 3 && s.Stream != 4 {
			t.Errorf("stream %d was refused", s.Stream)
		}
	}
	// It counts until it is answered, also if a program has seen it.
	first, _ := b.Request()
	inject(peer, 10, PPIDControl, ctl(0, FuncInitiate, ""))
	run(b)
	wantSent(t, b.a, 2, "0:4")
	first.Accept(plain, nil)
	inject(peer, 11, PPIDControl, ctl(0, FuncInitiate, ""))
	run(b)
	wantSent(t, b.a, 3, "0:2")
	// One that is taken back leaves room, and the program never hears of it.
	inject(peer, 1, PPIDControl, ctl(1, FuncTerminate, ""))
	run(b)
	wantSent(t, b.a, 4, "0:4")
	inject(peer, 12, PPIDControl, ctl(0, FuncInitiate, ""))
	run(b)
	wantSent(t, b.a, 5, "")
	for _, want := range []uint16{2, 11, 12} {
		if s, ok := b.Request(); !ok || s.Stream() != want {
			t.Errorf("request %v, want stream %d", s, want)
		}
	}
	if b.Stats().Refused != 3 {
		t.Errorf("%+v", b.Stats())
	}
	// Nobody listens.
	peer, b = crafted(t, sctpddptest.Link{}, Config{})
	inject(peer, 0, PPIDControl, ctl(0, FuncEnhancedInitiate, "\x00\x01\x00\x01"))
	run(b)
	wantSent(t, b.a, 0, "0:4")
}

// The program rejects: Initiate, Reject and nothing else. SDDP-040, 043, 093.
func TestReject(t *testing.T) {
	pd := strings.Repeat("r", 512)
	peer, b, s := asked(t, FuncInitiate, "")
	if err := s.Reject([]byte(pd + "x")); err == nil {
		t.Error("513 octets of private data")
	}
	wantState(t, s, StateAsked)
	if err := s.Reject([]byte(pd)); err != nil {
		t.Fatal(err)
	}
	wantSent(t, b.a, 0, "0:3")
	if got := b.a.Log()[0].Data; string(got[4:]) != pd {
		t.Errorf("%d octets", len(got))
	}
	inject(peer, 3, PPIDSegment, write(1, "late"))
	run(b)
	if s.Stats().Illegal != 1 {
		t.Errorf("a segment of a rejected session: %+v", s.Stats())
	}
	wantSent(t, b.a, 0, "0:3")
	if err := s.Reject(nil); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if _, err := s.Accept(plain, nil); !errors.Is(err, ErrState) {
		t.Error(err)
	}

	// As the active side: a refusal is not answered, of either kind.
	for _, f := range []Function{FuncReject, FuncTerminate} {
		peer, b := crafted(t, sctpddptest.Link{}, Config{Initiator: true})
		s, _ := b.Open(plain, nil)
		inject(peer, 0, PPIDControl, ctl(0, f, ""))
		run(b)
		s.Close()
		b.Release(epoch, s)
		run(b)
		wantSent(t, b.a, 0, "0:1")
		// The stream is free when the Initiate is acknowledged; a new session begins with 0.
		if s, err := b.Open(plain, nil); err != nil || s.Stream() == 0 {
			t.Errorf("%v on stream %d", err, s.Stream())
		}
		take(peer)
		b.Step(epoch)
		if s, err := b.Open(plain, nil); err != nil || s.Stream() != 0 {
			t.Errorf("%v on stream %d", err, s.Stream())
		}
		wantSent(t, b.a, 0, "0:1 0:1 0:1")
	}
}

// A request that is taken back is answered, and cannot be accepted any more. SDDP-092.
func TestWithdraw(t *testing.T) {
	peer, b, s := asked(t, FuncInitiate, "")
	inject(peer, 3, PPIDControl, ctl(1, FuncTerminate, ""))
	run(b)
	wantSent(t, b.a, 0, "0:4")
	if ev := events(s); ev != "Request Withdrawn" {
		t.Error(ev)
	}
	if _, err := s.Accept(plain, nil); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	wantSent(t, b.a, 0, "0:4")

	// Between two ends, with every way in which the two can cross.
	for _, answer := range []string{"", "accept", "reject", "refuse"} {
		a, b := newEnds(t, sctpddptest.Link{})
		x, _ := a.Open(plain, nil)
		run(a, b)
		y, _ := b.Request()
		a.a.Hold()
		x.Close() // a Terminate, for the Initiate was acknowledged
		switch answer {
		case "accept":
			y.Accept(plain, nil)
			y.Attach(&sink{})
			writeText(t, y, "lost")
		case "reject":
			y.Reject(nil)
		case "refuse":
			y.Refuse()
		}
		wantState(t, x, StateWithdrawing)
		run(a, b)
		a.a.Release()
		run(a, b)
		if answer == "accept" {
			wantState(t, y, StatePeerClosed)
			y.Close()
			run(a, b)
		}
		wantState(t, x, StateOver)
		wantState(t, y, StateOver)
		if !x.Quiet() || !y.Quiet() || y.Stats().Illegal != 0 || x.Stats().Illegal != 0 {
			t.Errorf("%s: %+v %+v", answer, x.Stats(), y.Stats())
		}
		a.Release(epoch, x)
		b.Release(epoch, y)
		if z, err := a.Open(plain, nil); err != nil || z.Stream() != 0 {
			t.Errorf("%s: the stream is not free: %v", answer, err)
		}
	}

	// Before the Initiate went out there is nothing to take back.
	a, b := newEnds(t, sctpddptest.Link{Room: 1})
	first, _ := a.Open(plain, nil)
	second, _ := a.Open(plain, nil)
	second.Close()
	run(a)
	take(b.a)
	second.Step()
	run(a)
	wantSent(t, a.a, 0, "0:1")
	wantState(t, first, StateInitiating)
	wantState(t, second, StateFailed)
}

// A stream is used again when nothing of its last session can be under way.
// SDDP-028, 030, 032, 052.
func TestReuse(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, ky := opened(t, a, b)
	writeText(t, x, "first session")
	run(a, b)
	a.a.HoldAcks()
	x.Close()
	y.Close()
	run(a, b)
	wantState(t, x, StateOver)
	if x.Quiet() {
		t.Error("quiet, but the Terminate is not acknowledged")
	}
	a.Release(epoch, x)
	b.Release(epoch, y)
	a.Step(epoch)
	if z, _ := a.Open(plain, nil); z.Stream() != 2 {
		t.Errorf("stream %d is used again at once", z.Stream())
	}
	a.a.ReleaseAcks()
	a.Step(epoch)
	x2, err := a.Open(plain, nil)
	if err != nil || x2.Stream() != 0 || x2 == x {
		t.Fatalf("stream %d, %v", x2.Stream(), err)
	}
	wantSent(t, a.a, len(a.a.Log())-1, "0:1")
	// A chunk that a peer kept from the old session comes before the new Initiate.
	a.a.Inject(sctpddptest.Sent{Stream: 0, PPID: PPIDSegment, Data: unhex(write(1, "old"))})
	b.Input(epoch, b.a.Pick(b.a.Find(0, PPIDSegment, 1)))
	run(a, b)
	b.Request() // stream 2
	y2, ok := b.Request()
	if !ok || y2.Stream() != 0 || y2 == y {
		t.Fatal("no new session")
	}
	y2.Accept(plain, nil)
	k := &sink{}
	y2.Attach(k)
	run(a, b)
	x2.Attach(&sink{})
	writeText(t, x2, "second session")
	run(a, b)
	wantLog(t, k, "second session")
	wantLog(t, ky, "first session")
	if _, err := x.WriteFrom(strings.NewReader("from the old one")); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if b.Stats().Ignored != 1 {
		t.Errorf("%+v", b.Stats())
	}
}

// The peer asks anew before we have given the old session back. The request waits for that.
func TestEarlySuccessor(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, _ := opened(t, a, b)
	x.Close()
	y.Close()
	run(a, b)
	a.Release(epoch, x)
	x2, err := a.Open(plain, []byte("again"))
	if err != nil || x2.Stream() != x.Stream() {
		t.Fatalf("%v", err)
	}
	run(a, b)
	if _, ok := b.Request(); ok {
		t.Error("a request on a stream that is in use")
	}
	b.Release(epoch, y)
	y2, ok := b.Request()
	if !ok {
		t.Fatal("the request is lost")
	}
	if r, _ := y2.Request(); string(r.PrivateData) != "again" {
		t.Errorf("%+v", r)
	}
}

// Both ends ask on one stream: both are told, nothing is left, and another stream works. SDDP-053.
func TestCrossing(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, _ := a.OpenOn(4, plain, nil)
	y, _ := b.OpenOn(4, plain, nil)
	run(a, b)
	for _, s := range []*Session{x, y} {
		wantState(t, s, StateFailed)
		if !errors.Is(s.Err(), ErrCrossed) || events(s) != "Failed" {
			t.Error(s.Err())
		}
	}
	wantSent(t, a.a, 0, "0:1 1:4")
	wantSent(t, b.a, 0, "0:1 1:4")
	a.Release(epoch, x)
	b.Release(epoch, y)
	if _, err := a.OpenOn(4, plain, nil); !errors.Is(err, ErrNoStream) {
		t.Errorf("the stream is used again: %v", err)
	}
	x, _ = a.Open(plain, nil)
	y, _ = b.Open(plain, nil)
	run(a, b)
	if x.Stream()&1 != 0 || y.Stream()&1 != 1 || x.State() != StateInitiating ||
		y.State() != StateInitiating {
		t.Errorf("streams %d and %d", x.Stream(), y.Stream())
	}
}

// Only streams that exist both ways are used. SDDP-060.
func TestStreamsBothWays(t *testing.T) {
	x, y := sctpddptest.NewPair(sctpddptest.Link{Out: 10, In: 2048})
	a, b := newEnd(t, x, Config{Initiator: true, Backlog: 1}), newEnd(t, y, Config{Backlog: 100})
	if a.Streams() != 10 || b.Streams() != 10 {
		t.Errorf("%d and %d streams", a.Streams(), b.Streams())
	}
	for i := range 5 {
		if s, err := a.Open(plain, nil); err != nil || int(s.Stream()) != 2*i {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := a.Open(plain, nil); !errors.Is(err, ErrNoStream) {
		t.Error(err)
	}
	if _, err := a.OpenOn(10, plain, nil); !errors.Is(err, ErrNoStream) {
		t.Error(err)
	}
	inject(y, 10, PPIDControl, ctl(0, FuncInitiate, ""))
	run(a)
	if a.Stats().OneWay != 1 || a.Session(10) != nil {
		t.Errorf("%+v", a.Stats())
	}
}

// A session that ends, well or not, leaves its neighbours and the association alone. SDDP-077, 084.
func TestNeighbours(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, _ := opened(t, a, b)
	x2, _, _, k2 := opened(t, a, b)
	inject(a.a, x.Stream(), PPIDSegment, write(20000, "bogus"))
	run(a, b)
	wantState(t, y, StateFailed)
	wantState(t, x, StatePeerClosed) // it was told
	writeText(t, x2, "alive")
	run(a, b)
	wantLog(t, k2, "alive")
	a.Release(epoch, x)
	b.Release(epoch, y)
	b.Step(epoch.Add(time.Hour))
	if a.a.Downs+b.a.Downs != 0 {
		t.Error("the association was shut down")
	}
}

// With the association every session ends, each is told once, and nothing is sent. The kinds of end
// can be told apart. SDDP-081, 082, 087, 089.
func TestAssociationLost(t *testing.T) {
	for kind := LossShutdown; kind <= LossRestart; kind++ {
		a, b := newEnds(t, sctpddptest.Link{Out: 256, In: 256})
		var all []*Session
		for range 100 {
			x, _, _, _ := opened(t, a, b)
			all = append(all, x)
		}
		asking, _ := a.Open(plain, nil)
		all = append(all, asking)
		before := len(a.a.Log())
		a.Lost(kind, io.ErrUnexpectedEOF)
		a.Lost(kind, nil)
		for _, s := range all {
			var le *LostError
			if ev := events(s); ev != "Lost" || !errors.As(s.Err(), &le) || le.Kind != kind ||
				!errors.Is(s.Err(), io.ErrUnexpectedEOF) {
				t.Fatalf("events %q, %v", ev, s.Err())
			}
			if _, err := s.WriteFrom(strings.NewReader("x")); !errors.Is(err, ErrState) {
				t.Error(err)
			}
			s.Close()
			s.Step()
			a.Release(epoch, s)
		}
		wantSent(t, a.a, before, "")
		if _, err := a.Open(plain, nil); !errors.Is(err, ErrDown) {
			t.Error(err)
		}
		inject(b.a, 0, PPIDControl, ctl(0, FuncInitiate, ""))
		run(a)
		if _, ok := a.Request(); ok || a.Stats().Ignored != 1 {
			t.Error("a request")
		}
	}
	// A Terminate of the peer is another end.
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, _ := opened(t, a, b)
	y.Close()
	run(a, b)
	if ev := events(x); ev != "Closed" || x.Err() != nil {
		t.Errorf("%q, %v", ev, x.Err())
	}
	a.Lost(LossAbort, nil)
	if ev := events(x); ev != "Lost" {
		t.Error(ev)
	}
}

// An association that nobody uses is shut down after a grace time. SDDP-091.
func TestGrace(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	if d, ok := a.Deadline(); !ok || !d.Equal(epoch.Add(30*time.Second)) {
		t.Errorf("deadline %v", d) // the other end may not even know that it is up
	}
	x, y, _, _ := opened(t, a, b)
	if _, ok := a.Deadline(); ok {
		t.Error("a deadline while there is a session")
	}
	asking, _ := a.Open(plain, nil)
	x.Close()
	y.Close()
	run(a, b)
	a.now = epoch.Add(time.Minute)
	a.Release(a.now, x)
	a.Step(a.now.Add(time.Hour))
	if a.a.Downs != 0 {
		t.Error("shut down while an Initiate is not answered")
	}
	other, _ := b.Request()
	other.Reject(nil)
	run(a, b)
	a.Release(a.now, asking)
	a.Step(a.now)
	if d, ok := a.Deadline(); !ok || !d.Equal(a.now.Add(time.Second)) || a.a.Downs != 0 {
		t.Errorf("deadline %v %t", d, ok)
	}
	a.Step(a.now.Add(999 * time.Millisecond))
	if a.a.Downs != 0 {
		t.Error("shut down too early")
	}
	if z, err := a.Open(plain, nil); err != nil { // a further session may use it
		t.Error(err)
	} else {
		a.Step(a.now.Add(2 * time.Second))
		inject(b.a, z.Stream(), PPIDControl, ctl(0, FuncReject, ""))
		run(a)
		a.Release(a.now.Add(3*time.Second), z)
		take(b.a)
		a.Step(a.now.Add(3 * time.Second))
	}
	a.Step(a.now.Add(4 * time.Second))
	a.Step(a.now.Add(5 * time.Second))
	if a.a.Downs != 1 {
		t.Errorf("shut down %d times", a.a.Downs)
	}
	if _, err := a.Open(plain, nil); !errors.Is(err, ErrDown) {
		t.Error(err)
	}
}

// A peer that asks and takes it back, over and over, and acknowledges nothing: nothing grows.
func TestWithdrawFlood(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{Room: 100})
	b.a.Hold()
	round := func() {
		for range 200 {
			for id := range uint16(4) {
				for _, m := range []string{ctl(0, FuncInitiate, "x"), ctl(1, FuncTerminate, "")} {
					b.Input(epoch, Message{Stream: id, PPID: PPIDControl, Unordered: true, Data: unhex(m)})
				}
			}
		}
	}
	size := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	round()
	before := size()
	for range 20 {
		round()
	}
	if n := size() - before; n > 30_000 {
		t.Errorf("%d octets more", n)
	}
	if _, ok := b.Request(); ok || Asked(b.Mux) != 0 {
		t.Errorf("%d requests", Asked(b.Mux))
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

// A session that is given back when this end has closed it and the peer has not waits for the peer:
// its stream can be used again if the Terminate comes in time.
func TestLinger(t *testing.T) {
	for _, late := range []bool{false, true} {
		a, b := newEnds(t, sctpddptest.Link{})
		x, y, kx, _ := opened(t, a, b)
		asking, _ := a.Open(plain, nil) // withdrawn
		run(a, b)
		x.Close()
		asking.Close()
		a.Release(a.now, x)
		a.Release(a.now, asking)
		wantState(t, x, StateClosing)
		wantState(t, asking, StateWithdrawing)
		if d, ok := a.Deadline(); !ok || !d.Equal(epoch.Add(5*time.Second)) {
			t.Errorf("deadline %v", d)
		}
		writeText(t, y, "for nobody")
		a.now = epoch.Add(4999 * time.Millisecond)
		if late {
			b.a.Hold()
			a.now = epoch.Add(5 * time.Second)
			a.Step(a.now)
			wantState(t, x, StateFailed)
			wantState(t, asking, StateFailed)
			b.a.Release()
		}
		y.Close()
		run(a, b)
		if len(kx.log)+len(kx.placed) != 0 {
			t.Errorf("delivered %q", kx.log)
		}
		_, err := a.OpenOn(x.Stream(), plain, nil)
		_, err2 := a.OpenOn(asking.Stream(), plain, nil)
		if want := map[bool]error{true: ErrNoStream}[late]; !errors.Is(err, want) ||
			!errors.Is(err2, want) {
			t.Errorf("late %t: %v, %v", late, err, err2)
		}
		if !late {
			wantState(t, x, StateOver)
			wantState(t, asking, StateOver)
		}
		if _, ok := a.Deadline(); ok != late {
			t.Errorf("late %t: a deadline %t", late, ok)
		}
	}
}

// What waits for a receive buffer when a session is given back is dropped, so that the Terminate
// behind it counts; and the time is that of the last session on a stream, if it still lingers.
func TestLingerAgain(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Initiator: true, Backlog: 1})
	open := func() *Session {
		s, err := b.OpenOn(0, plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		inject(peer, 0, PPIDControl, ctl(0, FuncAccept, ""))
		run(b)
		take(peer)
		return s
	}
	s := open()
	s.Attach(&sink{stall: true})
	inject(peer, 0, PPIDSegment, send(1, "waits"))
	inject(peer, 0, PPIDControl, ctl(2, FuncTerminate, ""))
	run(b)
	if !s.Blocked() {
		t.Fatal("nothing waits")
	}
	s.Close()
	b.Release(epoch, s)
	wantState(t, s, StateOver)
	take(peer)
	b.Step(epoch)

	// From here on without Step in between, which forgets what has passed.
	input := func() {
		for {
			m, ok := b.a.Next()
			if !ok {
				return
			}
			b.Input(epoch, m)
		}
	}
	open = func() *Session {
		s, err := b.OpenOn(0, plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		take(peer)
		inject(peer, 0, PPIDControl, ctl(0, FuncAccept, ""))
		input()
		s.Close()
		take(peer)
		return s
	}
	first := open()
	b.Release(epoch, first) // until 5 s
	inject(peer, 0, PPIDControl, ctl(1, FuncTerminate, ""))
	input()
	wantState(t, first, StateOver)
	s = open()
	b.Release(epoch.Add(3*time.Second), s) // until 8 s
	b.Step(epoch.Add(5 * time.Second))
	wantState(t, s, StateClosing)
	inject(peer, 0, PPIDControl, ctl(1, FuncTerminate, ""))
	inject(peer, 0, PPIDControl, ctl(0, FuncInitiate, "its turn"))
	input()
	wantState(t, s, StateOver)
	b.Step(epoch.Add(8 * time.Second))
	if s, ok := b.Request(); !ok || s.State() != StateAsked {
		t.Error("the peer's request was given up")
	}
}

// A peer that does not answer: the session is given up, and the stream is not used again.
func TestAbandon(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, _ := opened(t, a, b)
	x.Close()
	run(a, b)
	wantState(t, x, StateClosing)
	x.Abandon()
	if !errors.Is(x.Err(), ErrAbandoned) {
		t.Error(x.Err())
	}
	wantSent(t, a.a, 0, "0:1 1:4")
	a.Release(epoch, x)
	y.Close()
	run(a, b)
	if _, err := a.OpenOn(x.Stream(), plain, nil); !errors.Is(err, ErrNoStream) {
		t.Error(err)
	}
	// But the peer, whose session has ended well, may begin another one there.
	inject(b.a, x.Stream(), PPIDSegment, write(1, "late"))
	run(a)
	if a.Stats().Ignored == 0 || a.Session(x.Stream()) != nil {
		t.Errorf("%+v", a.Stats())
	}
	inject(b.a, x.Stream(), PPIDControl, ctl(0, FuncInitiate, ""))
	run(a)
	if s, ok := a.Request(); !ok || s.Stream() != x.Stream() {
		t.Errorf("no request on the lost stream: %+v", a.Stats())
	} else {
		s.Reject(nil)
		a.Release(epoch, s)
		run(a, b)
		take(b.a)
		a.Step(epoch)
		if z, err := a.OpenOn(x.Stream(), plain, nil); err != nil { // all is well there again
			t.Error(err)
		} else {
			z.Close()
			a.Release(epoch, z)
		}
	}
	// A request that its owner forgets is refused when it is given back.
	z, _ := a.Open(plain, nil)
	run(a, b)
	q, _ := b.Request()
	b.Release(epoch, q)
	run(a, b)
	if ev := events(z); ev != "Refused" {
		t.Error(ev)
	}
	if s := b.String(); !strings.Contains(s, "lost=1") {
		t.Error(s)
	}
	// Where the peer's first message has not come, one more Initiate may be that.
	peer, c := crafted(t, sctpddptest.Link{}, Config{Backlog: 9})
	inject(peer, 7, 50, "0000")
	run(c)
	inject(peer, 7, PPIDControl, ctl(0, FuncInitiate, ""))
	run(c)
	if _, ok := c.Request(); ok || c.Stats().Ignored != 1 {
		t.Errorf("a request on a stream that failed first: %+v", c.Stats())
	}
	// The peer is faster than the owner of the session that failed.
	inject(peer, 8, PPIDControl, ctl(0, FuncInitiate, ""))
	run(c)
	s, _ := c.Request()
	s.Accept(plain, nil)
	inject(peer, 8, 50, "0000")
	run(c)
	take(peer)
	s.Step()
	take(peer)
	inject(peer, 8, PPIDControl, ctl(0, FuncInitiate, "again"))
	inject(peer, 8, PPIDControl, ctl(0, FuncInitiate, "too much"))
	run(c)
	if _, ok := c.Request(); ok {
		t.Error("a request on a stream that is in use")
	}
	c.Release(epoch, s)
	if s, ok := c.Request(); !ok || events(s) != "Request(again)" {
		t.Error("the request is lost")
	}
}
