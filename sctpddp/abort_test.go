package sctpddp_test

import (
	"testing"

	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// Abort takes back what SCTP has and has not sent yet, so that it is in nobody's way, and the
// session ends with a Terminate that is numbered behind what was sent. Other sessions are not
// touched.
func TestAbort(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, y, _, ky := opened(t, a, b)
	z, _, _, kz := opened(t, a, b)
	writeText(t, x, "sent")
	a.a.ShutWindow()
	writeText(t, x, "waits")
	writeText(t, z, "another")
	writeText(t, x, "waits, too")
	from := len(a.a.Log())
	if err := x.Abort(); err != nil {
		t.Fatal(err)
	}
	if n := x.Unacked(); n != 2 {
		t.Errorf("%d messages of the session are with SCTP, want what was sent and a Terminate", n)
	}
	wantSent(t, a.a, from, "2:4")
	a.a.OpenWindow()
	run(a, b)
	wantLog(t, ky, "sent")
	wantLog(t, kz, "another")
	wantState(t, y, StatePeerClosed)
	if got := events(y); got != "Closed" {
		t.Errorf("the peer has events %s", got)
	}
	y.Close()
	run(a, b)
	if !x.Quiet() || x.Unacked() > 0 {
		t.Errorf("the session is %v, with %d messages that are not acknowledged", x.State(), x.Unacked())
	}
	writeText(t, z, "goes on")
	run(a, b)
	wantLog(t, kz, "another", "goes on")

	// What was all of a session, its Initiate, is not sent at all.
	a.a.ShutWindow()
	q, err := a.Open(plain, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Abort(); err != nil {
		t.Fatal(err)
	}
	a.a.OpenWindow()
	run(a, b)
	if s, ok := b.Request(); ok {
		t.Errorf("a request has come: %v", s.State())
	}
}

// A stream may have been another session's before, of which messages wait with SCTP: Abort takes
// these back, too, and knows which were its own. A peer brings that about by ending a session whose
// messages it does not take, and by beginning anew.
func TestAbortBehindAnother(t *testing.T) {
	for name, c := range map[string]struct {
		end    string // of the session before, by the peer
		accept bool   // the next one has sent something
	}{
		"over, nothing sent": {ctl(1, FuncTerminate, ""), false},
		"over, accepted":     {ctl(1, FuncTerminate, ""), true},
		"failed, nothing":    {ctl(1, FuncInitiate, ""), false},
		"failed, accepted":   {ctl(1, FuncInitiate, ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			peer, x := sctpddptest.NewPair(sctpddptest.Link{})
			b := newEnd(t, x, Config{Backlog: 16})
			before, _ := openPassive(t, peer, b)
			x.ShutWindow()
			writeText(t, before, "waits")
			writeText(t, before, "waits, too")
			inject(peer, 3, PPIDControl, c.end)
			run(b)
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			run(b)
			b.Release(epoch, before)
			b.Step(epoch)
			inject(peer, 3, PPIDControl, ctl(0, FuncInitiate, ""))
			run(b)
			s, ok := b.Request()
			if !ok {
				t.Fatal("the peer's request has not come")
			}
			if c.accept {
				if _, err := s.Accept(plain, nil); err != nil {
					t.Fatal(err)
				}
			}
			run(b)
			inject(peer, 3, PPIDControl, ctl(1, FuncTerminate, ""))
			run(b)
			from := len(x.Log())
			if err := s.Abort(); err != nil {
				t.Fatal(err)
			}
			run(b)
			if n := s.Unacked(); n != 1 {
				t.Errorf("%d messages of the session are with SCTP, want its Terminate", n)
			}
			wantSent(t, x, from, "0:4")
			x.OpenWindow()
			take(peer)
			if !s.Quiet() {
				t.Errorf("it is %v, with %d messages", s.State(), s.Unacked())
			}
			b.Release(epoch, s)
			b.Step(epoch)
			if s = b.Session(3); s != nil {
				t.Errorf("the stream still has a session that is %v", s.State())
			}
		})
	}
}
