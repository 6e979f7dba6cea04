package roi_test

import (
	"errors"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
)

// free is no flow control at all.
var free = roi.Setup{}

// A Write is one or more messages to its STag, of which the last has F and no other has: ROI-011,
// ROI-013. Only a notifying one has N, on that message, and Notify, and only of it the client is
// told, once: ROI-012, ROI-014, ROI-016. The client's bits arrive as they were: ROI-009.
func TestWrite(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.x, s.y = free, free
		const most = 500 - 18 // octets of a message
		for _, n := range []int{0, 1, most, most + 1, 100 * most, 100*most + 1} {
			for _, notifying := range []bool{false, true} {
				p := newPair(t, s)
				p.y.mem[5] = make([]byte, n+10)
				p.y.post(1, 0)
				want := fill(n, byte(n))
				post := p.x.ep.PostWrite
				if notifying {
					post = p.x.ep.PostNotifyingWrite
				}
				must(t, post(1, roi.MaxClient, 5, 7, octets(want), uint32(n)))
				p.run()
				p.well()
				same(t, "the Write", p.y.mem[5][7:7+n], want)
				msgs := p.x.kinds(roi.Data)
				if len(msgs) != max(1, (n+most-1)/most) {
					t.Errorf("%d octets in %v", n, sizes(msgs))
				}
				for i, m := range msgs {
					last := i == len(msgs)-1
					if m.Response || m.Final != last || m.Notifying != (last && notifying) ||
						m.Notify != m.Notifying || m.Client != roi.MaxClient || m.STag != 5 ||
						m.Offset != uint64(7+i*most) {
						t.Errorf("%d octets, notifying %t: message %d of %d is %+v", n, notifying, i, len(msgs), m)
					}
				}
				if notifying {
					equal(t, "told", p.y.told, []told{{roi.MaxClient, uint64(n)}})
				} else if len(p.y.told) != 0 {
					t.Errorf("told of a plain Write: %v", p.y.told)
				}
			}
		}
	})
}

// A Read brings the octets to its destination, in a group of messages with R, of which the last has
// F and Notify, and is told once: ROI-010, ROI-011, ROI-017, ROI-021. One of no octets is answered,
// too, and gives its credit back: ROI-024.
func TestRead(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.x, s.y = roi.Setup{Reads: true, ReadCredits: 1}, roi.Setup{Reads: true, ReadCredits: 1}
		const most = 500 - 18
		p := newPair(t, s)
		p.y.mem[5] = fill(1<<17, 1)
		for i, n := range []int{0, 1, most, 0, most + 1, 100 * most, 0, 99_999} {
			p.y.gave, p.x.reads = nil, nil
			p.x.mem[3] = make([]byte, n)
			must(t, p.x.ep.PostRead(3, 33, 1<<40, uint32(n), 5, uint64(i*17)))
			p.run()
			p.well()
			same(t, "the Read", p.x.mem[3], p.y.mem[5][i*17:][:n])
			equal(t, "ended", p.x.reads, []told{{uint32(i + 1), 3}})
			msgs := p.y.kinds(roi.Data)
			if len(msgs) != max(1, (n+most-1)/most) {
				t.Errorf("%d octets in %v", n, sizes(msgs))
			}
			for j, m := range msgs {
				last := j == len(msgs)-1
				if !m.Response || m.Notifying || m.Final != last || m.Notify != last || m.STag != 33 ||
					m.Offset != uint64(1<<40+j*most) {
					t.Errorf("%d octets: message %d of %d is %+v", n, j, len(msgs), m)
				}
			}
		}
		if p.y.source != 0 {
			t.Errorf("%d sources were not given back", p.y.source)
		}
	})
}

