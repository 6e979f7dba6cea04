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

// A block is the enhanced data of a message, as text to be put before its private data.
func block(d iwarp.EnhancedData) string { return string(d.Append(nil)) }

func enhanced(ird, ord uint16, k iwarp.RTRKinds) iwarp.StartConfig {
	return iwarp.StartConfig{IRD: ird, ORD: ord, ClientServer: k == 0, RTR: k}
}

const allRTR = iwarp.RTRSend | iwarp.RTRWrite | iwarp.RTRRead

// The enhanced form between two ends: what each has asked for and what both then know.
//
// ESDDP-003, 009, 011, 017, 018, 019, 021, 023, 027, 030.
func TestEnhanced(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	pd := strings.Repeat("i", 508)
	x, err := a.Open(enhanced(2, 8, allRTR), []byte(pd))
	if err != nil {
		t.Fatal(err)
	}
	y := requested(t, a, b)
	r, _ := y.Request()
	if !r.Enhanced || !r.PeerToPeer || r.RTR != allRTR || r.IRD != 2 || r.ORD != 8 ||
		string(r.PrivateData) != pd {
		t.Errorf("request %+v", r)
	}
	p, err := y.Accept(enhanced(4, 16, iwarp.RTRRead), []byte("r"))
	if err != nil {
		t.Fatal(err)
	}
	if p.IRD != 8 || p.ORD != 2 || p.PeerIRD != 2 || p.PeerORD != 8 || p.RTR != iwarp.RTRRead ||
		p.Initiator {
		t.Errorf("passive: %v", p)
	}
	y.Attach(&sink{})
	writeText(t, y, "the passive side need not wait")
	run(a, b)
	q := x.Params()
	if q.IRD != 2 || q.ORD != 8 || q.PeerIRD != 8 || q.PeerORD != 2 || q.RTR != iwarp.RTRRead ||
		!q.Initiator || string(q.PrivateData) != "r" {
		t.Errorf("active: %v", q)
	}
	if ev := events(x); ev != "Accepted(r)" {
		t.Error(ev)
	}
	k := &sink{}
	x.Attach(k)
	wantLog(t, k, "the passive side need not wait")
	x.Close()
	y.Close()
	run(a, b)
	wantSent(t, a.a, 0, "0:5 1:4") // the plain Terminate, of 4 octets
	wantSent(t, b.a, 0, "0:6 1:seg 2:4")
	if n := len(a.a.Log()[1].Data); n != 4 {
		t.Errorf("a Terminate of %d octets", n)
	}
	if _, err := a.Open(enhanced(2, 8, allRTR), []byte(pd+"i")); !errors.Is(err,
		iwarp.ErrPrivateData) {
		t.Error(err)
	}
}

// The enhanced form is used when something of it is wanted, and answered in kind. ESDDP-013, 014,
// 015.
func TestInKind(t *testing.T) {
	for _, tt := range []struct {
		cfg iwarp.StartConfig
		fn  Function
	}{
		{iwarp.StartConfig{Revision: 1, IRD: 4, ORD: 4}, FuncInitiate},
		{iwarp.StartConfig{ClientServer: true}, FuncInitiate},
		{iwarp.StartConfig{ClientServer: true, IRD: 1}, FuncEnhancedInitiate},
		{iwarp.StartConfig{ClientServer: true, ORD: 1}, FuncEnhancedInitiate},
		{iwarp.StartConfig{}, FuncEnhancedInitiate},
		{iwarp.DefaultStartConfig(), FuncEnhancedInitiate},
	} {
		for _, accept := range []bool{true, false} {
			a, b := newEnds(t, sctpddptest.Link{})
			x, err := a.Open(tt.cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			run(a, b)
			y, _ := b.Request()
			if accept {
				y.Accept(iwarp.DefaultStartConfig(), nil)
			} else {
				y.Reject(nil)
			}
			run(a, b)
			wantSent(t, a.a, 0, fmt.Sprintf("0:%d", tt.fn))
			wantSent(t, b.a, 0, fmt.Sprintf("0:%d", map[bool]Function{true: tt.fn + 1,
				false: tt.fn + 2}[accept]))
			wantState(t, x, map[bool]State{true: StateOpen, false: StateOver}[accept])
		}
	}
	// The other form in answer is illegal.
	for _, tt := range []struct {
		cfg iwarp.StartConfig
		msg string
	}{
		{plain, ctl(0, FuncEnhancedAccept, "\x00\x01\x00\x01")},
		{plain, ctl(0, FuncEnhancedReject, "\x00\x01\x00\x01")},
		{enhanced(1, 1, allRTR), ctl(0, FuncAccept, "")}, {enhanced(1, 1, allRTR),
			ctl(0, FuncReject, "")},
	} {
		peer, b := crafted(t, sctpddptest.Link{}, Config{})
		s, _ := b.OpenOn(2, tt.cfg, nil)
		take(peer)
		inject(peer, 2, PPIDControl, tt.msg)
		run(b)
		wantState(t, s, StateFailed)
		wantSent(t, b.a, 1, "1:4")
		var pe *ProtocolError
		if !errors.As(s.Err(), &pe) {
			t.Error(s.Err())
		}
	}
}

// A peer that knows the plain form only terminates; in the plain form, on another stream, it works.
// ESDDP-016.
func TestPlainAgain(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Initiator: true})
	s, _ := b.Open(iwarp.DefaultStartConfig(), nil)
	inject(peer, 0, PPIDControl, ctl(0, FuncTerminate, ""))
	run(b)
	if ev := events(s); ev != "Refused" || !errors.Is(s.Err(), ErrRefused) ||
		!strings.Contains(s.Err().Error(), "plain") {
		t.Errorf("%q, %v", ev, s.Err())
	}
	s2, err := b.Open(plain, nil)
	if err != nil || s2.Stream() == 0 {
		t.Fatal(err)
	}
	inject(peer, s2.Stream(), PPIDControl, ctl(0, FuncAccept, ""))
	run(b)
	wantState(t, s2, StateOpen)
	if p := s2.Params(); p.IRD != 4 || p.ORD != 4 || p.Enhanced || p.PeerIRD != iwarp.NotNegotiated {
		t.Errorf("%v", p)
	}
}

