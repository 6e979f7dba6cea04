package sctpddp_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// An rnic is the memory behind one QP, which is an Endpoint on a session.
type rnic struct {
	t     *testing.T
	s     *Session
	ep    *iwarp.Endpoint
	mem   []byte // STag 7
	posts int    // receive buffers, all of 3000 octets
	begun [][]byte
	got   []string
	sinks map[uint64][]byte
	reads []uint64
	sent  int
	seen  []string // segments as they were built
}

func newRNIC(t *testing.T, s *Session, posts int) *rnic {
	t.Helper()
	r := &rnic{t: t, s: s, mem: make([]byte, 100_000), posts: posts, sinks: map[uint64][]byte{}}
	r.ep = iwarp.NewEndpoint(s.Params(), r, iwarp.Config{
		Records: true, MULPDU: s.MULPDU(), SendQueue: 64,
		PlaceReceive: func(i int, off uint32, p []byte) error { copy(r.begun[i][off:], p); return nil },
		PlaceRead: func(token uint64, off uint32, p []byte) error {
			copy(r.sinks[token][off:], p)
			return nil
		},
		Trace: func(sent bool, seg []byte) {
			if sent {
				r.seen = append(r.seen, iwarp.DescribeSegment(seg))
			}
		},
	})
	if err := s.Attach(r.ep); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rnic) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	switch {
	case len(chunk) == 0:
	case stag != 7:
		return &iwarp.LocalError{Cause: iwarp.TermInvalidSTag}
	case to > uint64(len(r.mem)) || uint64(len(chunk)) > uint64(len(r.mem))-to:
		return &iwarp.LocalError{Cause: iwarp.TermBounds}
	default:
		copy(r.mem[to:], chunk)
	}
	return nil
}

func (r *rnic) BeginReceive() (uint32, bool) {
	if r.posts == 0 {
		return 0, false
	}
	r.posts--
	r.begun = append(r.begun, make([]byte, 3000))
	return 3000, true
}

func (r *rnic) PlaceReceive(off uint32, p []byte) error { copy(r.begun[0][off:], p); return nil }

func (r *rnic) EndReceive(d iwarp.Received) error {
	r.got = append(r.got, string(r.begun[0][:d.Length]))
	r.begun = r.begun[1:]
	return nil
}

func (r *rnic) PlaceRead(off uint32, p []byte) error {
	copy(r.sinks[r.reads[0]][off:], p)
	return nil
}

func (r *rnic) EndRead(token uint64) error {
	if r.reads[0] != token {
		r.t.Fatalf("Read %d ends, %d is next", token, r.reads[0])
	}
	r.reads = r.reads[1:]
	return nil
}

func (r *rnic) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, error) {
	if stag != 7 && n > 0 || to > uint64(len(r.mem)) || uint64(n) > uint64(len(r.mem))-to {
		return nil, &iwarp.LocalError{Cause: iwarp.TermReadBounds}
	}
	return content(r.mem[to:][:n]), nil
}

func (r *rnic) EndReadSource(iwarp.Payload)              {}
func (r *rnic) Atomic(iwarp.Atomic) (uint64, error)      { return 0, errors.New("no atomics") }
func (r *rnic) EndAtomic(token uint64, old uint64) error { return nil }
func (r *rnic) Sent(uint64)                              { r.sent++ }

type content []byte

func (c content) CopyOut(p []byte, off uint32) error { copy(p, c[off:]); return nil }

// flush sends what the Endpoint has, as far as the session takes it.
func (r *rnic) flush() bool {
	moved := false
	for r.ep.Pending() {
		n, err := r.s.WriteFrom(r.ep)
		r.ep.Commit(n)
		if err != nil {
			r.t.Fatalf("WriteFrom: %v", err)
		}
		if n == 0 {
			break
		}
		moved = true
	}
	return moved
}

// step lets a few messages arrive at e.
func step(e *end, n int) bool {
	moved := false
	for range n {
		m, ok := e.a.Next()
		if !ok {
			break
		}
		e.Input(e.now, m)
		moved = true
	}
	return moved
}

