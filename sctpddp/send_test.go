package sctpddp_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// A Terminate waits until the control message before it cannot be overtaken: until it is
// acknowledged, or answered. SDDP-047, SDDP-049.
func TestControlWaits(t *testing.T) {
	// Passive: Accept, then segments, then Terminate.
	peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
	inject(peer, 3, PPIDControl, ctl(0, FuncInitiate, ""))
	run(b)
	s, _ := b.Request()
	s.Accept(plain, nil)
	s.Attach(&sink{})
	writeText(t, s, "x")
	s.Close()
	wantSent(t, b.a, 0, "0:2 1:seg")
	if !s.Pending() {
		t.Error("the Terminate is forgotten")
	}
	peer.Pick(1)
	s.Step()
	wantSent(t, b.a, 0, "0:2 1:seg") // a segment was acknowledged, the Accept was not
	peer.Pick(0)
	s.Step()
	wantSent(t, b.a, 0, "0:2 1:seg 2:4") // "segments need no ack: SSN order covers them"

	// The peer's Terminate is an answer.
	peer, b = crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
	inject(peer, 3, PPIDControl, ctl(0, FuncInitiate, ""))
	run(b)
	s, _ = b.Request()
	b.a.HoldAcks()
	s.Accept(plain, nil)
	s.Close()
	inject(peer, 3, PPIDControl, ctl(1, FuncTerminate, ""))
	run(b)
	wantSent(t, b.a, 0, "0:2 1:4")

	// Active: an Accept answers the Initiate, whatever is acknowledged.
	peer, b = crafted(t, sctpddptest.Link{}, Config{})
	b.a.HoldAcks()
	s, _ = b.OpenOn(2, plain, nil)
	inject(peer, 2, PPIDControl, ctl(0, FuncAccept, ""))
	run(b)
	s.Attach(&sink{})
	s.Close()
	wantSent(t, b.a, 0, "0:1 1:4")
}

// The active side sends no segment before the Accept has come, though the Initiate has arrived.
// SDDP-048.
func TestActiveWaits(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{})
	s, _ := b.OpenOn(2, plain, nil)
	take(peer) // acknowledged
	if n, err := s.WriteFrom(strings.NewReader(strings.Repeat("x", 20))); n != 0 ||
		!errors.Is(err, ErrState) {
		t.Errorf("%d, %v", n, err)
	}
	inject(peer, 2, PPIDControl, ctl(0, FuncReject, "no"))
	run(b)
	wantSent(t, b.a, 0, "0:1")
	if ev := events(s); ev != "Rejected(no)" {
		t.Error(ev)
	}
	var r *iwarp.RejectedError
	if !errors.As(s.Err(), &r) || string(r.PrivateData) != "no" || r.Enhanced {
		t.Errorf("%v", s.Err())
	}
}

// The passive side's segments may overtake its Accept: they are held, and placed behind it.
// SDDP-050.
func TestSegmentsOvertakeAccept(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, _ := a.Open(plain, nil)
	run(a, b)
	y, _ := b.Request()
	y.Accept(plain, []byte("late"))
	y.Attach(&sink{})
	writeText(t, y, "one")
	writeText(t, y, "two")
	a.Input(epoch, a.a.Pick(1))
	a.Input(epoch, a.a.Pick(1))
	wantState(t, x, StateInitiating)
	run(a)
	wantState(t, x, StateOpen)
	k := &sink{}
	x.Attach(k)
	wantLog(t, k, "one", "two")
	if len(k.placed) != 0 || x.Stats().Ahead != 2 {
		t.Errorf("placed %q, %+v", k.placed, x.Stats())
	}
}

// What comes before the Initiate, or before its answer, is held and not placed, and dropped with a
// refusal. SDDP-051.
func TestEarlySegments(t *testing.T) {
	for _, accept := range []bool{true, false} {
		peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
		inject(peer, 3, PPIDSegment, write(2, "two"))
		run(b)
		if _, ok := b.Request(); ok {
			t.Fatal("a request without an Initiate")
		}
		inject(peer, 3, PPIDControl, ctl(0, FuncInitiate, ""))
		inject(peer, 3, PPIDSegment, write(1, "one"))
		run(b)
		s, _ := b.Request()
		wantState(t, s, StateAsked)
		k := &sink{}
		if err := s.Attach(k); !errors.Is(err, ErrState) {
			t.Errorf("a Sink before Accept: %v", err)
		}
		if accept {
			s.Accept(plain, nil)
			s.Attach(k)
			wantLog(t, k, "one", "two")
			continue
		}
		s.Reject(nil)
		wantSent(t, b.a, 0, "0:3")
		wantState(t, s, StateOver)
		inject(peer, 3, PPIDSegment, write(3, "three"))
		run(b)
		if s.Stats().Illegal != 1 || s.Blocked() {
			t.Errorf("%+v", s.Stats())
		}
	}
}