// What an active side with (ird, ord) makes of an answer, by RFC 6581, section 9.1.
//
// ESDDP-021, 022, 024, 025, 026, 028, 032.
func TestConclude(t *testing.T) {
	nn := uint16(iwarp.NotNegotiated)
	for _, tt := range []struct {
		name     string
		cfg      iwarp.StartConfig
		answer   iwarp.EnhancedData
		ird, ord uint16
		rtr      iwarp.RTRKinds
		code     byte // of a failure
	}{
		{"ORD cut, IRD raised", enhanced(1, 8, 0), iwarp.EnhancedData{IRD: 1, ORD: 3}, 4, 1, 0, 0},
		{"nothing to do", enhanced(4, 4, 0), iwarp.EnhancedData{IRD: 4, ORD: 4}, 4, 4, 0, 0},
		{"not negotiated", enhanced(3, 5, 0), iwarp.EnhancedData{IRD: nn, ORD: nn}, 3, 5, 0, 0},
		{"no resources", iwarp.StartConfig{IRD: 1, ORD: 1, MaxIRD: 4, ClientServer: true},
			iwarp.EnhancedData{IRD: 1, ORD: 5}, 0, 0, 0, 6},
		{"far too many", enhanced(1, 1, 0), iwarp.EnhancedData{IRD: 1, ORD: 0x3ffe}, 0, 0, 0, 6},
		{"write first", enhanced(1, 1, allRTR), iwarp.EnhancedData{PeerToPeer: true, RTR: allRTR, IRD: 1,
			ORD: 1}, 1, 1, iwarp.RTRWrite, 0},
		{"then read", enhanced(1, 1, allRTR), iwarp.EnhancedData{PeerToPeer: true,
			RTR: iwarp.RTRRead | iwarp.RTRSend, IRD: 1, ORD: 1}, 1, 1, iwarp.RTRRead, 0},
		{"no room for a read", enhanced(1, 0, allRTR), iwarp.EnhancedData{PeerToPeer: true,
			RTR: iwarp.RTRRead | iwarp.RTRSend, IRD: 0, ORD: 1}, 1, 0, iwarp.RTRSend, 0},
		{"no common kind", enhanced(1, 1, iwarp.RTRSend), iwarp.EnhancedData{PeerToPeer: true,
			RTR: iwarp.RTRWrite, IRD: 1, ORD: 1}, 0, 0, 0, 7},
		{"no kind", enhanced(1, 1, allRTR), iwarp.EnhancedData{PeerToPeer: true, IRD: 1, ORD: 1}, 0,
			0, 0, 7},
		{"A=0 for A=1", enhanced(1, 1, allRTR), iwarp.EnhancedData{RTR: allRTR, IRD: 1, ORD: 1}, 0,
			0, 0, 7},
		{"A=1 for A=0", enhanced(1, 1, 0), iwarp.EnhancedData{PeerToPeer: true, RTR: allRTR, IRD: 1,
			ORD: 1}, 0, 0, 0, 7},
		{"B, C, D with A=0", enhanced(1, 1, 0), iwarp.EnhancedData{RTR: allRTR, IRD: 1, ORD: 1}, 1,
			1, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer, b := crafted(t, sctpddptest.Link{}, Config{})
			s, err := b.OpenOn(2, tt.cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			inject(peer, 2, PPIDControl, ctl(0, FuncEnhancedAccept, block(tt.answer)+"pd"))
			run(b)
			if tt.code == 0 {
				wantState(t, s, StateOpen)
				if p := s.Params(); p.IRD != tt.ird || p.ORD != tt.ord || p.RTR != tt.rtr ||
					p.PeerIRD != tt.answer.IRD || p.PeerORD != tt.answer.ORD {
					t.Errorf("%v, want IRD %d, ORD %d, %v", p, tt.ird, tt.ord, tt.rtr)
				}
				if ev := events(s); ev != "Accepted(pd)" {
					t.Error(ev)
				}
				return
			}
			// A Terminate of RDMAP, then that of the session.
			wantSent(t, b.a, 0, "0:5 1:seg 2:4")
			_, seg, _ := ParseSegment(b.a.Log()[1].Data)
			if got := fmt.Sprintf("%x", seg[iwarp.UntaggedHeaderLen:]); got != fmt.Sprintf("20%02x0000",
				tt.code) || iwarp.RDMAPControl(seg[1]).Opcode() != iwarp.OpTerminate {
				t.Errorf("Terminate % x", seg)
			}
			wantState(t, s, StateFailed)
			var le *iwarp.LocalError
			if !errors.As(s.Err(), &le) || le.Cause != (iwarp.TermCode{Layer: 2, Type: 0, Code: tt.code}) {
				t.Error(s.Err())
			}
			if ev := events(s); ev != "Failed" {
				t.Error(ev)
			}
		})
	}
}

