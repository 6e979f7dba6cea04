package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// A29, DDP-079, DDP-003, 004: a Send without a buffer holds the stream, whole or cut, until one is
// posted or the owner's time is up. Nothing is lost, doubled or out of order.
func TestStall(t *testing.T) {
	var in []byte
	for i := range 3 {
		in = AppendFPDU(in, sendSeg(OpSend, true, MSN(i+1), 0, 5+i), true)
		in = AppendFPDU(in, writeSeg(OpWrite, true, 0x10, uint64(i), 1), true)
	}
	want := "[begin 9 receive 5 0007" + "0e151c se=false inv=false 0x0 write 0x10+0 1 last=true " +
		"begin 9 receive 6 00070e151c23 se=false inv=false 0x0 write 0x10+1 1 last=true " +
		"begin 9 receive 7 00070e151c232a se=false inv=false 0x0 write 0x10+2 1 last=true]"
	for _, cut := range []int{1 << 20, 1, 5, 31, 33} {
		r := newRaw(responder, true)
		stalls := 0
		for b, n := in, 0; len(b) > 0; n++ {
			if n > 1000 {
				t.Fatal("no end")
			}
			piece := b[:min(cut, len(b))]
			k, err := r.Write(piece)
			b = b[k:]
			if err == nil {
				if k < len(piece) || r.Stalled() {
					t.Fatalf("took %d of %d without an error", k, len(piece))
				}
				continue
			}
			if !errors.Is(err, ErrNoReceive) || !r.Stalled() {
				t.Fatal(err)
			}
			stalls++
			// Trying again without a buffer changes nothing.
			k, err = r.Write(b[:min(cut, len(b))])
			if k != 0 && k == len(b[:min(cut, len(b))]) || !errors.Is(err, ErrNoReceive) && len(b) > 0 {
				t.Fatalf("took %d, %v", k, err)
			}
			b = b[k:]
			r.h.posted = [][]byte{make([]byte, 9)}
			if stalls == 2 && cut > 33 {
				continue // reading again is as good
			}
			if err := r.Resume(); err != nil || r.Stalled() || len(r.h.posted) > 0 {
				t.Fatal(err, r.Stalled())
			}
		}
		if got := fmt.Sprint(r.h.log); got != want || r.Err() != nil || r.Stalled() {
			t.Errorf("cut %d:\ngot  %s\nwant %s\n%v", cut, got, want, r.Err())
		}
		if stalls != 3 || r.Stats().Stalls != 3 {
			t.Errorf("cut %d: %d stalls, %d counted", cut, stalls, r.Stats().Stalls)
		}
	}
}

// DDP-077, A29: the hold is over. The Terminate names the Send.
func TestStallEnds(t *testing.T) {
	for _, cut := range []int{0, 10} {
		r := newRaw(responder, true)
		seg := sendSeg(OpSendSE, true, 1, 0, 5)
		in := AppendFPDU(nil, seg, true)
		n, _ := r.Write(in[:cut])
		if _, err := r.Write(in[n:]); !errors.Is(err, ErrNoReceive) {
			t.Fatal(err)
		}
		if !errors.Is(r.Resume(), ErrNoReceive) || !r.Stalled() {
			t.Error("Resume without a buffer")
		}
		r.Fail(TermNoBuffer, errors.New("5 s are over"))
		if out := drain(r); !bytes.Equal(out, wantTerminate("1202c000", "d", seg)) {
			t.Errorf("sent %x", out)
		}
		if n, err := r.Write(in); n != len(in) || err != nil || r.Stalled() {
			t.Errorf("behind it: %d, %v", n, err)
		}
	}
	// Other faults found by the owner carry no copies: docs/qp-states.md#Q7.
	r := newRaw(responder, true)
	r.Fail(TermLocalCatastrophic, errors.New("modify to SQE"))
	if out := drain(r); !bytes.Equal(out, wantTerminate("00ff0000", "", nil)) {
		t.Errorf("sent %x", out)
	}
}

// DDP-044, RDMAP-075: what needs no receive buffer works without one.
func TestNoBufferNeeded(t *testing.T) {
	r := newRaw(responder, true)
	r.h.order, r.h.sinks[7] = []uint64{7}, make([]byte, 8)
	r.PostRead(7, 0x99, 5, 8, 0x10, 0)
	drain(r)
	r.Write(AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 8), true))
	r.Write(AppendFPDU(nil, readReq(1, 8, 0x10, 0), true))
	r.Write(AppendFPDU(nil, writeSeg(OpReadResponse, true, 0x99, 5, 8), true))
	if r.Err() != nil || len(fpdus(t, drain(r))) != 1 || len(r.h.order) != 0 {
		t.Error(r.Err())
	}
	r.Write(AppendFPDU(nil, append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0), 0, 0xff, 0, 0),
		true))
	var pe *PeerError
	if !errors.As(r.Err(), &pe) {
		t.Error(r.Err())
	}
}