// RDMAP on several sessions of one association, out of order all the time: every Send, Write and
// Read arrives whole, and Sends in their order.
//
// SDDP-069, 070, 071, 084; ESDDP-027, DDP-082.
func TestRDMAP(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(5043, seed))
		a, b := newEnds(t, sctpddptest.Link{Seed: seed, Reorder: 1 + int(seed)*7, Shuffle: seed%3 == 2,
			Room: 40, MaxPayload: 300 + int(seed)*300})
		var qps []*rnic // of a and b in turn
		for i := range 3 {
			x, err := a.Open(enhanced(4, 4, iwarp.RTRKinds(1<<i)), nil)
			if err != nil {
				t.Fatal(err)
			}
			run(a, b)
			y, _ := b.Request()
			if _, err := y.Accept(enhanced(4, 4, allRTR), nil); err != nil {
				t.Fatal(err)
			}
			qps = append(qps, nil, newRNIC(t, y, 0))
			run(a, b)
			qps[2*i] = newRNIC(t, x, 0)
			if i == 2 {
				qps[5].posts++ // for the ready-to-receive Send
			}
		}
		want := make([][]string, 6)
		want[4] = []string{""} // that one
		var slots [6][200]int  // octets of the Write of each round
		reads, sends := 0, 0
		for round := range 200 {
			for i, q := range qps {
				p := qps[i^1]
				n := rng.IntN(2500)
				switch rng.IntN(6) {
				case 0:
					text := bytes.Repeat([]byte{byte(round), byte(i)}, n/2)
					if q.ep.PostSend(uint64(round), iwarp.OpSend, 0, content(text), uint32(len(text))) == nil {
						want[i] = append(want[i], string(text))
						sends++
					}
				case 1: // into the slot of this round, which is written once
					to := 40_000 + uint64(round)*300
					n := n % 300
					if q.ep.PostWrite(uint64(round), 7, to, content(bytes.Repeat([]byte{byte(round)}, n)),
						uint32(n)) == nil {
						slots[i][round] = n
					}
				case 2:
					sink := make([]byte, n)
					if q.ep.PostRead(uint64(round), 0x55, uint64(round)<<20, uint32(n), 7, uint64(round)) == nil {
						q.sinks[uint64(round)], q.reads = sink, append(q.reads, uint64(round))
						copy(p.mem[:5000], bytes.Repeat([]byte("read source "), 450))
						reads++
					}
				case 3:
					p.posts += rng.IntN(3)
					p.s.Resume()
				default:
					q.flush()
				}
			}
			step(a, rng.IntN(12))
			step(b, rng.IntN(12))
		}
		for moved := true; moved; {
			moved = step(a, 1000)
			moved = step(b, 1000) || moved
			for _, q := range qps {
				if q.ep.Stalled() {
					q.posts++
					q.s.Resume()
					moved = true
				}
				moved = q.flush() || moved
			}
		}
		var ahead uint64
		for i, q := range qps {
			if err := q.ep.Err(); err != nil || !q.ep.Idle() || len(q.reads) > 0 ||
				q.s.State() != StateOpen {
				t.Fatalf("seed %d, QP %d: %v, idle %t, %d Reads, %v (%v)", seed, i, err, q.ep.Idle(),
					len(q.reads), q.s.State(), q.s.Err())
			}
			if fmt.Sprint(q.got) != fmt.Sprint(want[i^1]) {
				t.Errorf("seed %d, QP %d received %d Sends, want %d", seed, i, len(q.got), len(want[i^1]))
			}
			for token, sink := range q.sinks {
				src := bytes.Repeat([]byte("read source "), 450)[token:]
				if !bytes.Equal(sink, src[:len(sink)]) {
					t.Errorf("seed %d, QP %d: Read %d of %d octets differs", seed, i, token, len(sink))
				}
			}
			for k, n := range slots[i^1] {
				slot := q.mem[40_000+k*300:][:300]
				if want := append(bytes.Repeat([]byte{byte(k)}, n), make([]byte, 300-n)...); !bytes.Equal(
					slot, want) {
					t.Fatalf("seed %d, QP %d: slot %d is % x", seed, i, k, slot)
				}
			}
			ahead += q.ep.Stats().Ahead
		}
		if reads == 0 || sends == 0 || seed > 0 && ahead == 0 {
			t.Errorf("seed %d: %d Reads, %d Sends, %d placed ahead", seed, reads, sends, ahead)
		}
		// The active side's first segment is the ready-to-receive message.
		for i, kind := range []string{"RDMA Write", "Read Request", "Send"} {
			if got := qps[2*i].seen[0]; !bytes.Contains([]byte(got), []byte(kind)) {
				t.Errorf("QP %d begins with %s, want %s", i, got, kind)
			}
		}
	}
}

// A fault of RDMAP or DDP: its Terminate is a segment of that session, that of the session follows
// it, and the neighbour goes on. SDDP-038, 083, 084.
func TestErrorOnOneSession(t *testing.T) {
	a, b := newEnds(t, sctpddptest.Link{})
	pair := func() (*rnic, *rnic) {
		x, _ := a.Open(plain, nil)
		run(a, b)
		y, _ := b.Request()
		y.Accept(plain, nil)
		run(a, b)
		return newRNIC(t, x, 1), newRNIC(t, y, 1)
	}
	x, y := pair()
	x2, y2 := pair()
	x.ep.PostWrite(1, 0x99, 0, content("data"), 4)
	x.flush()
	run(a, b)
	var le *iwarp.LocalError
	if !errors.As(y.ep.Err(), &le) || le.Cause != iwarp.TermInvalidSTag || !y.ep.Terminating() {
		t.Fatal(y.ep.Err())
	}
	from := len(b.a.Log())
	y.flush()
	if !y.ep.Drained() {
		t.Error("something is left to send")
	}
	y.s.Close()
	run(a, b)
	wantSent(t, b.a, from, "1:seg 2:4")
	_, seg, _ := ParseSegment(b.a.Log()[from].Data)
	if got := fmt.Sprintf("%x", seg[iwarp.UntaggedHeaderLen:]); got !=
		"1100c0000012c1400000009900000000"+"00000000" ||
		iwarp.RDMAPControl(seg[1]).Opcode() != iwarp.OpTerminate {
		t.Errorf("Terminate %s", got)
	}
	var pe *iwarp.PeerError
	if !errors.As(x.ep.Err(), &pe) || pe.Cause != iwarp.TermInvalidSTag ||
		x.s.State() != StatePeerClosed {
		t.Errorf("%v, %v", x.ep.Err(), x.s.State())
	}
	x.s.Close()
	x2.ep.PostSend(1, iwarp.OpSend, 0, content("alive"), 5)
	x2.flush()
	run(a, b)
	if fmt.Sprint(y2.got) != "[alive]" || y2.s.State() != StateOpen || x.s.State() != StateOver ||
		y.s.State() != StateOver {
		t.Errorf("%q, %v, %v, %v", y2.got, y2.s.State(), x.s.State(), y.s.State())
	}
}
