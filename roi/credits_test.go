package roi_test

import (
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
)

// A Send and a notifying Write take a credit each, and wait without: ROI-002, ROI-016.
func TestSendCredits(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.y.SendCredits = 3
		p := newPair(t, s)
		x, y := p.x, p.y
		for range 3 {
			y.recv = append(y.recv, make([]byte, 10))
		}
		y.mem[1] = make([]byte, 10)
		must(t, x.ep.PostSend(0, octets("a"), 1))
		must(t, x.ep.PostWrite(1, 0, 1, 0, octets("plain"), 5))
		must(t, x.ep.PostNotifyingWrite(2, 77, 1, 5, octets("told"), 4))
		for i := range uint64(3) {
			must(t, x.ep.PostSend(3+i, octets("b"), 1))
		}
		p.run()
		p.well()
		equal(t, "before more credits", y.log, []string{"send", "write", "write", "notified", "send"})
		equal(t, "notifying Writes", y.told, []told{{77, 4}})
		equal(t, "what the transport has", x.sent, []uint64{0, 1, 2, 3})
		y.post(1, 10)
		p.run()
		y.post(1, 10)
		p.run()
		p.well()
		equal(t, "in the end", x.sent, []uint64{0, 1, 2, 3, 4, 5})
		if len(y.sends) != 4 || !x.ep.Idle() || !y.ep.Idle() || y.ep.Promised() != 0 {
			t.Errorf("%d Sends; idle %t and %t, %d promised", len(y.sends), x.ep.Idle(), y.ep.Idle(),
				y.ep.Promised())
		}
		same(t, "the Writes", y.mem[1], []byte("plaintold\x00"))
	})
}

// A Send of many messages takes one credit: ROI-003.
func TestLongSend(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		p := newPair(t, s)
		want := fill(1<<20, 3)
		p.y.post(1, len(want))
		must(t, p.x.ep.PostSend(0, octets(want), uint32(len(want))))
		p.run()
		p.well()
		if len(p.y.sends) != 1 {
			t.Fatalf("%d Sends were delivered", len(p.y.sends))
		}
		same(t, "the Send", p.y.sends[0], want)
	})
}

// Reads go on while there is no credit for a Send, and Sends while there is none for a Read:
// ROI-001. A Read takes a credit, and gives it back when it has ended: ROI-004, ROI-005.
func TestPools(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.y.ReadCredits = 2
		p := newPair(t, s)
		x, y := p.x, p.y
		y.mem[9] = fill(100, 1)
		x.mem[0], x.mem[1], x.mem[2] = make([]byte, 100), make([]byte, 100), make([]byte, 100)
		for i := range uint64(3) {
			must(t, x.ep.PostRead(i, iwarp.STag(i), 0, 100, 9, 0))
		}
		must(t, x.ep.PostSend(3, octets("x"), 1))
		p.move(x, y, 1)
		p.move(x, y, 1)
		p.move(x, y, 1)
		p.move(x, y, 1)
		if n := len(x.kinds(roi.ReadRequest)); n != 2 {
			t.Errorf("%d Read Requests are out with 2 credits", n)
		}
		p.run()
		p.well()
		if n := len(x.kinds(roi.ReadRequest)); n != 3 || len(x.reads) != 3 || len(x.kinds(roi.Send)) > 0 {
			t.Errorf("without a credit for the Send: %d Read Requests, %d Reads, %d messages of Sends", n,
				len(x.reads), len(x.kinds(roi.Send)))
		}
		y.post(1, 10)
		p.run()
		if len(y.sends) != 1 {
			t.Error("the Send did not go out with a credit")
		}

		// y does not answer: x has no credit for a Read then.
		for i := range uint64(2) {
			must(t, x.ep.PostRead(i, iwarp.STag(i), 0, 100, 9, 0))
		}
		y.post(4, 10)
		p.move(y, x, 0)
		for i := range uint64(4) {
			must(t, x.ep.PostSend(i, octets("x"), 1))
		}
		for range 8 {
			p.move(x, y, 1)
		}
		if len(y.sends) != 5 || len(x.reads) != 3 {
			t.Errorf("without a credit for Reads: %d Sends, %d Reads", len(y.sends), len(x.reads))
		}
		// A steady line of two.
		for i := range uint64(50) {
			must(t, x.ep.PostRead(i%3, iwarp.STag(i%3), 0, 100, 9, 0))
		}
		p.run()
		p.well()
		if len(x.reads) != 55 {
			t.Errorf("%d Reads in the end", len(x.reads))
		}
	})
}

