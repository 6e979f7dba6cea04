package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// EXT-007, EXT-035, EXT-037, EXT-040, EXT-042, A15, A24: what comes as Immediate Data. It takes one
// buffer of any length and leaves it as it is.
func TestImmediateReceived(t *testing.T) {
	const data = 0x000000c7_01020304
	for _, tt := range []struct {
		name string
		size int
		segs [][]byte
		want Received
	}{
		{"plain", 8, [][]byte{immSeg(OpImmediate, 1, data)}, Received{Immediate: true, Data: data}},
		{"with SE", 8, [][]byte{immSeg(OpImmediateSE, 1, data)}, Received{Immediate: true, Data: data,
			Solicited: true}},
		{"no room", 0, [][]byte{immSeg(OpImmediate, 1, data)}, Received{Immediate: true, Data: data}},
		{"an STag that means nothing", 8, [][]byte{with(immSeg(OpImmediate, 1, data), 5, 0x10)},
			Received{Immediate: true, Data: data}},
		{"4 and 4 octets", 0, cutSeg(immSeg(OpImmediate, 1, data), 4), Received{Immediate: true,
			Data: data}},
		{"octet by octet", 3, cutSeg(immSeg(OpImmediateSE, 1, data), 1, 2, 3, 4, 5, 6, 7),
			Received{Immediate: true, Data: data, Solicited: true}},
		{"the end first", 3, [][]byte{notLast(cutSeg(immSeg(OpImmediate, 1, data), 4)[1]),
			cutSeg(immSeg(OpImmediate, 1, data), 4)[0],
			AppendUntagged(nil, true, OpImmediate, 0, 1, 8)}, Received{Immediate: true, Data: data}},
	} {
		r := newRawExt(responder, true, true)
		buf := bytes.Repeat([]byte{0xaa}, tt.size)
		r.h.posted = [][]byte{buf, make([]byte, 2)}
		for _, s := range tt.segs {
			r.Write(AppendFPDU(nil, s, true))
		}
		if len(r.h.received) != 1 || r.h.received[0] != tt.want || r.Err() != nil ||
			len(r.h.posted) != 1 || r.InMessage() {
			t.Errorf("%s: %+v, %v, %d buffers left", tt.name, r.h.received, r.Err(), len(r.h.posted))
		}
		if !bytes.Equal(buf, bytes.Repeat([]byte{0xaa}, tt.size)) {
			t.Errorf("%s: the buffer holds %x", tt.name, buf)
		}
		// The next of the queue is a Send.
		r.Write(AppendFPDU(nil, sendSeg(OpSend, true, 2, 0, 2), true))
		if len(r.h.received) != 2 || r.h.received[1] != (Received{Length: 2}) {
			t.Errorf("%s: then %+v, %v", tt.name, r.h.received, r.Err())
		}
	}
}

// EXT-035, EXT-038, EXT-043: Sends and Immediate Data by turns, 10000 of each, over a stream that
// is cut anywhere: delivered in the order of posting with the values that were given.
func TestImmediateOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7306, 2))
	for _, l := range []iwarptest.Link{{}, {CutEvery: 11, WriteMax: 17}, {Buffer: 300, TakeLess: 5}} {
		a, b := newSides(l, nil, initiatorExt)
		var want, got []Received
		for len(want) < 20_000 {
			for a.CanPost() && len(want) < 20_000 {
				x, se := rng.Uint64(), rng.IntN(2) == 0
				b.h.posted = append(b.h.posted, make([]byte, 4))
				var err error
				if len(want)%2 == 0 {
					n := rng.Uint32N(5)
					err = a.PostSend(1, OpSend, 0, &payload{b: make([]byte, n)}, n)
					want = append(want, Received{Length: n})
				} else {
					err = a.PostImmediate(1, se, x)
					want = append(want, Received{Immediate: true, Data: x, Solicited: se})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			run(a, b)
			got = append(got, b.h.received...)
			b.h.received, b.h.log, a.h.log, a.h.sent = nil, nil, nil, nil
		}
		if a.Err() != nil || b.Err() != nil || len(b.h.posted) != 0 {
			t.Fatalf("%+v: %v, %v", l, a.Err(), b.Err())
		}
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Fatalf("%+v: message %d: got %+v, want %+v", l, i, got[i:min(i+1, len(got))], want[i])
			}
		}
	}
}