// What is taken that looks odd; the stream stays well ("clean").
func TestClean(t *testing.T) {
	for _, tt := range []struct {
		name string
		segs [][]byte
		want string
	}{
		{"reserved DDP bits (DDP-023)", [][]byte{with(sendSeg(OpSend, true, 1, 0, 2), 0, 0x7d)},
			"[begin 100 receive 2 0007 se=false inv=false 0x0]"},
		{"reserved RDMAP bits (RDMAP-025)", [][]byte{with(sendSeg(OpSend, true, 1, 0, 2), 1, 0x73)},
			"[begin 100 receive 2 0007 se=false inv=false 0x0]"},
		{"STag in a plain Send (RDMAP-026)", [][]byte{with(sendSeg(OpSendSE, true, 1, 0, 2), 2, 0xaa)},
			"[begin 100 receive 2 0007 se=true inv=false 0x0]"},
		{"any MO order (DDP-054, A10)", [][]byte{sendSeg(OpSend, false, 1, 2, 2),
			sendSeg(OpSend, false, 1, 0, 2), sendSeg(OpSend, true, 1, 4, 1)},
			"[begin 100 receive 5 0007000700 se=false inv=false 0x0]"},
		{"empty segments (DDP-052)", [][]byte{sendSeg(OpSend, false, 1, 0, 0), sendSeg(OpSend, false, 1,
			0, 3), sendSeg(OpSend, true, 1, 3, 0)},
			"[begin 100 receive 3 00070e se=false inv=false 0x0]"},
		{"a full buffer", [][]byte{sendSeg(OpSend, false, 1, 0, 100), sendSeg(OpSend, true, 1, 100, 0)},
			"[begin 100 receive 100 " + fmt.Sprintf("%x", pattern(100, 0)) + " se=false inv=false 0x0]"},
		{"another STag in each segment (DDP-035)",
			[][]byte{with(sendSeg(OpSendInvalidate, false, 1, 0, 1), 5, 1), sendSeg(OpSendInvalidate, true,
				1, 1, 1)},
			"[begin 100 receive 2 0000 se=false inv=true 0x77]"},
		{"empty Writes anywhere (DDP-053)", [][]byte{writeSeg(OpWrite, true, 0, 0, 0),
			writeSeg(OpWrite, true, 0xffffffff, ^uint64(0), 0)},
			"[write 0x0+0 0 last=true write 0xffffffff+18446744073709551615 0 last=true]"},
		{"empty Read of nothing (RDMAP-056)", [][]byte{readReq(1, 0, 0xffff, ^uint64(0))}, "[source 0]"},
		{"Read Request in two (A24, RDMAP-127)", [][]byte{
			with(readReq(1, 8, 0x10, 0)[:38], 0, 1), append(AppendUntagged(nil, true, OpReadRequest, 0, 1,
				20), readReq(1, 8, 0x10, 0)[38:]...)}, "[source 8]"},
		{"Read Request in 28 (A24)", func() (s [][]byte) {
			for i, c := range readReq(1, 8, 0x10, 0)[18:] {
				s = append(s, append(AppendUntagged(nil, i == 27, OpReadRequest, 0, 1, uint32(i)), c))
			}
			return s
		}(), "[source 8]"},
		{"Write within a Send", [][]byte{sendSeg(OpSend, false, 1, 0, 1), writeSeg(OpWrite, true, 0x10, 0,
			1), sendSeg(OpSend, true, 1, 1, 1)},
			"[begin 100 write 0x10+0 1 last=true receive 2 0000 se=false inv=false 0x0]"},
		// DDP-021, RDMAP-091: delivered behind what came before
		{"Send within a Write", [][]byte{writeSeg(OpWrite, false, 0x10, 0, 1), sendSeg(OpSend, true, 1, 0,
			1), writeSeg(OpWrite, true, 0x10, 1, 1)},
			"[write 0x10+0 1 last=false begin 100 write 0x10+1 1 last=true receive 1 00 se=false " +
				"inv=false 0x0]"},
		{"Read Request within a Write", [][]byte{writeSeg(OpWrite, false, 0x10, 0, 1),
			readReq(1, 2, 0x10, 0), writeSeg(OpWrite, true, 0x10, 1, 1)},
			"[write 0x10+0 1 last=false write 0x10+1 1 last=true source 2]"},
	} {
		r := newRaw(responder, true)
		r.h.posted = [][]byte{make([]byte, 100)}
		for _, s := range tt.segs {
			r.Write(AppendFPDU(nil, s, true))
		}
		if got := fmt.Sprint(r.h.log); got != tt.want || r.Err() != nil {
			t.Errorf("%s:\ngot  %s\nwant %s\n%v", tt.name, got, tt.want, r.Err())
		}
		if r.InMessage() {
			t.Errorf("%s: a message is left open", tt.name)
		}
		// and a round trip afterwards
		r.h.posted = [][]byte{make([]byte, 100)}
		msn := MSN(1)
		if slices.ContainsFunc(tt.segs, func(s []byte) bool { return Opcode(s[1] & 15).IsSend() }) {
			msn = 2
		}
		r.Write(AppendFPDU(nil, sendSeg(OpSend, true, msn, 0, 1), true))
		if r.Err() != nil || len(r.h.posted) != 0 {
			t.Errorf("%s: afterwards %v", tt.name, r.Err())
		}
	}
}

