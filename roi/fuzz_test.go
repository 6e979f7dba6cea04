package roi_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
)

// Whatever comes is a message or a fault with a cause that is registered. A message that is written
// again is the same, and so are its octets once its reserved fields are zero: ROI-019, ROI-039.
func FuzzParse(f *testing.F) {
	for _, m := range []roi.Message{
		{Kind: roi.ReadRequest, Credits: 1, Size: 5}, {Kind: roi.Send, Final: true, Number: 9},
		{Kind: roi.CreditReturn, Credits: 255}, {Kind: roi.Failure, Cause: iwarp.TermNoBuffer},
		{Notify: true, Final: true, Notifying: true, Client: roi.MaxClient},
		{Response: true, Credits: 3},
	} {
		f.Add(append(m.Append(nil), "data"...))
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, seg []byte) {
		m, data, err := roi.Parse(seg)
		if err != nil {
			var le *iwarp.LocalError
			if !errors.As(err, &le) || !le.Cause.Registered() {
				t.Fatalf("%v", err)
			}
			return
		}
		if n := m.Kind.Len(); len(seg) != n+len(data) {
			t.Fatalf("a %v of %d octets has %d of data", m.Kind, len(seg), len(data))
		}
		b := m.Append(nil)
		again, _, err := roi.Parse(b)
		if err != nil || again != m {
			t.Fatalf("%+v is read again as %+v, %v", m, again, err)
		}
		if c := again.Append(nil); !bytes.Equal(b, c) {
			t.Fatalf("% x, then % x", b, c)
		}
	})
}

// A Setup is read as it was written, and nothing else is taken for one.
func FuzzSetup(f *testing.F) {
	s := roi.Setup{Sends: true, SendCredits: 3}
	f.Add(s.Append(nil))
	f.Add([]byte("ROI0, and more of that"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, ok := roi.ParseSetup(b)
		if !ok {
			if !bytes.Equal(rest, b) {
				t.Fatal("private data without a Setup were changed")
			}
			return
		}
		if got := append(s.Append(nil), rest...); !bytes.Equal(got, b) {
			t.Fatalf("% x, then % x", b, got)
		}
	})
}

// A peer sends what it likes, in segments and as a stream of octets. What is placed stays within
// what it may (the Host checks that), a Send takes one receive, no more is begun than was promised,
// a stream ends once, and behind its end nothing is placed.
func FuzzEndpoint(f *testing.F) {
	seed := func(msgs ...roi.Message) {
		var b []byte
		for _, m := range msgs {
			seg := m.Append(nil)
			if m.Kind == roi.Data || m.Kind == roi.Send {
				seg = append(seg, "four"...)
			}
			b = append(b, byte(len(seg)))
			b = append(b, seg...)
		}
		f.Add(uint8(3), b)
		f.Add(uint8(0), b)
	}
	seed(roi.Message{Kind: roi.Send, Final: true}, roi.Message{Kind: roi.Send, Number: 1, Final: true})
	seed(roi.Message{Kind: roi.Send}, roi.Message{Kind: roi.CreditReturn, Credits: 9},
		roi.Message{Kind: roi.Send, SendOffset: 4, Final: true})
	seed(roi.Message{STag: 1, Offset: 2},
		roi.Message{STag: 1, Final: true, Notifying: true, Notify: true})
	seed(roi.Message{Kind: roi.ReadRequest, STag: 1, Size: 9}, roi.Message{Response: true, Final: true,
		Notify: true, STag: 33, Offset: 7})
	f.Fuzz(func(t *testing.T, flags uint8, data []byte) {
		const receives = 3
		own := roi.Setup{Sends: flags&1 != 0, Reads: flags&2 != 0}
		peer := own
		if own.Sends {
			own.SendCredits, peer.SendCredits = receives-1, 1
		}
		if own.Reads {
			own.ReadCredits, peer.ReadCredits = 2, 2
		}
		p := newPair(t, setting{x: peer, y: own, records: true})
		h := p.y
		h.mem[1], h.mem[2] = make([]byte, 64), make([]byte, 4)
		for range receives {
			h.recv = append(h.recv, make([]byte, 8))
		}
		must(t, h.ep.PostRead(2, 33, 7, 4, 1, 0))
		must(t, h.ep.PostSend(9, octets("x"), 1))
		var first error
		for len(data) > 1 {
			n := min(int(data[0]), len(data)-1)
			before := len(h.log)
			was := h.ep.Err()
			err := h.ep.Segment(data[1:][:n:n], n)
			if err != nil && (!errors.Is(err, iwarp.ErrNoReceive) || own.Sends || len(h.recv) > 0) {
				t.Fatalf("with %d receives: %v", len(h.recv), err)
			}
			if was != nil && len(h.log) != before {
				t.Fatalf("behind %v: %v", was, h.log[before:])
			}
			h.ep.Fill()
			h.ep.Commit(h.ep.Len())
			data = data[1+n:]
		}
		switch taken := receives - len(h.recv); {
		case own.Sends && taken > int(own.SendCredits):
			t.Fatalf("%d receives were taken, %d promised", taken, own.SendCredits)
		case len(h.sends)+len(h.told) > taken:
			t.Fatalf("%d Sends and %d notifying Writes in %d receives", len(h.sends), len(h.told), taken)
		case len(h.reads) > 1:
			t.Fatalf("%d Reads have ended, one was posted", len(h.reads))
		}
		if first = h.ep.Err(); first != nil {
			h.ep.Fail(iwarp.TermClosed, nil)
			if h.ep.Err() != first {
				t.Fatalf("%v became %v", first, h.ep.Err())
			}
		}
		h.ep.Close()
		if h.source != 0 {
			t.Fatalf("%d sources were not given back", h.source)
		}
	})
}