// What a passive side says to a request. ESDDP-018, 019, 024, 025, 026, 031.
func TestAnswer(t *testing.T) {
	nn := uint16(iwarp.NotNegotiated)
	for _, tt := range []struct {
		name     string
		ask      iwarp.EnhancedData
		cfg      iwarp.StartConfig
		want     iwarp.EnhancedData
		ird, ord uint16
	}{
		{"ORD down to its IRD", iwarp.EnhancedData{IRD: 2, ORD: 1}, enhanced(4, 8, 0), iwarp.EnhancedData{
			IRD: 4, ORD: 2}, 4, 2},
		{"IRD up to its ORD", iwarp.EnhancedData{IRD: 9, ORD: 9}, enhanced(4, 8, 0), iwarp.EnhancedData{
			IRD: 16, ORD: 8}, 16, 8},
		{"capped", iwarp.EnhancedData{IRD: 0x3ffe, ORD: 0x3ffe}, enhanced(4, 8, 0), iwarp.EnhancedData{
			IRD: 128, ORD: 8}, 128, 8},
		{"no IRD of its", iwarp.EnhancedData{IRD: nn, ORD: 9}, enhanced(4, 8, 0), iwarp.EnhancedData{
			IRD: 16, ORD: nn}, 16, 8},
		{"no ORD of its", iwarp.EnhancedData{IRD: 1, ORD: nn}, enhanced(4, 8, 0), iwarp.EnhancedData{
			IRD: nn, ORD: 1}, 4, 1},
		{"one for the ready-to-receive Read", iwarp.EnhancedData{PeerToPeer: true, RTR: iwarp.RTRRead,
			IRD: 1, ORD: 0}, enhanced(0, 1, allRTR),
			iwarp.EnhancedData{PeerToPeer: true, RTR: iwarp.RTRRead, IRD: 1, ORD: 1}, 1, 1},
		{"B, C, D with A=0", iwarp.EnhancedData{RTR: allRTR, IRD: 1, ORD: 1}, enhanced(1, 1, allRTR),
			iwarp.EnhancedData{IRD: 1, ORD: 1}, 1, 1},
	} {
		peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
		inject(peer, 3, PPIDControl, ctl(0, FuncEnhancedInitiate, block(tt.ask)+"pd"))
		run(b)
		s, ok := b.Request()
		if !ok {
			t.Fatalf("%s: no request", tt.name)
		}
		if r, _ := s.Request(); string(r.PrivateData) != "pd" || !r.PeerToPeer && r.RTR != 0 {
			t.Errorf("%s: %+v", tt.name, r)
		}
		p, err := s.Accept(tt.cfg, nil)
		if err != nil || p.IRD != tt.ird || p.ORD != tt.ord {
			t.Errorf("%s: %v, %v", tt.name, p, err)
		}
		c, err := ParseControl(b.a.Log()[0].Data)
		if err != nil || c.Function != FuncEnhancedAccept || c.Data != tt.want {
			t.Errorf("%s: said %+v, want %+v, %v", tt.name, c.Data, tt.want, err)
		}
	}
	// Every choice of kinds on both sides, as both see it.
	for ask := iwarp.RTRKinds(1); ask <= allRTR; ask++ {
		for can := iwarp.RTRKinds(1); can <= allRTR; can++ {
			x, y := sctpddptest.NewPair(sctpddptest.Link{})
			a, b := newEnd(t, x, Config{Initiator: true}),
				newEnd(t, y, Config{Backlog: 1, Start: enhanced(1, 1, can)})
			s, _ := a.Open(enhanced(1, 1, ask), nil)
			run(a, b)
			q, asked := b.Request()
			if ask&can == 0 {
				// ESDDP-010: the provider refuses by itself, and says what it can do.
				var r *iwarp.RejectedError
				if asked || !errors.As(s.Err(), &r) || events(s) != "Rejected" {
					t.Errorf("%v / %v: asked %t, %v", ask, can, asked, s.Err())
				}
				wantSent(t, b.a, 0, "0:7")
				c, _ := ParseControl(b.a.Log()[0].Data)
				if c.Data != (iwarp.EnhancedData{PeerToPeer: true, RTR: can, IRD: 1, ORD: 1}) {
					t.Errorf("%v / %v: said %+v", ask, can, c.Data)
				}
				continue
			}
			if _, err := q.Accept(enhanced(1, 1, can), nil); err != nil {
				t.Fatal(err)
			}
			run(a, b)
			c, _ := ParseControl(b.a.Log()[0].Data)
			if !c.Data.PeerToPeer || c.Data.RTR != ask&can || s.State() != StateOpen ||
				s.Params().RTR&ask&can == 0 {
				t.Errorf("%v / %v: said %+v, took %v", ask, can, c.Data, s.Params().RTR)
			}
		}
	}
}

