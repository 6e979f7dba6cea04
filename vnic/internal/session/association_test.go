package session

import (
	"testing"

	"github.com/vrnic/vrnic/sctpddp"
)

// All associations of a peer together keep a few times what one does, however many there are.
func TestHoldOfAssociations(t *testing.T) {
	if n := holdOf(0); n != 16<<20 {
		t.Errorf("one that we have set up keeps %d octets", n)
	}
	sum, last := 0, 16<<20
	for nth := 1; nth <= 256; nth++ {
		n := holdOf(nth)
		if n > last || n < stallCredit {
			t.Errorf("association %d keeps %d octets, the one before %d", nth, n, last)
		}
		sum, last = sum+n, n
	}
	if sum > 20*(16<<20) {
		t.Errorf("256 associations keep %d octets", sum)
	}
}

// A bringer is an Association whose messages somebody brings.
type bringer struct {
	Association
	can      bool
	deferred []func()
}

func (*bringer) PeerAdaptation() (uint32, bool) { return sctpddp.IndicationDDP, true }
func (*bringer) Streams() (out, in int)         { return 4, 4 }
func (*bringer) Flush()                         {}

func (b *bringer) Defer(f func()) bool {
	if b.can {
		b.deferred = append(b.deferred, f)
	}
	return b.can
}

// Who has a Stream is run by the goroutine that has brought messages, once for all that came
// together; where nobody offers that it is woken.
func TestBrought(t *testing.T) {
	b := &bringer{can: true}
	as := newAssociation()
	as.a, as.deferrer = b, b
	st := as.newStream(nil)
	ran, woken := 0, 0
	st.SetNotify(func() { woken++ })
	check := func(what string, wantRan, wantWoken int) {
		t.Helper()
		if ran != wantRan || woken != wantWoken {
			t.Errorf("%s: run %d times, want %d; woken %d, want %d", what, ran, wantRan, woken, wantWoken)
		}
		ran, woken = 0, 0
	}
	st.brought()
	check("nobody has said that it can be run", 0, 1)
	st.SetPrompt(func(more func() bool) {
		if more != nil {
			t.Error("it is told of more to come")
		}
		ran++
	})
	for range 2 {
		st.brought()
		st.brought()
		if len(b.deferred) != 1 {
			t.Fatalf("deferred %d times", len(b.deferred))
		}
		check("before all is there", 0, 0)
		b.deferred[0]()
		b.deferred = nil
		check("when all is there", 1, 0)
	}
	b.can = false
	st.brought()
	check("nobody brings anything", 0, 1)
	b.can = true
	st.brought()
	st.SetPrompt(nil)
	b.deferred[0]()
	check("it cannot be run any more", 0, 1)
}

// What came before the association was known is handed on by who has set it up, and not by who
// brings messages, whom alone the Deferrer is for.
func TestBroughtEarly(t *testing.T) {
	b := &bringer{can: true}
	as := newAssociation()
	st := as.newStream(nil)
	as.streams[2] = st // as of somebody who has opened it meanwhile
	woken := 0
	st.SetNotify(func() { woken++ })
	st.SetPrompt(func(func() bool) { t.Error("it is run") })
	as.Message(sctpddp.Message{Stream: 2, PPID: sctpddp.PPIDSegment}, nil)
	if err := as.established(b); err != nil {
		t.Fatal(err)
	}
	if len(b.deferred) != 0 || woken != 1 {
		t.Errorf("deferred %d times, woken %d times", len(b.deferred), woken)
	}
	if in, ok := st.next(); !ok || in.m.Stream != 2 {
		t.Errorf("%+v, %t", in, ok)
	}
}

// Who waits for acknowledgements is run by the goroutine that has brought them, and woken by the
// timer, whose goroutine has brought nothing.
func TestBroughtAcknowledgements(t *testing.T) {
	b := &bringer{can: true}
	as := newAssociation()
	if err := as.established(b); err != nil {
		t.Fatal(err)
	}
	st := as.newStream(nil)
	ran, woken := 0, 0
	st.SetNotify(func() { woken++ })
	st.SetPrompt(func(func() bool) { ran++ })
	as.wait(st)
	as.Notify()
	if len(b.deferred) != 1 || ran != 0 || woken != 0 {
		t.Fatalf("deferred %d times, run %d times, woken %d times", len(b.deferred), ran, woken)
	}
	if b.deferred[0](); ran != 1 {
		t.Errorf("run %d times", ran)
	}
	as.wait(st)
	as.expired()
	if len(b.deferred) != 1 || ran != 1 || woken != 1 {
		t.Errorf("by the timer: deferred %d times, run %d times, woken %d times", len(b.deferred)-1,
			ran-1, woken)
	}
}
