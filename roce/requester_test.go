package roce_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

const ack = packet.Acknowledge

// ROCE-044 to ROCE-047, 050, 051, 053, 055, 075: how messages are cut and numbered.
func TestCut(t *testing.T) {
	for n, want := range map[int]string{
		0:   "SEND Only +0",
		256: "SEND Only +0",
		257: "SEND First +0, SEND Last +1",
		512: "SEND First +0, SEND Last +1",
		513: "SEND First +0, SEND Middle +1, SEND Last +2",
	} {
		r := newRaw(t)
		r.post(Send, n)
		r.want(want)
	}
	r := newRaw(t)
	r.post(Read, 700)
	r.post(SendImm, 1)
	r.post(FetchAdd, 0)
	r.post(WriteImm, 300)
	r.post(SendInv, 300)
	r.post(CompareSwap, 0)
	r.want("RDMA READ Request +0, SEND Only with Immediate +3, Fetch & Add +4, RDMA WRITE First +5, " +
		"RDMA WRITE Last with Immediate +6, SEND First +7, SEND Last with Invalidate +8, " +
		"Compare & Swap +9")
}

// ROCE-023, 024, 028, 031, 037, 040: what the headers say.
func TestHeaders(t *testing.T) {
	r := newRaw(t)
	r.post(WriteImm, 300, func(q *Request) { q.Solicited, q.Imm = true, [4]byte{1, 2, 3, 4} })
	r.post(Write, 4, func(q *Request) { q.Solicited = true })
	r.post(CompareSwap, 0, func(q *Request) { q.Swap, q.Compare = 5, 6 })
	want := strings.TrimSpace(`
RC RDMA WRITE First qp 17 psn 16777214 va 4000 rkey 77 len 300 data 256
RC RDMA WRITE Last with Immediate qp 17 psn 16777215 AckReq SE imm 01020304 data 44
RC RDMA WRITE Only qp 17 psn 0 AckReq va 4000 rkey 77 len 4 data 4
RC Compare & Swap qp 17 psn 1 AckReq va 4000 rkey 77 swap 5 compare 6 data 0`)
	out := drain(at(r.rc, r.now))
	if got := strings.TrimSpace(text(t, out)); got != want {
		t.Errorf("sent\n%s\nwant\n%s", got, want)
	}
	for _, b := range out {
		if h, _ := read(t, b); !h.Migrated {
			t.Errorf("%v has M = 0", &h)
		}
	}
}

// ROCE-052, 102: no more than the window is under way, and with each quarter an answer is asked
// for.
func TestWindow(t *testing.T) {
	r := newRaw(t, func(c *Config) { c.Window = 8 })
	r.post(Send, 256*20)
	asked := 0
	for n := range 9 {
		b, ok := r.rc.Append(nil, r.now)
		if ok != (n < 8) {
			t.Fatalf("packet %d: %t", n, ok)
		}
		if ok {
			if h, _ := read(t, b); h.AckReq {
				asked++
			}
		}
	}
	if asked != 4 {
		t.Errorf("%d packets of 8 ask for an answer, want 4", asked)
	}
	r.in(ack, 5, 0)
	r.want("SEND Middle +8, SEND Middle +9, SEND Middle +10, SEND Middle +11, SEND Middle +12, " +
		"SEND Middle +13")
	r.wantDone(0)
}

// ROCE-088, 102, 230: a loss halves the window, silence leaves the least, what is acknowledged has
// it grow again; and answers are asked for often enough for the window that there is.
func TestWindowBehindLoss(t *testing.T) {
	r := newRaw(t, func(c *Config) { c.Window = 128 })
	r.post(Send, 256*4000)
	sends := func(what string, want, window int) {
		t.Helper()
		n, unasked := 0, 0
		for b, ok := r.rc.Append(nil, r.now); ok; b, ok = r.rc.Append(nil, r.now) {
			n++
			if h, _ := read(t, b); h.AckReq {
				unasked = 0
			} else if unasked++; unasked >= window/4 {
				t.Fatalf("%s: %d packets in a row ask for no answer", what, unasked)
			}
		}
		if n != want {
			t.Errorf("%s: %d packets go out, want %d", what, n, want)
		}
	}
	sends("at the start", 128, 128)
	r.in(ack, 9, 0)
	sends("10 are acknowledged", 10, 128)
	r.in(ack, 20, 0, says(packet.NAKSequence))
	sends("one is missing", 64, 64)
	r.pass(time.Hour)
	sends("nobody answers", 16, 16)
	r.in(ack, 35, 0)
	sends("a window is acknowledged", 17, 17)
	r.in(ack, 52, 0)
	sends("and another", 18, 18)
}