// The client that answers chooses its part of the identifier, by which the one that asked tells the
// answers apart: ROI-022.
func TestReadIdentifiers(t *testing.T) {
	s := setting{x: roi.Setup{Reads: true}, y: roi.Setup{Reads: true, ReadCredits: 8}, mulpdu: 200}
	p := newPair(t, s)
	p.y.mem[5], p.y.client = fill(8000, 1), roi.MaxClient-5 // and round the end
	var want []told
	for i := range uint64(8) {
		p.x.mem[iwarp.STag(i)] = make([]byte, 1000)
		must(t, p.x.ep.PostRead(i, iwarp.STag(i), 0, 1000, 5, i*1000))
		want = append(want, told{(roi.MaxClient - 4 + uint32(i)) & roi.MaxClient, i})
	}
	p.move(p.x, p.y, 1)
	if n := len(p.x.kinds(roi.ReadRequest)); n != 8 {
		t.Fatalf("%d Reads are outstanding", n)
	}
	p.run()
	p.well()
	equal(t, "Reads by identifier", p.x.reads, want)
	for i := range 8 {
		same(t, "a Read", p.x.mem[iwarp.STag(i)], p.y.mem[5][i*1000:][:1000])
	}
}

// A Read Response has as many octets as the Read asked for, or the stream ends: ROI-023.
func TestReadLength(t *testing.T) {
	ask := func() *end {
		p := newPair(t, setting{x: free, y: free})
		p.x.mem[3] = make([]byte, 10)
		must(t, p.x.ep.PostRead(3, 33, 100, 10, 5, 0))
		p.move(p.x, p.y, 1)
		return p.x
	}
	whole := roi.Message{Response: true, Final: true, Notify: true, STag: 33, Offset: 100}
	x := ask()
	x.ep.Segment(append(whole.Append(nil), make([]byte, 10)...), 0)
	if x.ep.Err() != nil || len(x.reads) != 1 {
		t.Fatalf("an honest answer: %v, %d Reads", x.ep.Err(), len(x.reads))
	}
	for _, tt := range []struct {
		name string
		n    int
		edit func(m *roi.Message)
		want iwarp.TermCode
	}{
		{"too short", 9, func(*roi.Message) {}, iwarp.TermRemoteOperation},
		{"too long", 11, func(*roi.Message) {}, iwarp.TermRemoteOperation},
		{"too long and goes on", 11, func(m *roi.Message) { m.Final = false }, iwarp.TermRemoteOperation},
		{"all, and goes on", 10, func(m *roi.Message) { m.Final = false }, iwarp.TermRemoteOperation},
		{"elsewhere", 10, func(m *roi.Message) { m.STag++ }, iwarp.TermInvalidSTag},
		{"further on", 10, func(m *roi.Message) { m.Offset++ }, iwarp.TermInvalidSTag},
		{"without Notify", 10, func(m *roi.Message) { m.Notify = false }, iwarp.TermRemoteOperation},
		{"with N", 10, func(m *roi.Message) { m.Notifying = true }, iwarp.TermRemoteOperation},
	} {
		x, m := ask(), whole
		tt.edit(&m)
		x.ep.Segment(append(m.Append(nil), make([]byte, tt.n)...), 0)
		t.Log(tt.name)
		wantErr(t, x, tt.want)
		if len(x.reads) != 0 {
			t.Errorf("%s: the Read has ended well", tt.name)
		}
	}
	x = ask()
	x.ep.Segment(append(whole.Append(nil), make([]byte, 10)...), 0)
	x.ep.Segment(whole.Append(nil), 0)
	wantErr(t, x, iwarp.TermUnexpectedOpcode)

	// The source is too short: the end that has it says so.
	p := newPair(t, setting{x: free, y: free})
	p.y.mem[5], p.x.mem[3] = make([]byte, 9), make([]byte, 10)
	must(t, p.x.ep.PostRead(3, 33, 100, 10, 5, 0))
	p.run()
	wantErr(t, p.y, iwarp.TermReadBounds)
	var pe *iwarp.PeerError
	if !errors.As(p.x.ep.Err(), &pe) || pe.Cause != iwarp.TermReadBounds || len(p.x.reads) != 0 {
		t.Errorf("the end that asked has %v and %d Reads", p.x.ep.Err(), len(p.x.reads))
	}
}