// RDMAP-030, 057, A25: answers echo the sink unread; an empty Response is matched by length alone.
func TestReadEcho(t *testing.T) {
	r := newRaw(responder, true)
	copy(r.h.mem[0x10], "abcdefgh")
	r.Write(AppendFPDU(nil, readReq(1, 3, 0x10, 2), true))
	req := AppendReadRequest(AppendUntagged(nil, true, OpReadRequest, 0, 2, 0), 0xdeadbeef,
		^uint64(0), 0, 0, 0)
	r.Write(AppendFPDU(nil, req, true))
	want := AppendFPDU(nil, append(AppendTagged(nil, true, OpReadResponse, 0xdead, 0xbeef), "cde"...),
		true)
	want = AppendFPDU(want, AppendTagged(nil, true, OpReadResponse, 0xdeadbeef, ^uint64(0)), true)
	if out := drain(r); !bytes.Equal(out, want) {
		t.Errorf("sent\n%x\nwant\n%x", out, want)
	}
	r.h.order, r.h.sinks[7] = []uint64{7}, nil
	r.PostRead(7, 0x99, 5, 0, 0x10, 0)
	drain(r)
	r.Write(AppendFPDU(nil, AppendTagged(nil, true, OpReadResponse, 0x1234, 0x5678), true))
	if r.Err() != nil || len(r.h.order) != 0 || !r.Idle() {
		t.Error(r.Err())
	}
	// A Response that comes before the request went out answers nothing.
	r.h.order = []uint64{8}
	r.PostRead(8, 0x99, 5, 0, 0x10, 0)
	r.Write(AppendFPDU(nil, AppendTagged(nil, true, OpReadResponse, 0x99, 5), true))
	var le *LocalError
	if !errors.As(r.Err(), &le) || le.Cause != TermUnexpectedOpcode {
		t.Error(r.Err())
	}
}

// RDMAP-102, 059: IRD Reads back to back, again and again; with IRD 0 not one.
func TestIRD(t *testing.T) {
	for _, ird := range []uint16{0, 1, 3, 8} {
		p := responder
		p.IRD = ird
		r := newRaw(p, true)
		msn := MSN(1)
		for range 3 {
			for range ird {
				r.Write(AppendFPDU(nil, readReq(msn, 1, 0x10, 0), true))
				msn++
			}
			if segs := fpdus(t, drain(r)); len(segs) != int(ird) || r.Err() != nil {
				t.Fatalf("IRD %d: %d answers, %v", ird, len(segs), r.Err())
			}
		}
		for range ird + 1 {
			r.Write(AppendFPDU(nil, readReq(msn, 1, 0x10, 0), true))
			msn++
		}
		var le *LocalError
		if !errors.As(r.Err(), &le) || le.Cause != TermNoBuffer {
			t.Errorf("IRD %d: %v", ird, r.Err())
		}
	}
}

// The borrowed slice is not kept: iwarptest spoils it behind each call, and so does this.
func TestInputIsBorrowed(t *testing.T) {
	r := newRaw(responder, true)
	in := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 20), true)
	for i := range in {
		b := []byte{in[i]}
		r.Write(b)
		b[0] = ^b[0]
	}
	if !bytes.Equal(r.h.mem[0x10][:20], pattern(20, 0)) {
		t.Error("the Write differs")
	}
}

// What DDP hands up with a tagged message is its ULP octet, by which RDMAP knows a Write from the
// answer to a Read and from what is neither, and its STag, whatever that is: DDP-029.
func TestTaggedDelivery(t *testing.T) {
	for _, tt := range []struct {
		op   Opcode
		stag STag
		want string
	}{
		{OpWrite, 0x10, "[write 0x10+5 3 last=true]"},
		{OpWrite, 0x11, "[write 0x11+5 3 last=true]"},
		{OpReadResponse, 0x10, "[read 7]"},
	} {
		r := newRaw(responder, true)
		r.h.mem[0x11] = make([]byte, 100)
		r.h.order, r.h.sinks[7] = []uint64{7}, make([]byte, 3)
		r.PostRead(7, 0x10, 5, 3, 0x10, 0)
		drain(r)
		r.Write(AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 0), true)) // lets a Responder send
		drain(r)
		r.h.log = nil
		r.Write(AppendFPDU(nil, writeSeg(tt.op, true, tt.stag, 5, 3), true))
		if got := fmt.Sprint(r.h.log); got != tt.want || r.Err() != nil {
			t.Errorf("%v to %#x: %s, want %s; %v", tt.op, tt.stag, got, tt.want, r.Err())
		}
	}
	for _, op := range []Opcode{OpSend, OpReadRequest, OpTerminate} { // not those of tagged messages
		r := newRaw(responder, true)
		r.Write(AppendFPDU(nil, writeSeg(op, true, 0x10, 5, 3), true))
		var le *LocalError
		if !errors.As(r.Err(), &le) || le.Cause != TermUnexpectedOpcode || len(r.h.log) > 0 {
			t.Errorf("a tagged %v: %v, %v", op, r.Err(), r.h.log)
		}
	}
}