// ROCE-052: what Reads ask for is bounded by the window, too, since nobody paces their answers: it
// goes in parts of half a window, each a message that the peer's MSN counts.
func TestReadWindow(t *testing.T) {
	r := newRaw(t, func(c *Config) { c.Window, c.MaxRead = 8, 4 })
	r.post(Read, 256*10)
	r.post(Read, 256)
	r.want("RDMA READ Request +0, RDMA READ Request +4")
	answer := func(psn int, ops ...packet.Opcode) {
		for i, op := range ops {
			r.in(op, psn+i, 256)
		}
	}
	const first, middle, last = packet.ReadResponseFirst, packet.ReadResponseMiddle,
		packet.ReadResponseLast
	answer(0, first)
	r.want("")
	answer(1, middle)
	r.want("RDMA READ Request +8")
	answer(2, middle, last)
	r.want("RDMA READ Request +10")
	// The end of a part's answer is missing: that is asked for once more, and what is behind it.
	answer(4, first, middle)
	answer(8, first)
	r.want("RDMA READ Request +6, RDMA READ Request +8, RDMA READ Request +10")
	answer(6, middle, last, first, last)
	r.wantDone(1)
	answer(10, packet.ReadResponseOnly)
	r.wantDone(2)
}

// ROCE-052: a part's answer that does not end where the part does is none.
func TestReadPart(t *testing.T) {
	for _, op := range []packet.Opcode{packet.ReadResponseMiddle, packet.ReadResponseFirst} {
		r := newRaw(t, func(c *Config) { c.Window, c.MaxRead = 4, 4 })
		r.post(Read, 256*4)
		r.want("RDMA READ Request +0, RDMA READ Request +2")
		r.in(packet.ReadResponseFirst, 0, 256)
		r.in(op, 1, 256)
		r.wantFault(BadResponse)
	}
}

// ROCE-057, 060, 061, 063: what an ACK is for.
func TestACK(t *testing.T) {
	r := newRaw(t)
	for range 5 {
		r.post(Write, 4)
	}
	r.post(Send, 700)
	r.out()
	r.in(ack, -1, 0)
	r.in(ack, 8, 0) // never sent
	r.in(ack, 1000, 0)
	r.wantDone(0)
	r.in(ack, 4, 0)
	r.wantDone(5)
	for range 10 {
		r.in(ack, 4, 0)
	}
	r.in(ack, 5, 0)
	r.wantDone(5)
	r.pass(time.Hour)
	r.want("SEND Middle +6, SEND Last +7")
	r.in(ack, 7, 0)
	r.wantDone(6)
	if _, ok := r.rc.Deadline(); ok {
		t.Error("a deadline with nothing under way")
	}
	r.clean(0)
}

// ROCE-058, 059, 062, 068, 072: a Read and an atomic are done by their own answers only.
func TestAnswerOfItsOwn(t *testing.T) {
	for _, op := range []Op{Read, FetchAdd} {
		r := newRaw(t)
		r.post(Write, 4)
		r.post(op, 4)
		r.post(Send, 4)
		r.out()
		r.in(ack, 2, 0)
		r.wantDone(1)
		request, answer := "RDMA READ Request +1, SEND Only +2", packet.ReadResponseOnly
		if op == FetchAdd {
			request, answer = "Fetch & Add +1, SEND Only +2", packet.AtomicAcknowledge
		}
		r.want(request)
		r.in(ack, 1, 0) // again: once until there is progress
		r.want("")
		r.wantDone(1)
		r.in(answer, 1, 4)
		r.wantDone(2)
		r.in(ack, 2, 0)
		r.wantDone(3)
		r.clean(0)
	}
	r := newRaw(t)
	r.post(Write, 4)
	r.post(Read, 4)
	r.out()
	r.in(packet.ReadResponseOnly, 1, 4)
	r.wantDone(2)
}