// At most 32767 messages of a stream are not acknowledged, whatever kind they are, and other
// streams go on. One message that stays behind holds the rest. SDDP-073, 074.
func TestUnackedLimit(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, _, _, ky := opened(t, a, b)
	other, _, _, _ := opened(t, a, b)
	seg := string(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0))
	fill := func() (n int) {
		for {
			k, err := x.WriteFrom(strings.NewReader(seg))
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				return n
			}
			n++
		}
	}
	if n := fill(); n != 32767 || x.Unacked() != 32767 {
		t.Errorf("stopped at %d", n)
	}
	writeText(t, other, "goes on")
	// All arrive but the first: nothing is acknowledged cumulatively.
	for range 32766 {
		b.Input(epoch, b.a.Pick(1))
	}
	if n := fill(); n != 0 {
		t.Errorf("%d more behind one that is missing", n)
	}
	b.Input(epoch, b.a.Pick(0))
	if n := fill(); n != 32767 || len(ky.log) != 32767 {
		t.Errorf("%d more, %d delivered", n, len(ky.log))
	}
}

// MULPDU follows the path, and longer segments are refused. SDDP-061, 062, 065, 066, 086.
func TestMULPDU(t *testing.T) {
	for payload, want := range map[int]int{1452: 1450, 1432: 1430, 8932: 8930, 528: 526, 500: 516,
		0: 516, 1 << 20: iwarp.MaxMULPDU} {
		if got := MULPDU(payload); got != want {
			t.Errorf("MULPDU(%d) = %d, want %d", payload, got, want)
		}
	}
	a, b := newEnds(t, sctpddptest.Link{MaxPayload: 600})
	x, _, _, ky := opened(t, a, b)
	seg := func(n int) string {
		return string(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0)) + strings.Repeat("x",
			n-iwarp.TaggedHeaderLen)
	}
	for range 100 {
		if n, err := x.WriteFrom(strings.NewReader(seg(598))); n != 598 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if n, err := x.WriteFrom(strings.NewReader(seg(599))); n != 0 || !errors.Is(err, ErrTooLong) {
		t.Errorf("%d, %v", n, err)
	}
	a.a.SetMaxPayload(400) // those under way arrive as they are, and so does one that is cut already
	if n, err := x.WriteFrom(strings.NewReader(seg(598))); n != 598 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	before := len(a.a.Log())
	if x.MULPDU() != 516 {
		t.Errorf("MULPDU %d", x.MULPDU())
	}
	if n, err := x.WriteFrom(strings.NewReader(seg(598))); n != 0 || !errors.Is(err, ErrTooLong) {
		t.Errorf("%d, %v", n, err)
	}
	if len(a.a.Log()) != before {
		t.Error("something was sent")
	}
	if n, err := x.WriteFrom(strings.NewReader(seg(516))); n != 516 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	run(a, b)
	if len(ky.log) != 102 || len(ky.log[101]) != 516-iwarp.TaggedHeaderLen {
		t.Errorf("%d delivered", len(ky.log))
	}
	// 512 octets of private data pass in any case.
	if _, err := a.Open(plain, []byte(strings.Repeat("p", 512))); err != nil {
		t.Fatal(err)
	}
	run(a, b)
	if y, ok := b.Request(); !ok {
		t.Error("no request")
	} else if r, _ := y.Request(); len(r.PrivateData) != 512 {
		t.Errorf("%d octets of private data", len(r.PrivateData))
	}
}

// A message that SCTP has no room for stays, with its number; one whose memory cannot be read takes
// none.
func TestNoRoom(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{Room: 2})
	x, _, _, ky := opened(t, a, b)
	writeText(t, x, "one")
	writeText(t, x, "two")
	if n, err := x.WriteFrom(strings.NewReader(strings.Repeat("x", 20))); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	x.Close()
	if !x.Pending() {
		t.Error("the Terminate is forgotten")
	}
	run(a, b)
	wantLog(t, ky, "one", "two")
	wantSent(t, a.a, 0, "0:1 1:seg 2:seg 3:4")

	a, b = newEnds(t, sctpddptest.Link{})
	x, _, _, _ = opened(t, a, b)
	if n, err := x.WriteFrom(&broken{20}); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d, %v", n, err)
	}
	writeText(t, x, "next")
	wantSent(t, a.a, 1, "1:seg")
	a.a.Fail = errors.New("association gone")
	if n, err := x.WriteFrom(strings.NewReader(strings.Repeat("x", 20))); n != 0 ||
		!errors.Is(err, a.a.Fail) {
		t.Errorf("%d, %v", n, err)
	}
	if s, err := a.OpenOn(8, plain, nil); s != nil || !errors.Is(err, a.a.Fail) ||
		a.Session(8) != nil {
		t.Errorf("%v, %v", s, err)
	}
}