// Sends of any length arrive, each as messages with one number, their offsets, and F on the last
// one only: ROI-025, ROI-027, ROI-028, ROI-029. The numbers go up by one from 0: ROI-026.
func TestSends(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.x, s.y = free, free
		const most = 500 - 14
		p := newPair(t, s)
		for i, n := range []int{0, 1, most, most + 1, 1 << 17, 0} {
			p.y.post(1, n)
			p.x.gave, p.y.sends = nil, nil
			want := fill(n, byte(i))
			must(t, p.x.ep.PostSend(9, octets(want), uint32(n)))
			p.run()
			p.well()
			if len(p.y.sends) != 1 {
				t.Fatalf("%d Sends of %d octets", len(p.y.sends), n)
			}
			same(t, "the Send", p.y.sends[0], want)
			msgs := p.x.kinds(roi.Send)
			if len(msgs) != max(1, (n+most-1)/most) {
				t.Errorf("%d octets in %v", n, sizes(msgs))
			}
			for j, m := range msgs {
				if m.Number != uint32(i) || m.SendOffset != uint32(j*most) || m.Final != (j == len(msgs)-1) {
					t.Errorf("%d octets: message %d of %d is %+v", n, j, len(msgs), m)
				}
			}
		}
		if err := p.x.ep.PostSend(0, nil, 1<<31); !errors.Is(err, roi.ErrTooLong) {
			t.Errorf("a Send of 2^31 octets: %v", err)
		}
		if err := p.x.ep.PostWrite(0, roi.MaxClient+1, 0, 0, nil, 0); !errors.Is(err, roi.ErrClient) {
			t.Errorf("an identifier of 21 bits: %v", err)
		}
		if err := p.x.ep.PostNotifyingWrite(0, 1<<20, 0, 0, nil, 0); !errors.Is(err, roi.ErrClient) {
			t.Errorf("an identifier of 21 bits: %v", err)
		}
	})
}