// EXT-036, A29: Immediate Data without a buffer holds the stream, and is delivered once there is
// one. In the end it is 1/2/02.
func TestImmediateStalls(t *testing.T) {
	seg := immSeg(OpImmediateSE, 1, 77)
	for _, cut := range []int{0, 10, 27} {
		for _, mend := range []bool{true, false} {
			r := newRawExt(responder, true, true)
			in := AppendFPDU(nil, seg, true)
			n, _ := r.Write(in[:cut])
			k, err := r.Write(in[n:])
			if !errors.Is(err, ErrNoReceive) || !r.Stalled() || r.Stats().Stalls != 1 {
				t.Fatal(err)
			}
			if mend {
				r.h.posted = [][]byte{nil}
				if err := r.Resume(); err != nil || r.Stalled() {
					t.Fatal(err)
				}
				r.Write(in[n+k:])
				r.Write(AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 1), true))
				if got := fmt.Sprint(r.h.log); got !=
					"[begin 0 immediate 0x4d in 0 octets  se=true write 0x10+0 1 last=true]" || r.Err() != nil {
					t.Errorf("cut at %d: %s, %v", cut, got, r.Err())
				}
				continue
			}
			r.Fail(TermNoBuffer, errors.New("5 s are over"))
			if out := drain(r); !bytes.Equal(out, wantTerminate("1202c000", "d", seg)) {
				t.Errorf("cut at %d: sent %x", cut, out)
			}
			var le *LocalError
			if !errors.As(r.Err(), &le) || le.Cause != TermNoBuffer || len(r.h.received) != 0 {
				t.Errorf("%v, %v", r.Err(), r.h.received)
			}
		}
	}
	// Cut Immediate Data that had been held: the second part finds its message.
	r := newRawExt(responder, true, true)
	parts := cutSeg(seg, 3)
	in := AppendFPDU(AppendFPDU(nil, parts[0], true), parts[1], true)
	if n, err := r.Write(in); n != 0 || !errors.Is(err, ErrNoReceive) {
		t.Fatal(n, err)
	}
	r.h.posted = [][]byte{nil}
	if n, err := r.Write(in); n != len(in) || err != nil || len(r.h.received) != 1 ||
		r.h.received[0].Data != 77 {
		t.Errorf("took %d, %v, %v, %+v", n, err, r.Err(), r.h.received)
	}
}

// EXT-041: a Write with Immediate Data behind it is one completion at the sink, once all is placed.
func TestWriteImmediate(t *testing.T) {
	for _, l := range []iwarptest.Link{{}, {CutEvery: 1000, Buffer: 5000}} {
		a, b := newSides(l, nil, initiatorExt)
		data := pattern(1<<20, 5)
		b.h.mem[0x10] = make([]byte, len(data))
		b.h.posted = [][]byte{nil}
		complete := false
		b.h.broken = func(op string) error {
			if op == "EndReceive" {
				complete = bytes.Equal(b.h.mem[0x10], data)
			}
			return nil
		}
		a.PostWrite(1, 0x10, 0, &payload{b: data}, uint32(len(data)))
		a.PostImmediate(2, true, 0xfeed)
		run(a, b)
		if len(b.h.received) != 1 || b.h.received[0] != (Received{Immediate: true, Data: 0xfeed,
			Solicited: true}) || !complete {
			t.Errorf("%+v: %+v, complete %t, %v", l, b.h.received, complete, b.Err())
		}
		if fmt.Sprint(a.h.sent) != "[1 2]" {
			t.Errorf("sent %v", a.h.sent)
		}
	}
}
