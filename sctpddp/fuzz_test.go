package sctpddp_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// Whatever a peer sends, in whatever order: what this end sends is a legal session on each stream,
// and it delivers each number once, in order; and nothing is left when all is over.
func FuzzMux(f *testing.F) {
	script := func(parts ...string) (out []byte) {
		for _, p := range parts {
			b := unhex(p)
			out = append(out, byte(len(b)))
			out = append(out, b...)
		}
		return out
	}
	// stream, PPID, arrival, message
	f.Add(script("011100"+ctl(0, FuncInitiate, "x"), "011000"+write(1, "a"), "011100"+
		ctl(2, FuncTerminate, "")))
	f.Add(script("011102"+ctl(0, FuncInitiate, ""), "011001"+write(2, "a"), "011000"+send(1, "b"),
		"021100"+ctl(0, FuncEnhancedInitiate, "\x80\x01\x80\x01")))
	f.Add(script("011100"+ctl(0, FuncAccept, ""), "030000ffff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 3, HoldSession: 4096, HoldAll: 65536})
		sinks := map[*Session]*sink{}
		active, err := b.OpenOn(1, plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		sinks[active] = &sink{}
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1)
			part := data[1 : 1+n]
			data = data[1+n:]
			if len(part) < 3 {
				continue
			}
			peer.Inject(sctpddptest.Sent{Stream: uint16(part[0] % 8), PPID: uint32(part[1]),
				Data: slices.Clone(part[3:])})
			if k := int(part[2] % 4); peer.UnderWay() > k { // the others come later
				b.Input(epoch, b.a.Pick(peer.UnderWay()-1-k))
			}
			act(b, active, sinks, int(part[2])/4)
			if part[2]&0x80 != 0 {
				take(peer)
			}
		}
		for peer.UnderWay() > 0 {
			b.Input(epoch, b.a.Pick(0))
			act(b, active, sinks, 1)
		}
		checkSent(t, b.a.Log())
		for s, k := range sinks {
			if got := s.Stats(); got.In < uint64(k.calls) {
				t.Fatalf("%d messages in, %d segments delivered", got.In, k.calls)
			}
			b.Release(epoch, s)
		}
		// What was held is given back in the end.
		b.Lost(LossAbort, nil)
		if Held(b.Mux) != 0 || Asked(b.Mux) != 0 {
			t.Fatalf("%d octets are held, %d sessions asked for", Held(b.Mux), Asked(b.Mux))
		}
	})
}

// act is a program that answers requests and closes sessions.
func act(b *end, active *Session, sinks map[*Session]*sink, choice int) {
	if s, ok := b.Request(); ok {
		switch choice % 5 {
		case 0:
			s.Reject([]byte("no"))
			b.Release(epoch, s)
		case 1:
			s.Refuse()
			b.Release(epoch, s)
		default:
			s.Accept(plain, nil)
			sinks[s] = &sink{}
			s.Attach(sinks[s])
		}
	}
	if active.State() == StateOpen {
		active.Attach(sinks[active])
	}
	for s := range sinks {
		s.Step()
		switch {
		case s.State() == StateOver || s.State() == StateFailed:
			b.Release(epoch, s)
		case choice%7 == 3:
			s.WriteFrom(strings.NewReader(string(unhex(write(0, "data")[4:]))))
		case choice%7 == 6:
			s.Close()
		}
	}
	b.Step(epoch)
}

// checkSent holds what an end has sent to the sequences of RFC 5043, section 6.
func checkSent(t *testing.T, log []sctpddptest.Sent) {
	t.Helper()
	type dir struct {
		next int
		over bool
	}
	dirs := map[uint16]*dir{}
	for _, s := range log {
		d := dirs[s.Stream]
		if d == nil {
			d = &dir{}
			dirs[s.Stream] = d
		}
		ssn := int(binary.BigEndian.Uint16(s.Data))
		if ssn == 0 {
			*d = dir{}
		}
		if ssn != d.next || d.over {
			t.Fatalf("%v: number %d, want %d, over %t", s, ssn, d.next, d.over)
		}
		d.next++
		if s.PPID == PPIDSegment {
			if ssn == 0 {
				t.Fatalf("%v: a segment begins a session", s)
			}
			continue
		}
		c, err := ParseControl(s.Data)
		if err != nil || s.PPID != PPIDControl {
			t.Fatalf("%v: %v", s, err)
		}
		switch c.Function {
		case FuncInitiate, FuncEnhancedInitiate, FuncAccept, FuncEnhancedAccept:
			if ssn != 0 {
				t.Fatalf("%v: not at the beginning", s)
			}
		case FuncReject, FuncEnhancedReject:
			if ssn != 0 {
				t.Fatalf("%v: not at the beginning", s)
			}
			d.over = true
		case FuncTerminate:
			d.over = true
		}
	}
}

// The order of arrival cannot be seen above.
func FuzzArrival(f *testing.F) {
	f.Add([]byte("ssswwtw"), []byte{3, 1, 4, 1, 5, 9, 2, 6})
	f.Add([]byte("wwwwwwwwiwwww"), []byte{9, 8, 7, 6})
	f.Add([]byte("swbt"), []byte{0})
	f.Fuzz(func(t *testing.T, kinds, order []byte) {
		if len(kinds) > 200 {
			kinds = kinds[:200]
		}
		run := func(order []byte) string {
			peer, b := crafted(t, sctpddptest.Link{}, Config{Backlog: 1})
			s, n := openPassive(t, peer, b)
			k := sinkOf(s)
			for i, c := range kinds {
				ssn, text := n+i, fmt.Sprint("m", i)
				switch c {
				case 's':
					inject(peer, 3, PPIDSegment, send(ssn, text))
				case 't':
					inject(peer, 3, PPIDControl, ctl(ssn, FuncTerminate, ""))
				case 'i':
					inject(peer, 3, PPIDControl, ctl(ssn, FuncInitiate, ""))
				case 'b':
					inject(peer, 3, PPIDSegment, send(ssn, "")[:20])
				default:
					inject(peer, 3, PPIDSegment, write(ssn, text))
				}
			}
			for i := 0; peer.UnderWay() > 0; i++ {
				at := 0
				if len(order) > 0 {
					at = int(order[i%len(order)]) % peer.UnderWay()
				}
				b.Input(epoch, b.a.Pick(at))
			}
			for i, l := range k.log {
				if strings.HasPrefix(l, "placed") {
					k.log[i] = fmt.Sprint("m", i)
					if !slices.Contains(k.placed, k.log[i]) {
						t.Fatalf("message %d was not placed", i)
					}
				}
			}
			return fmt.Sprint(s.State(), events(s), k.log, s.Err(), sent(b.a, 0))
		}
		if in, out := run(nil), run(order); in != out {
			t.Fatalf("%s in order %v:\n in order %s\n out      %s", kinds, order, in, out)
		}
	})
}