// The messages of a Send come in line, and so do Sends, or the stream ends: ROI-026, ROI-027,
// ROI-028, ROI-029. Nothing else is between them, and no part of an operation within another.
func TestOutOfLine(t *testing.T) {
	first, last := roi.Message{Kind: roi.Send}, roi.Message{Kind: roi.Send, SendOffset: 4, Final: true}
	data, end := roi.Message{STag: 5}, roi.Message{STag: 5, Final: true, Offset: 4}
	told := roi.Message{STag: 5, Final: true, Notifying: true, Notify: true, Offset: 4}
	read := roi.Message{Kind: roi.ReadRequest, STag: 5}
	edited := func(m roi.Message, f func(m *roi.Message)) roi.Message { f(&m); return m }
	for _, tt := range []struct {
		name string
		msgs []roi.Message
		want iwarp.TermCode // zero: all is well
	}{
		{"honest", []roi.Message{first, last, data, end, data, told, read}, iwarp.TermCode{}},
		{"Credit Return within", []roi.Message{first, {Kind: roi.CreditReturn}, last}, iwarp.TermCode{}},
		{"number too high", []roi.Message{edited(first, func(m *roi.Message) { m.Number = 1 })},
			iwarp.TermMSNRange},
		{"the same once more", []roi.Message{first, last, first}, iwarp.TermMSNRange},
		{"number changes", []roi.Message{first, edited(last, func(m *roi.Message) { m.Number = 1 })},
			iwarp.TermMSNRange},
		{"begins behind", []roi.Message{last}, iwarp.TermInvalidMO},
		{"a hole", []roi.Message{first, edited(last, func(m *roi.Message) { m.SendOffset = 5 })},
			iwarp.TermInvalidMO},
		{"again", []roi.Message{first, first}, iwarp.TermInvalidMO},
		{"no F", []roi.Message{first, edited(first, func(m *roi.Message) { m.Number = 1 })},
			iwarp.TermMSNRange},
		{"early F", []roi.Message{edited(first, func(m *roi.Message) { m.Final = true }), last},
			iwarp.TermMSNRange},
		{"too long", []roi.Message{first, edited(last, func(m *roi.Message) { m.Final = false }),
			{Kind: roi.Send, SendOffset: 8}}, iwarp.TermMessageTooLong},
		{"Write within a Send", []roi.Message{first, data}, iwarp.TermRemoteOperation},
		{"notifying Write within a Send", []roi.Message{first, told}, iwarp.TermRemoteOperation},
		{"Read within a Send", []roi.Message{first, read}, iwarp.TermRemoteOperation},
		{"Send within a Write", []roi.Message{data, first}, iwarp.TermRemoteOperation},
		{"Read within a Write", []roi.Message{data, read}, iwarp.TermRemoteOperation},
		{"Write to another STag", []roi.Message{data, edited(end, func(m *roi.Message) { m.STag = 6 })},
			iwarp.TermRemoteOperation},
		{"notifying Write to another STag", []roi.Message{data, edited(told, func(m *roi.Message) {
			m.STag = 6
		})}, iwarp.TermRemoteOperation},
		{"N without F", []roi.Message{edited(told, func(m *roi.Message) { m.Final = false })},
			iwarp.TermRemoteOperation},
		{"N without Notify", []roi.Message{edited(told, func(m *roi.Message) { m.Notify = false })},
			iwarp.TermRemoteOperation},
		{"Write beyond its place", []roi.Message{edited(data, func(m *roi.Message) { m.Offset = 98 })},
			iwarp.TermBounds},
	} {
		p := newPair(t, setting{x: free, y: free})
		p.y.mem[5], p.y.mem[6] = make([]byte, 100), make([]byte, 100)
		p.y.post(5, 10)
		for i, m := range tt.msgs {
			if err := p.y.ep.Err(); err != nil {
				t.Fatalf("%s: message %d: %v", tt.name, i, err)
			}
			seg := m.Append(nil)
			if m.Kind == roi.Data || m.Kind == roi.Send {
				seg = append(seg, "four"...)
			}
			if err := p.y.ep.Segment(seg, len(seg)); err != nil {
				t.Fatalf("%s: message %d: %v", tt.name, i, err)
			}
		}
		if tt.want == (iwarp.TermCode{}) {
			if err := p.y.ep.Err(); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		t.Log(tt.name)
		wantErr(t, p.y, tt.want)
	}
}

// With flow control of Sends, a decorated message that has credits and not Notify is an error:
// ROI-015.
func TestCreditsWithoutNotify(t *testing.T) {
	p := newPair(t, setting{x: both, y: both})
	m := roi.Message{STag: 5, Credits: 1, Notify: true}
	p.y.ep.Segment(m.Append(nil), 0)
	p.well()
	m.Notify = false
	p.y.ep.Segment(m.Append(nil), 0)
	wantErr(t, p.y, iwarp.TermRemoteOperation)
}

// What was posted before is delivered before, whatever it is: docs/decisions.md#W3. An
// operation without a credit holds back what is behind it.
func TestOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		p := newPair(t, s)
		p.y.mem[1], p.x.mem[1] = make([]byte, 5000), make([]byte, 5000)
		must(t, p.x.ep.PostWrite(0, 0, 1, 0, octets(fill(5000, 1)), 5000))
		must(t, p.x.ep.PostSend(1, octets("x"), 1))
		must(t, p.x.ep.PostRead(1, 1, 0, 5000, 1, 0))
		must(t, p.x.ep.PostWrite(3, 0, 1, 0, octets("y"), 1))
		must(t, p.x.ep.PostNotifyingWrite(4, 0, 1, 0, octets("z"), 1))
		p.run()
		equal(t, "without a credit", p.y.log, []string{"write"})
		p.y.post(2, 10)
		p.run()
		p.well()
		equal(t, "with credits", p.y.log, []string{"write", "send", "write", "write", "notified"})
		equal(t, "sent", p.x.sent, []uint64{0, 1, 1, 3, 4})
		// The source is read when the Read's turn comes, which may be behind later Writes.
		same(t, "the Read", p.x.mem[1][1:], fill(5000, 1)[1:])
	})
}

// Nobody but the Initiator may begin: the other end is silent until something has come.
func TestGreeting(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.x.SendCredits, s.y.SendCredits = 1, 1
		p := newPair(t, s)
		p.x.recv, p.y.recv = [][]byte{make([]byte, 1)}, [][]byte{make([]byte, 1)}
		must(t, p.y.ep.PostSend(0, octets("x"), 1))
		if p.move(p.y, p.x, 0) {
			t.Error("the end that was asked began")
		}
		p.move(p.x, p.y, 1)
		if len(p.x.gave) != 1 || p.x.gave[0].Kind != roi.CreditReturn || p.x.gave[0].Credits != 0 {
			t.Errorf("the Initiator began with %+v", p.x.gave)
		}
		p.run()
		p.well()
		if len(p.x.sends) != 1 {
			t.Error("the Send did not arrive")
		}
	})
}