// ROCE-065, 066, 071: a Read goes on where its answer broke off, and takes what begins there in
// any form.
func TestReadGap(t *testing.T) {
	for _, op := range []packet.Opcode{packet.ReadResponseFirst, packet.ReadResponseMiddle} {
		r := newRaw(t)
		r.post(Read, 1000)
		r.want("RDMA READ Request +0")
		r.in(packet.ReadResponseFirst, 0, 256)
		r.in(packet.ReadResponseMiddle, 2, 256)
		r.in(packet.ReadResponseLast, 3, 232)
		out := drain(at(r.rc, r.now))
		want := "RC RDMA READ Request qp 17 psn 16777215 AckReq va 4100 rkey 77 len 744 data 0\n"
		if got := text(t, out); got != want {
			t.Fatalf("sent %q, want %q", got, want)
		}
		r.in(op, 1, 256)
		r.in(packet.ReadResponseMiddle, 2, 256)
		r.wantDone(0)
		r.in(packet.ReadResponseLast, 3, 232)
		r.wantDone(1)
		r.clean(0)
	}
}

// ROCE-067, 069, 070, 205: no answer but the right one completes a Read, and none is placed
// outside.
func TestReadBadResponse(t *testing.T) {
	type answer struct {
		op     packet.Opcode
		psn, n int
	}
	for name, c := range map[string]struct {
		with []answer
		want Status
	}{
		"Only too long":   {[]answer{{packet.ReadResponseOnly, 0, 300}}, BadResponse},
		"Only too short":  {[]answer{{packet.ReadResponseOnly, 0, 100}}, BadResponse},
		"First too short": {[]answer{{packet.ReadResponseFirst, 0, 252}}, BadResponse},
		"Last too early": {[]answer{{packet.ReadResponseFirst, 0, 256}, {packet.ReadResponseLast, 1,
			100}}, BadResponse},
		"Last too long": {[]answer{{packet.ReadResponseFirst, 0, 256}, {packet.ReadResponseMiddle, 1,
			256}, {packet.ReadResponseLast, 2, 256}}, BadResponse},
		"Middle for Last": {[]answer{{packet.ReadResponseFirst, 0, 256}, {packet.ReadResponseMiddle, 1,
			256}, {packet.ReadResponseMiddle, 2, 256}}, BadResponse},
		"an atomic's": {[]answer{{packet.AtomicAcknowledge, 0, 0}}, BadResponse},
		"empty":       {[]answer{{packet.ReadResponseOnly, 0, 0}}, BadResponse},
		"First for Middle": {[]answer{{packet.ReadResponseFirst, 0, 256}, {packet.ReadResponseFirst, 1,
			256}}, Success},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRaw(t)
			r.post(Read, 700)
			r.out()
			for _, a := range c.with {
				r.in(a.op, a.psn, a.n)
			}
			r.wantDone(0)
			if c.want != Success {
				r.wantFault(c.want)
			} else {
				r.clean(0)
			}
		})
	}
	r := newRaw(t)
	r.post(Read, 700)
	r.out()
	r.in(packet.ReadResponseFirst, 0, 256, says(packet.NAKAccess))
	r.wantDone(0)
	r.wantFault(RemoteAccess)
	r = newRaw(t)
	r.post(FetchAdd, 0)
	r.post(Send, 4)
	r.out()
	r.in(packet.ReadResponseOnly, 1, 4) // for a Send
	r.want("Fetch & Add +0, SEND Only +1")
	r.in(packet.ReadResponseOnly, 0, 8)
	r.wantFault(BadResponse)
}

// ROCE-073, 074: how many Reads may be under way, and which requests there cannot be.
func TestDepth(t *testing.T) {
	r := newRaw(t, func(c *Config) { c.MaxRead = 2 })
	for range 4 {
		r.post(Read, 300)
	}
	r.post(Send, 4)
	r.want("RDMA READ Request +0, RDMA READ Request +2")
	r.in(packet.ReadResponseFirst, 0, 256)
	r.want("")
	r.in(packet.ReadResponseLast, 1, 44)
	r.want("RDMA READ Request +4")
	r = newRaw(t, func(c *Config) { c.MaxRead = 0; c.SendQueue = 1 })
	for _, c := range []struct {
		q   Request
		err error
	}{
		{Request{Op: Read, Length: 4}, ErrNoReads}, {Request{Op: FetchAdd}, ErrNoReads},
		{Request{Op: Send, Length: MaxMessage + 1}, ErrLength}, {Request{Op: Send}, nil},
		{Request{Op: Send}, ErrQueueFull},
	} {
		if err := r.rc.Post(&c.q); !errors.Is(err, c.err) {
			t.Errorf("%v: %v, want %v", c.q.Op, err, c.err)
		}
	}
	r = newRaw(t)
	if err := r.rc.Post(&Request{Op: FetchAdd, Addr: 4}); !errors.Is(err, ErrMisaligned) {
		t.Error(err)
	}
}

