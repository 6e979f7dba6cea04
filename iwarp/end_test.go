package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

func cause(err error) string {
	var le *LocalError
	if errors.As(err, &le) {
		return fmt.Sprintf("%d/%d/%02x", le.Cause.Layer, le.Cause.Type, le.Cause.Code)
	}
	return fmt.Sprint(err)
}

// DDP-067, DDP-075, MPA-089: the peer's half ends behind each octet of a stream. Between messages
// that is graceful, and our half goes on; elsewhere it is a loss. What comes behind it is not
// placed.
func TestEndInput(t *testing.T) {
	segs := [][]byte{
		sendSeg(OpSend, false, 1, 0, 5), sendSeg(OpSend, true, 1, 5, 6), writeSeg(OpWrite, true, 0x10, 0,
			7), writeSeg(OpWrite, false, 0x10, 0, 8),
		sendSeg(OpSendSE, true, 2, 0, 3), writeSeg(OpWrite, true, 0x10, 8, 9), readReq(1, 4, 0x10, 0),
		cutSeg(atomReq(2, 1, Atomic{STag: 0x10}), 20)[0],
		cutSeg(atomReq(2, 1, Atomic{STag: 0x10}), 20)[1], immSeg(OpImmediate, 3, 1),
		immSeg(OpImmediate, 4, 1),
	}
	// a message is whole behind these
	over := map[int]bool{1: true, 2: true, 5: true, 6: true, 8: true, 9: true, 10: true}
	for _, marked := range []bool{false, true} {
		var in []byte
		between := map[int]bool{0: true}
		for i, s := range segs {
			if marked {
				in = AppendMarkedFPDU(in, s, true, uint32(len(in)))
			} else {
				in = AppendFPDU(in, s, true)
			}
			between[len(in)] = over[i]
		}
		for n := range len(in) + 1 {
			p := responder
			p.MarkersIn, p.Initiator = marked, true
			r := newRawExt(p, false, true)
			post(20, 20, 20, 20)(r)
			r.Write(in[:n])
			r.EndInput()
			want := "<nil>"
			if !between[n] {
				want = "2/0/01"
			}
			if got := cause(r.Err()); got != want {
				t.Errorf("markers %t, end behind %d of %d: %s, want %s", marked, n, len(in), got, want)
			}
			if !between[n] {
				continue
			}
			out := len(fpdus(t, drain(r)))
			if err := r.PostSend(1, OpSend, 0, nil, 0); err != nil || len(fpdus(t, drain(r))) != 1 {
				t.Errorf("our half has ended, too: %v, %d answers", err, out)
			}
			log := len(r.h.log)
			if k, err := r.Write(nil); k != 0 || err != nil || r.Err() != nil {
				t.Errorf("nothing behind the end: %d, %v, %v", k, err, r.Err())
			}
			more := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 1), true)
			if k, err := r.Write(more); k != len(more) || err != nil || cause(r.Err()) != "2/0/01" ||
				len(r.h.log) != log {
				t.Errorf("behind the end: took %d, %v, %v, %q", k, err, r.Err(), r.h.log[log:])
			}
		}
	}
}