// Credits come in each kind of message: ROI-006, ROI-020, ROI-032. Those in the middle of a group
// have Notify set and are seen, and the client is told of nothing: ROI-015.
func TestCreditsInAll(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		for _, tt := range []struct {
			name string
			post func(p *pair)
			in   func(m message) bool
		}{
			{"Send", func(p *pair) {
				p.x.post(20, 1) // y is told of enough not to be due
				p.run()
				must(t, p.y.ep.PostSend(0, octets("x"), 1))
			}, func(m message) bool { return m.Kind == roi.Send }},
			{"Read Request", func(p *pair) {
				must(t, p.y.ep.PostRead(1, 1, 0, 1, 1, 0))
			}, func(m message) bool { return m.Kind == roi.ReadRequest }},
			{"Write", func(p *pair) {
				must(t, p.y.ep.PostWrite(0, 0, 1, 0, octets(fill(2000, 0)), 2000))
			}, func(m message) bool { return m.Kind == roi.Data && !m.Response && !m.Final && m.Notify }},
			{"Read Response", func(p *pair) {
				must(t, p.x.ep.PostRead(1, 1, 0, 2000, 1, 0))
				p.move(p.x, p.y, 1)
				p.move(p.x, p.y, 1)
			}, func(m message) bool { return m.Kind == roi.Data && m.Response && !m.Final && m.Notify }},
			{"Credit Return", func(p *pair) {}, func(m message) bool { return m.Kind == roi.CreditReturn }},
		} {
			p := newPair(t, s)
			p.x.mem[1], p.y.mem[1] = make([]byte, 2000), make([]byte, 2000)
			p.run()
			tt.post(p)
			p.y.gave = nil
			p.y.post(5, 10)
			for i := range uint64(5) {
				must(t, p.x.ep.PostSend(i, octets("x"), 1))
			}
			p.run()
			p.well()
			if got := only(p.y.gave, func(m message) bool { return m.Credits > 0 }); len(got) != 1 ||
				got[0].Credits != 5 || !tt.in(got[0]) {
				t.Errorf("%s: the credits came in %+v", tt.name, got)
			}
			if len(p.y.sends) != 5 || len(p.x.told) != 0 {
				t.Errorf("%s: %d Sends, %d indications", tt.name, len(p.y.sends), len(p.x.told))
			}
		}
	})
}

// Where a pool is off nothing waits, and no credit is told: ROI-007, ROI-008.
func TestWithoutCredits(t *testing.T) {
	for _, sends := range []bool{false, true} {
		for _, reads := range []bool{false, true} {
			own := roi.Setup{Sends: sends, Reads: reads}
			p := newPair(t, setting{x: own, y: own, mulpdu: 500})
			p.y.mem[1] = make([]byte, 2000)
			p.y.post(300, 10)
			for i := range uint64(3) {
				must(t, p.x.ep.PostWrite(i, 0, 1, 0, octets(fill(2000, 0)), 2000))
				must(t, p.x.ep.PostNotifyingWrite(i, 0, 1, 0, octets("x"), 1))
				must(t, p.x.ep.PostSend(i, octets("x"), 1))
			}
			p.x.mem[1] = make([]byte, 2000)
			must(t, p.x.ep.PostRead(1, 1, 0, 2000, 1, 0))
			p.run()
			p.well()
			if len(p.y.sends) != 3 || len(p.y.told) != 3 || len(p.x.reads) != 1 && !reads {
				t.Errorf("%+v: %d Sends, %d notifying Writes, %d Reads", own, len(p.y.sends), len(p.y.told),
					len(p.x.reads))
			}
			if reads && len(p.x.kinds(roi.ReadRequest)) != 0 {
				t.Errorf("%+v: a Read went out without a credit", own)
			}
			for _, h := range []*end{p.x, p.y} {
				with := only(h.gave, func(m message) bool { return m.Credits > 0 })
				if !sends && len(with) > 0 {
					t.Errorf("%+v: credits in %+v", own, with)
				}
			}
			if sends {
				continue
			}
			p.y.ep.Segment((&roi.Message{Kind: roi.CreditReturn, Credits: 1}).Append(nil), 0)
			wantErr(t, p.y, iwarp.TermRemoteOperation)
		}
	}
}