// ROCE-076, 077: a fence waits for Reads and atomics, and what has none does not.
func TestFence(t *testing.T) {
	r := newRaw(t)
	r.post(Read, 4)
	r.post(Send, 4)
	r.post(FetchAdd, 0)
	r.post(Send, 4, func(q *Request) { q.Fence = true })
	r.post(Send, 4)
	r.want("RDMA READ Request +0, SEND Only +1, Fetch & Add +2")
	r.in(packet.ReadResponseOnly, 0, 4)
	r.want("")
	r.in(packet.AtomicAcknowledge, 2, 0)
	r.want("SEND Only +3, SEND Only +4")
	r.wantDone(3)
}

// ROCE-079 to ROCE-084: what goes out again, when, and how often. docs/decisions.md#R16 has when of
// the range there is, which is from one to four times the local ACK timeout.
func TestTimeout(t *testing.T) {
	const code, earliest, latest = 14, 67108864 * time.Nanosecond, 4 * 67108864 * time.Nanosecond
	r := newRaw(t, func(c *Config) { c.Timeout = code })
	r.post(Send, 300)
	r.post(Read, 300)
	all := "SEND First +0, SEND Last +1, RDMA READ Request +2"
	r.want(all)
	was := r.now
	for i := range time.Duration(3) {
		r.now = was.Add(packet.ACKTimeout(code)*(i+1) - 1)
		r.rc.Expire(r.now)
		r.want("")
		r.now = r.now.Add(1)
		r.rc.Expire(r.now)
		r.want(all)
		if gap := r.now.Sub(was); gap < earliest || gap >= latest {
			t.Errorf("copy %d comes %v behind the one before it, want from %v to %v", i+1, gap, earliest,
				latest)
		}
		was = r.now
	}
	if at, _ := r.rc.Deadline(); at.Sub(was) != 3*earliest {
		t.Errorf("the last copy is waited for until %v, want no longer than before it", at.Sub(was))
	}
	r.pass(time.Second)
	r.wantFault(RetryExceeded)
	r.want("")

	// With progress all is as at first.
	r = newRaw(t, func(c *Config) { c.Timeout = code })
	r.post(Send, 300)
	r.out()
	r.pass(time.Second)
	r.pass(time.Second)
	r.out()
	r.in(ack, 0, 0)
	if at, _ := r.rc.Deadline(); at.Sub(r.now) != earliest {
		t.Errorf("behind an ACK the next is waited for for %v, want %v", at.Sub(r.now), earliest)
	}

	// Who waits to the last moment does so from the first time on.
	r = newRaw(t, func(c *Config) { c.Timeout, c.LastMoment = code, true })
	r.post(Send, 300)
	r.out()
	for range 3 {
		at, _ := r.rc.Deadline()
		if gap := at.Sub(r.now); gap != 3*earliest || gap >= latest {
			t.Errorf("it is waited for for %v, want %v", gap, 3*earliest)
		}
		r.now = at
		r.rc.Expire(at)
		r.out()
	}

	r = newRaw(t, func(c *Config) { c.Timeout = 0 })
	r.post(Send, 4)
	r.out()
	if at, ok := r.rc.Deadline(); ok {
		t.Errorf("timeout 0: a deadline at %v", at)
	}

	r = newRaw(t, func(c *Config) { c.Retries = 7 })
	r.post(Send, 256*30)
	r.out()
	copies := 1
	for r.rc.Fault() == nil {
		r.pass(time.Second)
		if r.out() != "" {
			copies++
		}
	}
	if copies != 8 {
		t.Errorf("retry_cnt 7: %d copies, want 8", copies)
	}

	r = newRaw(t)
	r.post(Send, 256*30)
	for n := range 29 { // an ACK at every third copy
		r.out()
		if n%3 == 2 {
			r.in(ack, n/3, 0)
		}
		r.pass(time.Second)
	}
	if f := r.rc.Fault(); f != nil {
		t.Errorf("with progress: %v", f)
	}
}