// A stream ends with the cause, at both ends, and nothing is sent or taken behind it. What was made
// before the fault arrives.
func TestFailure(t *testing.T) {
	onBoth(t, func(t *testing.T, s setting) {
		s.x, s.y = free, free
		p := newPair(t, s)
		p.y.mem[1] = make([]byte, 10)
		p.y.post(2, 10)
		must(t, p.x.ep.PostSend(0, octets("a"), 1))
		must(t, p.x.ep.PostWrite(1, 0, 1, 8, octets("beyond"), 6))
		must(t, p.x.ep.PostSend(2, octets("b"), 1))
		p.run()
		wantErr(t, p.y, iwarp.TermBounds)
		var pe *iwarp.PeerError
		if !errors.As(p.x.ep.Err(), &pe) || pe.Cause != iwarp.TermBounds {
			t.Errorf("the peer ended with %v", p.x.ep.Err())
		}
		equal(t, "delivered", p.y.log, []string{"send"})
		if err := p.x.ep.PostSend(3, nil, 0); !errors.Is(err, roi.ErrEnded) {
			t.Errorf("posting behind the end: %v", err)
		}
		if f := p.y.kinds(roi.Failure); len(f) != 1 || p.x.ep.CanPost() {
			t.Errorf("%d Failures", len(f))
		}

		p = newPair(t, s)
		must(t, p.x.ep.PostSend(0, octets("short"), 6))
		p.run()
		wantErr(t, p.x, iwarp.TermLocalCatastrophic)
		if !errors.As(p.y.ep.Err(), &pe) || pe.Cause != iwarp.TermLocalCatastrophic {
			t.Errorf("memory that cannot be read: the peer ended with %v", p.y.ep.Err())
		}
	})
}

// A flipped bit anywhere in an FPDU is found where CRCs are used, before anything is placed.
func TestCRC(t *testing.T) {
	p := newPair(t, setting{x: free, y: free})
	p.y.mem[1] = make([]byte, 9)
	must(t, p.x.ep.PostWrite(0, 0, 1, 0, octets("nine octe"), 9))
	p.x.ep.Fill()
	b := make([]byte, p.x.ep.Len())
	if _, err := p.x.ep.Read(b); err != nil {
		t.Fatal(err)
	}
	second := iwarp.FPDULen(6) // behind the Credit Return that an Initiator begins with
	for i := range b {
		if i < 2 || i == second || i == second+1 {
			continue // a length says how much there is to be checked
		}
		q := newPair(t, setting{x: free, y: free})
		q.y.mem[1] = make([]byte, 9)
		b[i] ^= 0x10
		if n, err := q.y.ep.Write(b); n != len(b) || err != nil {
			t.Fatalf("%d of %d octets are taken, %v", n, len(b), err)
		}
		b[i] ^= 0x10
		if len(q.y.log) > 0 {
			t.Errorf("octet %d: %v", i, q.y.log)
		}
		wantErr(t, q.y, iwarp.TermCRC)
	}
}

// What is held for answers is given back with the stream.
func TestClose(t *testing.T) {
	p := newPair(t, setting{x: free, y: free})
	p.y.mem[5] = make([]byte, 10)
	must(t, p.x.ep.PostRead(3, 33, 100, 10, 5, 0))
	p.move(p.x, p.y, 1)
	if p.y.source != 1 {
		t.Fatalf("%d sources", p.y.source)
	}
	p.y.ep.Close()
	p.y.ep.Close()
	p.y.ep.Fill()
	if p.y.source != 0 || p.y.ep.Len() != 0 || !errors.Is(p.y.ep.Err(), roi.ErrEnded) {
		t.Errorf("closed: %d sources, %d octets to send, %v", p.y.source, p.y.ep.Len(), p.y.ep.Err())
	}
}
