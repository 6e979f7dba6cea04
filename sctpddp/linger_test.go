package sctpddp_test

import (
	"testing"
	"time"

	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// A session of which everything has come but the Initiate does not keep the association, nor what
// it holds, for ever: when it has waited long enough it is given up.
func TestLingerWithoutInitiate(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	message := func(ssn SSN) {
		c := Control{SSN: ssn, Function: FuncTerminate}
		msg, err := c.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		b.Input(b.now, Message{Stream: 4, PPID: PPIDControl, Unordered: true, Data: msg})
	}
	message(1)
	if d, ok := b.Deadline(); !ok || !d.Equal(epoch.Add(5*time.Second)) {
		t.Fatalf("deadline %v", d)
	}
	if Held(b.Mux) == 0 {
		t.Error("nothing is held")
	}
	b.Step(epoch.Add(5*time.Second - 1))
	if b.Session(4) == nil {
		t.Error("given up too early")
	}
	b.Step(epoch.Add(5 * time.Second))
	run(a, b)
	if s := b.Session(4); s != nil || Held(b.Mux) != 0 {
		t.Errorf("session %v, %d octets are held", s, Held(b.Mux))
	}
	if _, ok := b.Deadline(); !ok {
		t.Error("the association is kept without a session")
	}
}