// ROCE-086 to ROCE-088, 203: NAK 60.
func TestSequenceNAK(t *testing.T) {
	r := newRaw(t)
	for range 5 {
		r.post(Write, 4)
	}
	r.out()
	for range 100 {
		r.in(ack, 2, 0, says(packet.NAKSequence))
	}
	r.wantDone(2)
	r.want("RDMA WRITE Only +2, RDMA WRITE Only +3, RDMA WRITE Only +4")
	copies := 0
	for r.rc.Fault() == nil && copies < 20 {
		r.in(ack, 2, 0, says(packet.NAKSequence))
		r.pass(time.Second)
		if r.out() != "" {
			copies++
		}
	}
	r.wantFault(RetryExceeded)
}

// ROCE-089 to ROCE-092: the other NAKs, and those that are none.
func TestNAK(t *testing.T) {
	for s, want := range map[packet.Syndrome]Status{packet.NAKInvalid: RemoteInvalid,
		packet.NAKAccess: RemoteAccess, packet.NAKOperational: RemoteOperation, 0x64: RemoteOperation,
		0x7f: RemoteOperation} {
		r := newRaw(t)
		for range 3 {
			r.post(Write, 4)
		}
		r.out()
		r.in(ack, -5, 0, says(s))
		r.in(ack, 500, 0, says(s))
		if f := r.rc.Fault(); f != nil {
			t.Errorf("%v for what was not sent: %v", s, f)
		}
		r.in(ack, 1, 0, says(s))
		r.wantDone(1)
		r.wantFault(want)
		r.want("")
	}
	r := newRaw(t)
	r.post(Read, 4)
	r.post(Write, 4)
	r.out()
	r.in(ack, 1, 0, says(packet.NAKAccess))
	r.in(ack, 1, 0)
	r.want("")
	r.wantDone(0)
	if f := r.rc.Fault(); f != nil {
		t.Errorf("the Read is to blame for the Write: %v", f)
	}
	r.pass(time.Hour)
	r.wantFault(RetryExceeded)
	r = newRaw(t) // an answer that is late
	r.post(Read, 4)
	r.post(Write, 4)
	r.post(Write, 4)
	r.out()
	r.in(ack, 2, 0, says(packet.NAKAccess))
	r.in(packet.ReadResponseOnly, 0, 4)
	r.wantDone(2)
	r.wantFault(RemoteAccess)
	for s := range 256 {
		r := newRaw(t)
		r.post(Send, 4)
		r.post(Read, 4)
		r.out()
		r.in(ack, 0, 0, says(packet.Syndrome(s)))
		r.in(ack, 1, 0, says(packet.Syndrome(s)))
		r.out()
		r.pass(time.Hour)
		r.out()
	}
}

// ROCE-093 to ROCE-097: RNR NAKs, apart from timeouts.
func TestRNR(t *testing.T) {
	r := newRaw(t)
	r.post(Write, 4)
	r.post(Send, 4)
	r.post(Send, 4)
	r.out()
	for range 2 {
		for range 5 { // the first counts
			r.in(ack, 1, 0, says(packet.RNR(31)))
		}
		r.wantDone(1)
		r.want("")
		if at, ok := r.rc.Deadline(); !ok || at.Sub(r.now) != packet.RNRTimer(31) {
			t.Errorf("the deadline is %v, want the RNR timer's", at.Sub(r.now))
		}
		r.now = r.now.Add(packet.RNRTimer(31) - 1)
		r.rc.Expire(r.now)
		r.want("")
		r.pass(1)
		r.want("SEND Only +1, SEND Only +2")
		r.pass(time.Second) // and a timeout, which counts by itself
		r.want("SEND Only +1, SEND Only +2")
	}
	r.in(ack, 1, 0, says(packet.RNR(1)))
	r.wantFault(RNRRetryExceeded)

	// Who waits to the last moment lets the peer have twice its time, as often as others do.
	r = newRaw(t, func(c *Config) { c.RNRRetries, c.LastMoment = 2, true })
	r.post(Send, 4)
	first := r.out()
	for range 2 {
		r.in(ack, 0, 0, says(packet.RNR(31)))
		if at, ok := r.rc.Deadline(); !ok || at.Sub(r.now) != 2*packet.RNRTimer(31) {
			t.Errorf("the deadline is %v, want twice the RNR timer's", at.Sub(r.now))
		}
		r.pass(2*packet.RNRTimer(31) - 1)
		r.want("")
		r.pass(1)
		r.want(first)
	}
	r.in(ack, 0, 0, says(packet.RNR(31)))
	r.wantFault(RNRRetryExceeded)

	r = newRaw(t, func(c *Config) { c.RNRRetries = RNRForever })
	r.post(Send, 4)
	for range 50 {
		r.want("SEND Only +0")
		r.in(ack, 0, 0, says(packet.RNR(1)))
		r.pass(time.Second)
	}
	r.want("SEND Only +0")
	r.in(ack, 0, 0)
	r.wantDone(1)
}