// A stream of octets that is no stream of FPDUs ends with a fault, or waits for more.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 6, 2, 0, 0x30, 0, 0, 0, 0, 0, 0, 0}, uint16(3))
	f.Add(iwarp.AppendFPDU(nil, unhex("0200 30000000"), true), uint16(5))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		var ends [2]*end
		for i := range ends { // in one piece, and in two
			h := &end{t: t}
			var err error
			if h.ep, err = roi.NewEndpoint(h, roi.Config{CRC: true}); err != nil {
				t.Fatal(err)
			}
			h.ep.Grant(1)
			at := 0
			if i == 1 {
				at = min(int(cut), len(b))
			}
			for _, part := range [][]byte{b[:at], b[at:]} {
				n, err := h.ep.Write(part)
				if err != nil && !h.ep.Stalled() || err == nil && n != len(part) {
					t.Fatalf("%d of %d octets, %v", n, len(part), err)
				}
				if err != nil {
					break
				}
			}
			ends[i] = h
		}
		x, y := ends[0].ep.Err(), ends[1].ep.Err()
		if (x == nil) != (y == nil) || x != nil && x.Error() != y.Error() {
			t.Fatalf("whole: %v; cut at %d: %v", x, cut, y)
		}
	})
}

// Two honest ends, whatever they post, grant and in whatever pieces it goes: nobody ever finds the
// receive queue of the other empty, or ends the stream; all arrives, once and in order, when there
// are receives; credits are neither lost nor made; and in the end both are idle.
func FuzzPair(f *testing.F) {
	f.Add(uint64(1), uint8(0xff), []byte("ssswwwrrrnnngggxxxSSSWWWRRRNNNGGGXXX"))
	f.Add(uint64(2), uint8(1), []byte("grsnwgrsnwxXgGxXgG"))
	f.Add(uint64(3), uint8(2), []byte("rrrrrrrrrrrrRRRRRRRRRRxX"))
	f.Fuzz(func(t *testing.T, seed uint64, flags uint8, script []byte) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := setting{records: flags&4 != 0, mulpdu: 130 + rng.IntN(400),
			cut: func() int { return 1 + rng.IntN(900) }}
		s.x = roi.Setup{Sends: flags&1 != 0, Reads: flags&2 != 0}
		if s.x.Reads {
			s.x.ReadCredits = uint16(1 + rng.IntN(4))
		}
		s.y = s.x
		p := newPair(t, s)
		type posted struct{ sends, told, writes, reads, sent int }
		var did [2]posted
		script = script[:min(len(script), 200)]
		for _, c := range script {
			i := int(c >> 5 & 1) // letters in lower case are x's
			from, to, d := p.x, p.y, &did[0]
			if i == 0 {
				from, to, d = p.y, p.x, &did[1]
			}
			if c != 'g' && c != 'G' && c != 'x' && c != 'X' && !from.ep.CanPost() {
				continue
			}
			n := []int{0, 1, 100, 1000}[rng.IntN(4)]
			want := octets(fill(n, byte(d.sent)))
			switch c | 0x20 {
			case 's':
				must(t, from.ep.PostSend(0, want, uint32(n)))
				d.sends++
			case 'n', 'w':
				stag := iwarp.STag(1000 + d.writes)
				to.mem[stag] = make([]byte, n)
				if c|0x20 == 'n' {
					must(t, from.ep.PostNotifyingWrite(0, uint32(d.told), stag, 0, want, uint32(n)))
					d.told++
				} else {
					must(t, from.ep.PostWrite(0, uint32(d.writes), stag, 0, want, uint32(n)))
				}
				d.writes++
			case 'r':
				stag := iwarp.STag(d.reads)
				from.mem[stag], to.mem[500] = make([]byte, n), fill(1000, 5)
				must(t, from.ep.PostRead(uint64(stag), stag, 0, uint32(n), 500, 0))
				d.reads++
			case 'g':
				from.post(rng.IntN(4), 1000)
				continue
			case 'x':
				p.move(from, to, i)
				continue
			default:
				continue
			}
			d.sent++
		}
		for range 100 { // as many receives as are wanted, at last
			p.run()
			p.well()
			for _, h := range []*end{p.x, p.y} {
				if n := h.ep.Promised(); s.x.Sends && n != len(h.recv) {
					t.Fatalf("%d receives, %d promised", len(h.recv), n)
				}
				if len(h.recv) < 4 {
					h.post(4, 1000)
				}
			}
		}
		for i, h := range []*end{p.y, p.x} {
			d := did[i]
			from := []*end{p.x, p.y}[i]
			if len(h.sends) != d.sends || len(h.told) != d.told || h.writes != d.writes ||
				len(from.reads) != d.reads || len(from.sent) != d.sent {
				t.Fatalf("posted %+v; %d Sends, %d told, %d Writes, %d Reads, %d sent", d, len(h.sends),
					len(h.told), h.writes, len(from.reads), len(from.sent))
			}
			for j, got := range h.told {
				if got.client != uint32(j) {
					t.Fatalf("told %v", h.told)
				}
			}
			for j, got := range from.reads {
				if got.n != uint64(j) {
					t.Fatalf("Reads ended as %v", from.reads)
				}
			}
			if !h.ep.Idle() || h.source != 0 {
				t.Fatalf("idle %t, %d sources", h.ep.Idle(), h.source)
			}
		}
	})
}