// DDP-075: each error of the LLP comes to the one above, and to the peer if it can.
func TestLLPErrors(t *testing.T) {
	for want, f := range map[string]func(r *raw){
		"2/0/01": func(r *raw) { r.Write([]byte{0}); r.EndInput() },
		"2/0/02": func(r *raw) { r.Write(make([]byte, 32)) },
		"2/0/03": func(r *raw) { r.Write(AppendFPDU(nil, []byte{0x41}, true)) },
	} {
		r := newRaw(responder, true)
		f(r)
		if got := cause(r.Err()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		tm, sent, ok := r.Terminate()
		if !ok || !sent || fmt.Sprintf("%d/%d/%02x", tm.Cause.Layer, tm.Cause.Type,
			tm.Cause.Code) != want || len(drain(r)) == 0 {
			t.Errorf("%s: Terminate %v, %t", want, tm, ok)
		}
	}
}

// DDP-063, DDP-074: a fault is reported, and a Terminate sent, but the stream ends when its owner
// says so.
func TestNotTornDown(t *testing.T) {
	a, b := newSides(iwarptest.Link{}, nil, Config{})
	a.PostWrite(1, 0xbad, 0, &payload{b: pattern(9, 0)}, 9)
	run(a, b)
	if cause(b.Err()) != "1/1/00" || !b.Drained() {
		t.Fatal(b.Err())
	}
	if n, err := a.s.ReadInto(&bytes.Buffer{}); n != 0 || err != nil {
		t.Errorf("the stream of the peer has ended: %d, %v", n, err)
	}
	a.s.WriteFrom(bytes.NewReader([]byte("still there")))
	var got bytes.Buffer
	if n, err := b.s.ReadInto(&got); n != 11 || err != nil {
		t.Errorf("the stream here has ended: %d, %v", n, err)
	}
	b.s.CloseWrite()
	if _, err := a.s.ReadInto(io.Discard); !errors.Is(err, io.EOF) {
		t.Errorf("the owner ended it: %v", err)
	}
}

// MPA-087: one half of the connection ends, the other goes on until it ends by itself.
func TestHalfClose(t *testing.T) {
	for _, initiatorFirst := range []bool{true, false} {
		a, b := newSides(iwarptest.Link{CutEvery: 100}, nil, Config{})
		b.h.posted = [][]byte{nil}
		a.PostSend(1, OpSend, 0, nil, 0)
		run(a, b)
		first, second := a, b
		if !initiatorFirst {
			first, second = b, a
		}
		first.s.CloseWrite()
		if n, err := second.s.ReadInto(second); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatal(n, err)
		}
		second.EndInput()
		data := pattern(50_000, 1)
		first.h.mem[0x10] = make([]byte, len(data))
		first.h.posted, first.h.received = [][]byte{nil}, nil
		second.PostWrite(2, 0x10, 0, &payload{b: data}, uint32(len(data)))
		second.PostSend(3, OpSend, 0, nil, 0)
		for range 3 {
			n, err := second.s.WriteFrom(second)
			second.Commit(n)
			if err != nil {
				t.Fatal(err)
			}
			first.s.ReadInto(first)
		}
		if !bytes.Equal(first.h.mem[0x10], data) || len(first.h.received) != 1 {
			t.Errorf("initiator first %t: %v, %v", initiatorFirst, first.Err(), second.Err())
		}
		second.s.CloseWrite()
		if _, err := first.s.ReadInto(first); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		first.EndInput()
		if first.Err() != nil || second.Err() != nil || !first.Idle() || !second.Idle() {
			t.Errorf("%v, %v", first.Err(), second.Err())
		}
	}
}

// DDP-060, RDMAP-088: a Send or Write is complete when the transport has it, wherever it is then.
func TestCompleteIsNotArrived(t *testing.T) {
	a, b := newSides(iwarptest.Link{}, nil, Config{})
	b.h.mem[0x10] = make([]byte, 8)
	b.h.posted = [][]byte{make([]byte, 8)}
	a.s.Hold()
	a.PostWrite(1, 0x10, 0, &payload{b: pattern(8, 1)}, 8)
	a.PostSend(2, OpSend, 0, &payload{b: pattern(8, 1)}, 8)
	run(a, b)
	if fmt.Sprint(a.h.sent) != "[1 2]" || !a.Idle() || len(b.h.log) != 0 {
		t.Errorf("sent %v, idle %t, arrived %q", a.h.sent, a.Idle(), b.h.log)
	}
}

// RDMAP-007: what is aborted in the middle leaves the octets around its buffers alone.
func TestAbortGuards(t *testing.T) {
	in := AppendFPDU(nil, writeSeg(OpWrite, false, 0x10, 16, 20), true)
	in = AppendFPDU(in, writeSeg(OpWrite, true, 0x10, 36, 12), true)
	in = AppendFPDU(in, writeSeg(OpReadResponse, false, 0x99, 5, 20), true)
	in = AppendFPDU(in, writeSeg(OpReadResponse, true, 0x99, 25, 12), true)
	in = AppendFPDU(in, sendSeg(OpSend, false, 1, 0, 20), true)
	in = AppendFPDU(in, sendSeg(OpSend, true, 1, 20, 12), true)
	for n := range in {
		r := newRaw(responder, true)
		write, sink, recv := newTarget(32), newTarget(32), newTarget(32)
		r.h.mem[0x10] = write
		r.h.order, r.h.sinks[7] = []uint64{7}, inside(sink)
		r.h.posted = [][]byte{inside(recv)}
		if err := r.PostRead(7, 0x99, 5, 32, 0x10, 0); err != nil {
			t.Fatal(err)
		}
		drain(r)
		r.Write(in[:n])
		r.Fail(TermLocalCatastrophic, errors.New("aborted"))
		r.Write(in[n:])
		if !intact(write) || !intact(sink) || !intact(recv) {
			t.Fatalf("behind %d octets: %x %x %x", n, write, sink, recv)
		}
	}
}

// DDP-043: one octet written 1000 times, by messages and by pieces of them; the last one stays.
func TestWrittenAgain(t *testing.T) {
	r := newRaw(responder, true)
	for i := range 1000 {
		seg := append(AppendTagged(nil, i%3 != 0, OpWrite, 0x10, 5), byte(i))
		r.Write(AppendFPDU(nil, seg, true))
		if r.Err() != nil || r.h.mem[0x10][5] != byte(i) {
			t.Fatalf("Write %d: %d, %v", i, r.h.mem[0x10][5], r.Err())
		}
	}
}