// An enhanced request is refused in its form, with what this end wants; the same listener takes
// plain ones. ESDDP-006, 007, 023.
func TestEnhancedReject(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	x, _ := a.Open(enhanced(1, 4, allRTR), nil)
	run(a, b)
	y, _ := b.Request()
	if err := y.Reject([]byte(strings.Repeat("p", 509))); !errors.Is(err, iwarp.ErrPrivateData) {
		t.Error(err)
	}
	if err := y.Reject([]byte("no")); err != nil {
		t.Fatal(err)
	}
	run(a, b)
	wantSent(t, b.a, 0, "0:7")
	var r *iwarp.RejectedError
	if !errors.As(x.Err(), &r) || !r.Enhanced || r.ORD != iwarp.DefaultReads ||
		r.IRD != iwarp.DefaultReads || string(r.PrivateData) != "no" {
		t.Errorf("%+v", x.Err())
	}
	z, _ := a.Open(plain, nil)
	run(a, b)
	w, _ := b.Request()
	w.Accept(plain, nil)
	run(a, b)
	wantState(t, z, StateOpen)

	// D6: one without the four octets is a rejection all the same.
	peer, c := crafted(t, sctpddptest.Link{}, Config{})
	s, _ := c.OpenOn(2, enhanced(1, 1, allRTR), nil)
	inject(peer, 2, PPIDControl, ctl(0, FuncEnhancedReject, "no"))
	run(c)
	if ev := events(s); ev != "Rejected(no)" || !errors.As(s.Err(), &r) || r.Enhanced {
		t.Errorf("%q, %v", ev, s.Err())
	}
}

// Another fault of this end during the set-up: a Terminate where a segment is legal, and not before
// the Accept. ESDDP-008, ESDDP-029.
func TestNegotiationFault(t *testing.T) {
	peer, b := crafted(t, sctpddptest.Link{}, Config{Initiator: true})
	s, _ := b.Open(enhanced(1, 1, allRTR), nil)
	if err := s.FailNegotiation(errors.New("no memory")); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	inject(peer, 0, PPIDControl, ctl(0, FuncEnhancedAccept,
		block(iwarp.EnhancedData{PeerToPeer: true, RTR: allRTR, IRD: 1, ORD: 1})))
	run(b)
	if err := s.FailNegotiation(errors.New("no memory")); err != nil {
		t.Fatal(err)
	}
	run(b)
	wantSent(t, b.a, 0, "0:5 1:seg 2:4")
	_, seg, _ := ParseSegment(b.a.Log()[1].Data)
	if got := fmt.Sprintf("%x", seg[iwarp.UntaggedHeaderLen:]); got != "20050000" {
		t.Errorf("Terminate %s", got)
	}
	if n := len(b.a.Log()[2].Data); n != 4 {
		t.Errorf("a session Terminate of %d octets", n)
	}
	// Passive, before Accept: only the Terminate of the session.
	_, b, s = asked(t, FuncEnhancedInitiate, "\x80\x01\xc0\x01")
	s.Refuse()
	wantSent(t, b.a, 0, "0:4")
	if n := len(b.a.Log()[0].Data); n != 4 {
		t.Errorf("a session Terminate of %d octets", n)
	}
}