// ROCE-098, 099: credits bind what takes a receive, and one may go out without.
func TestCredits(t *testing.T) {
	r := newRaw(t)
	r.post(Write, 4)
	r.out()
	none := packet.CreditsFor(0)
	r.in(ack, 0, 0, says(none), func(h *packet.Header) { h.MSN = 1 })
	for range 3 {
		r.post(Send, 4)
	}
	r.want("SEND Only +1")
	r.in(ack, 1, 0, says(packet.CreditsFor(2)), func(h *packet.Header) { h.MSN = 2 })
	r.want("SEND Only +2, SEND Only +3")
	r.in(ack, 3, 0, says(none), func(h *packet.Header) { h.MSN = 4 })
	r.post(Write, 4)
	r.post(Read, 4)
	r.post(Send, 4)
	r.want("RDMA WRITE Only +4, RDMA READ Request +5")
	r.in(packet.ReadResponseOnly, 5, 4)
	r.want("SEND Only +6")
}

// ROCE-103: what has begun is finished, and no more begins.
func TestDrain(t *testing.T) {
	r := newRaw(t, func(c *Config) { c.Window = 2 })
	r.post(Send, 700)
	r.post(Send, 4)
	r.want("SEND First +0, SEND Middle +1")
	r.rc.Drain()
	if r.rc.Drained() {
		t.Error("drained with a message half-way")
	}
	r.in(ack, 1, 0)
	r.want("SEND Last +2")
	r.pass(time.Second)
	r.want("SEND Last +2")
	r.in(ack, 2, 0)
	r.want("")
	if !r.rc.Drained() {
		t.Error("not drained")
	}
	r.rc.Resume()
	r.want("SEND Only +3")
}

// Reads that wait when there can be none any more end with an error in their turn (ROCE-074); they
// do not wait for ever.
func TestNoMoreReads(t *testing.T) {
	r := newRaw(t, func(c *Config) { c.MaxRead = 1 })
	r.post(Read, 4)
	r.post(Read, 4)
	r.want("RDMA READ Request +0")
	r.rc.Drain()
	none := r.cfg
	none.MaxRead = 0
	r.rc.Update(none)
	r.pass(time.Second)
	r.want("RDMA READ Request +0") // what has begun goes on
	r.in(packet.ReadResponseOnly, 0, 4)
	r.want("")
	if !r.rc.Drained() || r.rc.Fault() != nil {
		t.Errorf("drained %v, %v", r.rc.Drained(), r.rc.Fault())
	}
	r.rc.Resume()
	r.want("")
	r.wantFault(LocalOperation)
}

type gone struct{}

func (gone) CopyOut([]byte, uint32) error { return errMemory }

// Memory of our own that is not there ends the connection, and not the program.
func TestOwnMemory(t *testing.T) {
	r := newRaw(t)
	r.post(Send, 4, func(q *Request) { q.Data = gone{} })
	r.want("")
	r.wantFault(LocalProtection)
	if _, ok := r.rc.Deadline(); ok {
		t.Error("a deadline of what is over")
	}
}

// A connection that has failed since nobody answers, or by a request of its own, is over at once:
// what the peer has asked to read does not go out first, however much that is.
func TestFaultBeforeAnswers(t *testing.T) {
	for name, fail := range map[string]func(r *raw){
		"no answer": func(r *raw) { r.pass(time.Hour) },
		"refused":   func(r *raw) { r.in(packet.Acknowledge, 0, 0, says(packet.NAKAccess)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRaw(t, func(c *Config) { c.Retries = 0 })
			r.post(Write, 4)
			r.want("RDMA WRITE Only +0")
			for psn := range 4 {
				r.in(packet.ReadRequest, psn, 10)
			}
			fail(r)
			if f := r.rc.Fault(); f == nil || !f.Requester {
				t.Fatalf("the fault is %v", f)
			}
			r.want("")
			if r.sources != 0 || r.rc.Pending() {
				t.Errorf("%d sources are held; more to send: %v", r.sources, r.rc.Pending())
			}
		})
	}
}