// Without flow control a Send that finds no receive waits at the receiver, and holds up what is
// behind it; nothing is lost.
func TestStall(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.x, s.y = roi.Setup{}, roi.Setup{}
		p := newPair(t, s)
		want := fill(2000, 1)
		p.y.mem[1] = make([]byte, 1)
		for i := range uint64(3) {
			must(t, p.x.ep.PostSend(i, octets(want), 2000))
			must(t, p.x.ep.PostNotifyingWrite(i, 5, 1, 0, octets("x"), 1))
		}
		for n := range 7 {
			p.run()
			if p.y.ep.Stalled() != (n < 6) || len(p.y.log) != n+n/2 {
				t.Fatalf("with %d receives: stalled %t, %v", n, p.y.ep.Stalled(), p.y.log)
			}
			p.y.post(1, 2000)
		}
		p.well()
		for _, got := range p.y.sends {
			same(t, "a Send", got, want)
		}
	})
}

// Traffic one way only, for as long as one likes: Credit Returns come by themselves, and cost no
// credit: ROI-032. No receive queue is ever found empty.
func TestOneWay(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		p := newPair(t, s)
		const depth, n = 8, 5000
		p.y.post(depth, 10)
		sent := 0
		for len(p.y.sends) < n {
			for p.x.ep.CanPost() && sent < n {
				must(t, p.x.ep.PostSend(0, octets("x"), 1))
				sent++
			}
			had := len(p.y.sends)
			p.move(p.x, p.y, 1)
			p.y.post(len(p.y.sends)-had, 10)
			p.move(p.y, p.x, 0)
			p.well()
			if p.y.ep.Promised() != len(p.y.recv) {
				t.Fatalf("%d receives, %d promised", len(p.y.recv), p.y.ep.Promised())
			}
		}
		if k := len(p.y.kinds(roi.CreditReturn)); k == 0 || k > n/2 {
			t.Errorf("%d Credit Returns for %d Sends with %d receives", k, n, depth)
		}
	})
}

// More than 255 credits go in several messages, and nobody can have more than a Setup could grant:
// ROI-033.
func TestManyCredits(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		p := newPair(t, s)
		p.y.post(1000, 10)
		for i := range 1000 {
			if i%200 == 0 {
				p.run()
			}
			must(t, p.x.ep.PostSend(0, octets("x"), 1))
		}
		p.run()
		p.well()
		told := 0
		for _, m := range p.y.gave {
			told += int(m.Credits)
		}
		if len(p.y.sends) != 1000 || told != 1000 {
			t.Errorf("%d Sends, %d credits", len(p.y.sends), told)
		}
		flood := (&roi.Message{Kind: roi.CreditReturn, Credits: 255}).Append(nil)
		for i := range 1<<16/255 + 1 {
			if p.x.ep.Err() != nil {
				t.Fatalf("%d Credit Returns are too many: %v", i, p.x.ep.Err())
			}
			p.x.ep.Segment(flood, len(flood))
		}
		wantErr(t, p.x, iwarp.TermRemoteOperation)
	})
}

// A peer that begins what it has no credit for loses the stream, whatever is posted: ROI-002,
// ROI-004.
func TestCheats(t *testing.T) {
	send := roi.Message{Kind: roi.Send, Final: true}
	write := roi.Message{Notify: true, Final: true, Notifying: true}
	read := roi.Message{Kind: roi.ReadRequest}
	for _, tt := range []struct {
		name   string
		m      []roi.Message
		passes int
	}{
		{"Send", []roi.Message{send, send}, 1},
		{"notifying Write", []roi.Message{write, write}, 1},
		{"both", []roi.Message{write, send}, 1},
		{"Read", []roi.Message{read, read, read}, 2},
	} {
		own := roi.Setup{Sends: true, SendCredits: 1, Reads: true, ReadCredits: 2}
		p := newPair(t, setting{x: own, y: own})
		for range 5 {
			p.y.recv = append(p.y.recv, []byte{}) // posted, and not promised
		}
		for i, m := range tt.m {
			m.Number = uint32(len(p.y.sends))
			if err := p.y.ep.Err(); err != nil {
				t.Fatalf("%s: %d are too many: %v", tt.name, i, err)
			}
			p.y.ep.Segment(m.Append(nil), 0)
		}
		wantErr(t, p.y, iwarp.TermNoBuffer)
	}
}