// A picky association has room for short messages only.
type picky struct {
	*sctpddptest.Assoc
	max int
}

func (p *picky) Send(stream uint16, ppid uint32, src iwarp.Source) (uint64, error) {
	if src.Len() > p.max {
		return 0, nil
	}
	return p.Assoc.Send(stream, ppid, src)
}

// A segment for which there is room does not go before an Accept for which there is none.
func TestAcceptFirst(t *testing.T) {
	peer, b, s := asked(t, FuncInitiate, "")
	p := &picky{b.a, 100}
	SetAssoc(s, p)
	if _, err := s.Accept(plain, []byte(strings.Repeat("p", 300))); err != nil {
		t.Fatal(err)
	}
	s.Attach(&sink{})
	if n, err := s.WriteFrom(strings.NewReader(strings.Repeat("x", 20))); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	p.max = 1000
	if n, err := s.WriteFrom(strings.NewReader(strings.Repeat("x", 20))); n != 20 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	wantSent(t, b.a, 0, "0:2 1:seg")
	take(peer)
}

// A broken Source cannot be read.
type broken struct{ n int }

func (b *broken) Len() int                 { return b.n }
func (b *broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Numbers follow the order of submission, whatever order SCTP sends and numbers in.
// SDDP-016, SDDP-070.
func TestShuffledSender(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{Seed: 7, Reorder: 100, Shuffle: true})
	x, y, _, ky := opened(t, a, b)
	for i := range 1000 {
		writeText(t, x, strings.Repeat("x", i%50))
	}
	x.Close()
	run(a, b)
	for i, l := range ky.log {
		if len(l) != i%50 && l != placedText(i%50) {
			t.Fatalf("message %d is %q", i, l)
		}
	}
	if len(ky.log) != 1000 || y.Stats().Ahead < 500 {
		t.Errorf("%d delivered, %+v", len(ky.log), y.Stats())
	}
	wantState(t, y, StatePeerClosed)
}

func placedText(n int) string { return fmt.Sprintf("placed %d", n) }

// No allocation per message, in order and out of it.
func TestNoAllocation(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, _, _, _ := opened(t, a, b)
	count := &quietSink{}
	y := b.Session(x.Stream())
	SetSink(y, count)
	seg := append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0), "payload"...)
	null := &nullAssoc{}
	SetAssoc(x, null)
	src := &bytesSource{b: seg}
	msgs := make([]Message, 200)
	ssn := 1
	step := func() {
		for range 100 {
			src.at = 0
			if n, err := x.WriteFrom(src); n != len(seg) || err != nil {
				t.Fatal(n, err)
			}
		}
		for i := range msgs {
			m := &msgs[i^1] // each pair out of order
			m.Stream, m.PPID, m.Unordered, m.Missing = x.Stream(), PPIDSegment, true, 1
			m.Data = append(m.Data[:0], byte((ssn+i)>>8), byte(ssn+i))
			m.Data = append(m.Data, seg...)
		}
		for i := range msgs {
			y.Input(msgs[i])
		}
		ssn += len(msgs)
	}
	step()
	if n := testing.AllocsPerRun(20, step); n != 0 {
		t.Errorf("%v allocations for 300 messages", n)
	}
	if count.n != 200*22 {
		t.Errorf("%d delivered: %v", count.n, y.Err())
	}
}

type quietSink struct{ n int }

func (q *quietSink) Ahead([]byte) int               { return iwarp.TaggedHeaderLen }
func (q *quietSink) Segment([]byte, int) error      { q.n++; return nil }
func (q *quietSink) Fail(c iwarp.TermCode, e error) {}

type nullAssoc struct {
	id  uint64
	buf [2048]byte
}

func (n *nullAssoc) Send(stream uint16, ppid uint32, src iwarp.Source) (uint64, error) {
	if _, err := src.Read(n.buf[:src.Len()]); err != nil {
		return 0, err
	}
	n.id++
	return n.id, nil
}
func (n *nullAssoc) Acked() uint64                          { return n.id }
func (n *nullAssoc) Drop(uint16) int                        { return 0 }
func (n *nullAssoc) MaxPayload() int                        { return 1432 }
func (n *nullAssoc) Streams() (int, int)                    { return 64, 64 }
func (n *nullAssoc) PeerAdaptation() (code uint32, ok bool) { return 1, true }
func (n *nullAssoc) Shutdown()                              {}

type bytesSource struct {
	b  []byte
	at int
}

func (s *bytesSource) Len() int { return len(s.b) - s.at }
func (s *bytesSource) Read(p []byte) (int, error) {
	n := copy(p, s.b[s.at:])
	s.at += n
	return n, nil
}
