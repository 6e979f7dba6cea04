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
