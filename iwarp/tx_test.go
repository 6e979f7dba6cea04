package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// fpdus cuts a stream into its segments and checks lengths, pads and CRCs.
func fpdus(t *testing.T, b []byte) (segs [][]byte) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 2 {
			t.Fatalf("%d octets left", len(b))
		}
		n := int(b[0])<<8 | int(b[1])
		if len(b) < FPDULen(n) {
			t.Fatalf("FPDU of %d octets cut to %d", FPDULen(n), len(b))
		}
		if want := AppendFPDU(nil, b[2:2+n], true); !bytes.Equal(b[:len(want)], want) {
			t.Fatalf("FPDU %x\nwant %x", b[:len(want)], want)
		}
		segs, b = append(segs, b[2:2+n]), b[FPDULen(n):]
	}
	return segs
}

func describe(segs [][]byte) (s []string) {
	for _, b := range segs {
		s = append(s, DescribeSegment(b))
	}
	return s
}

var initiator = Params{Initiator: true, Revision: 2, CRC: true, IRD: 4, ORD: 4}

// DDP-016, 018..020, 027, 030, 033, 036..038, 040, 041, 045, 046, 048, 050, 051, 052, 055, 056;
// MPA-004.
func TestSegmentation(t *testing.T) {
	h := newHost()
	// MULPDU 1500, as in the examples of RFC 5041, section 5.2
	e := NewEndpoint(initiator, h, Config{MULPDU: 1500})
	e.PostSend(1, OpSendInvalidate, 0x77, &payload{b: pattern(2048, 0)}, 2048)
	e.PostWrite(2, 0x11223344, 16384, &payload{b: pattern(2048, 0)}, 2048)
	e.PostSend(3, OpSend, 0x77, nil, 0)
	e.PostWrite(4, 0, 0, nil, 0)
	e.PostRead(5, 0x99, 5, 1000, 0x10, 6)
	e.PostSend(6, OpSendSE, 0, &payload{b: pattern(1482, 0)}, 1482)
	e.PostRead(7, 0x9a, 5, 0, 0, 0)
	got := strings.Join(describe(fpdus(t, drain(e))), "\n")
	want := `Send with Invalidate inv=0x00000077 qn=0 msn=1 mo=0 len=1482
Send with Invalidate inv=0x00000077 qn=0 msn=1 mo=1482 last len=566
RDMA Write stag=0x11223344 to=0x4000 len=1486
RDMA Write stag=0x11223344 to=0x45ce last len=562
Send qn=0 msn=2 mo=0 last len=0
RDMA Write stag=0x00000000 to=0x0 last len=0
RDMA Read Request qn=1 msn=1 mo=0 last read 1000 octets from stag=0x00000010 to=0x6 into stag=0x00000099 to=0x5
Send with SE qn=0 msn=3 mo=0 last len=1482
RDMA Read Request qn=1 msn=2 mo=0 last read 0 octets from stag=0x00000000 to=0x0 into stag=0x0000009a to=0x5`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if fmt.Sprint(h.sent) != "[1 2 3 4 5 6 7]" {
		t.Errorf("sent %v", h.sent)
	}
	s := e.Stats()
	if s.FPDUsOut != 9 || s.PayloadOut != 2048+2048+1482 || s.MessagesOut != [12]uint64{OpWrite: 2,
		OpReadRequest: 2, OpSend: 1, OpSendInvalidate: 1, OpSendSE: 1} {
		t.Errorf("%+v", s)
	}
}

// DDP-005, 006, 045, MPA-042, design 6: FPDUs follow EMSS and never exceed it.
func TestEMSS(t *testing.T) {
	for _, emss := range []int{536, 1448, 1460, 8948, 65483} {
		e := NewEndpoint(initiator, newHost(), Config{EMSS: 1000})
		e.SetEMSS(emss)
		e.PostWrite(1, 1, 0, &payload{b: pattern(200_000, 0)}, 200_000)
		segs := fpdus(t, drain(e))
		for i, s := range segs {
			if FPDULen(len(s)) > emss || i < len(segs)-1 && len(s) != MULPDU(emss) {
				t.Errorf("EMSS %d: segment %d has %d octets", emss, i, len(s))
			}
		}
	}
	e := NewEndpoint(initiator, newHost(), Config{EMSS: 1460, BatchBytes: 1})
	e.PostWrite(1, 1, 0, &payload{b: pattern(3000, 0)}, 3000)
	var p [1460]byte
	if n, err := e.Read(p[:]); n != 1460 || err != nil {
		t.Fatal(n, err)
	}
	e.SetEMSS(536)
	e.Commit(1000) // what was cut stays cut
	if e.Len() != 460 {
		t.Errorf("Len() = %d, want the rest of the FPDU", e.Len())
	}
	rest := append(p[:1000], drain(e)...)
	for e.Pending() {
		rest = append(rest, drain(e)...)
	}
	got := ""
	for _, s := range fpdus(t, rest) {
		got += fmt.Sprint(len(s), " ")
	}
	if got != "1454 530 530 530 26 " {
		t.Errorf("segments of %s", got)
	}
}

// What the transport takes of each batch, and how it reads, changes nothing on the wire.
func TestCommit(t *testing.T) {
	run := func(piece int, take func(read int) int) ([]byte, *host) {
		h := newHost()
		p := initiator
		p.RTR = RTRWrite
		e := NewEndpoint(p, h, Config{EMSS: 100, BatchBytes: 500})
		e.PostSend(1, OpSend, 0, &payload{b: pattern(400, 0)}, 400)
		e.PostWrite(2, 1, 0, &payload{b: pattern(1, 0)}, 1)
		e.PostRead(3, 0x99, 5, 8, 0x10, 0)
		e.PostSend(4, OpSend, 0, &payload{b: pattern(500, 3)}, 500)
		var out []byte
		for n := 0; e.Pending(); n++ {
			if n > 10_000 {
				t.Fatal("no end")
			}
			want := e.Len()
			var batch []byte
			for len(batch) < want {
				b := make([]byte, min(piece, want-len(batch)))
				k, err := e.Read(b)
				if k != len(b) || err != nil {
					t.Fatalf("Read: %d of %d, %v", k, len(b), err)
				}
				batch = append(batch, b...)
			}
			if k, err := e.Read(make([]byte, 1)); k != 0 || err != io.EOF {
				t.Fatalf("Read behind Len: %d, %v", k, err)
			}
			k := take(len(batch))
			out = append(out, batch[:k]...)
			e.Commit(k)
		}
		return out, h
	}
	want, _ := run(1<<20, func(n int) int { return n })
	if segs := fpdus(t, want); DescribeSegment(
		segs[0]) != "RDMA Write stag=0x00000001 to=0x0 last len=0" {
		t.Errorf("first %s", DescribeSegment(segs[0])) // EMPA-041
	}
	for _, piece := range []int{1, 3, 100, 101, 333, 1 << 20} {
		for name, take := range map[string]func(int) int{
			"all":    func(n int) int { return n },
			"one":    func(n int) int { return 1 },
			"half":   func(n int) int { return (n + 1) / 2 },
			"less 5": func(n int) int { return max(n-5, 1) },
			"sometimes": func() func(int) int {
				i := 0
				return func(n int) int { i++; return n * (i % 2) }
			}(),
		} {
			got, h := run(piece, take)
			if !bytes.Equal(got, want) {
				t.Errorf("piece %d, %s: the stream differs", piece, name)
			}
			if fmt.Sprint(h.sent) != "[1 2 3 4]" {
				t.Errorf("piece %d, %s: sent %v", piece, name, h.sent)
			}
		}
	}
}

// Host.Sent comes with the last octet, not before (RDMAP-094).
func TestSentWithLastOctet(t *testing.T) {
	h := newHost()
	e := NewEndpoint(initiator, h, Config{EMSS: 100})
	e.PostSend(1, OpSend, 0, &payload{b: pattern(300, 0)}, 300)
	for e.Len() > 0 {
		if len(h.sent) > 0 {
			t.Fatalf("sent with %d octets left", e.Len())
		}
		drainN(e, 1)
	}
	if len(h.sent) != 1 {
		t.Error("not sent")
	}
}

// drainN has the transport read everything and take n octets.
func drainN(e *Endpoint, n int) []byte {
	b, _ := io.ReadAll(e)
	e.Commit(n)
	return b[:n]
}

// RDMAP-087: the memory changes while the transport takes an FPDU in parts. What staging holds goes
// on as it was; what would have to be made again and differs ends the stream without a false octet.
func TestMemoryChanges(t *testing.T) {
	for _, staged := range []bool{true, false} {
		p := &payload{b: pattern(80, 0)}
		e := NewEndpoint(initiator, newHost(), Config{EMSS: 1460})
		e.PostSend(1, OpSend, 0, p, 80)
		b := make([]byte, e.Len())
		if staged {
			e.Read(b[:50])
			e.Read(b[50:])
		} else {
			e.Read(b)
		}
		copy(p.b, "changed")
		e.Commit(50)
		rest := drain(e)
		if staged {
			if segs := fpdus(t, append(b[:50], rest...)); len(segs) != 1 || e.Err() != nil {
				t.Errorf("staged: %d FPDUs, %v", len(segs), e.Err())
			}
			continue
		}
		if len(rest) > 0 || e.Err() == nil || !e.Drained() || e.Terminating() {
			t.Errorf("in place: sent %x, %v", rest, e.Err())
		}
	}
}

// RDMAP-112, RDMAP-038: memory that cannot be read. What was posted before goes out, then the
// Terminate in place of the message, and nothing behind it.
func TestCopyOutFails(t *testing.T) {
	boom := errors.New("no such region")
	for _, piece := range []int{1 << 20, 64, 1000} {
		for _, failAt := range []uint32{0, 3000, 4999} {
			h := newHost()
			e := NewEndpoint(initiator, h, Config{EMSS: 1000})
			e.PostSend(1, OpSend, 0, &payload{b: pattern(2000, 0)}, 2000)
			e.PostWrite(2, 1, 0, &payload{b: pattern(5000, 0), fail: boom, failAt: failAt}, 5000)
			e.PostSend(3, OpSend, 0, &payload{b: pattern(10, 0)}, 10)
			var out []byte
			fails := 0
			for n := 0; e.Pending() && n < 10_000; n++ {
				b := make([]byte, min(e.Len(), piece))
				k, err := e.Read(b)
				if err != nil {
					fails++
					k = 0
				}
				out = append(out, b[:k]...)
				e.Commit(k)
			}
			segs := describe(fpdus(t, out))
			var me *MessageError
			var le *LocalError
			if !errors.As(e.Err(), &le) || le.Cause != TermLocalCatastrophic || !errors.As(e.Err(), &me) ||
				me.Token != 2 || me.Op != OpWrite || !errors.Is(e.Err(), boom) {
				t.Fatalf("Err() = %v", e.Err())
			}
			if last := segs[len(segs)-1]; last !=
				"Terminate qn=2 msn=1 mo=0 last Terminate 0/0/FF local catastrophic error" {
				t.Errorf("piece %d, at %d: last %s", piece, failAt, last)
			}
			if fmt.Sprint(h.sent) != "[1]" || fails == 0 {
				t.Errorf("piece %d, at %d: sent %v, %d failures", piece, failAt, h.sent, fails)
			}
			for _, s := range segs[3:] {
				if strings.HasPrefix(s, "Send") {
					t.Errorf("piece %d, at %d: %s behind the broken message", piece, failAt, s)
				}
			}
			if !e.Drained() || e.Terminating() {
				t.Error("not over")
			}
		}
	}
}

// A message before the one that broke breaks too: the Terminate comes for the first on the wire.
func TestCopyOutFailsTwice(t *testing.T) {
	boom := errors.New("boom")
	e := NewEndpoint(initiator, newHost(), Config{EMSS: 1000})
	first := &payload{b: pattern(10, 0)}
	e.PostSend(1, OpSend, 0, first, 10)
	e.PostSend(2, OpSend, 0, &payload{b: pattern(10, 0), fail: boom}, 10)
	io.ReadAll(e)
	e.Commit(0)
	first.fail = boom
	io.ReadAll(e)
	e.Commit(0)
	if segs := describe(fpdus(t, drain(e))); len(segs) != 1 || !strings.HasPrefix(segs[0],
		"Terminate") {
		t.Errorf("%q", segs)
	}
}

// RDMAP-040: a Read whose source goes away while it is answered.
func TestReadFailsHalfway(t *testing.T) {
	r := newRaw(responder, true)
	r.h.mem[0x10] = pattern(5000, 0)
	r.Write(AppendFPDU(nil, readReq(1, 5000, 0x10, 0), true))
	first := make([]byte, 1460)
	r.Read(first)
	r.Commit(1460)
	sent := 1460 - 2 - 14 - 4
	// The payload is ours to break: the region is revoked.
	r.h.last.fail = &LocalError{Cause: TermReadInvalidSTag, Err: errors.New("revoked")}
	io.ReadAll(r)
	r.Commit(0)
	req := readReq(1, 5000, 0x10, 0)
	want := wantTerminate("0100e000", "dr", append(req[:18:18], AppendReadRequest(nil, 0xdead,
		0xbeef+uint64(sent), uint32(5000-sent), 0x10, uint64(sent))...))
	if out := drain(r); !bytes.Equal(out, want) {
		t.Errorf("sent\n%x\nwant\n%x", out, want)
	}
	r.Close()
	if r.h.sources != 0 {
		t.Error("the source was not given back")
	}
}

// A26, RDMAP-113, RDMAP-115: behind the FPDU in progress, before what is posted; the first error
// counts.
func TestTerminateBehindSegment(t *testing.T) {
	r := newRaw(responder, true)
	r.PostWrite(1, 1, 0, &payload{b: pattern(5000, 0)}, 5000)
	b, _ := io.ReadAll(r)
	r.Commit(2000)
	r.Write(AppendFPDU(AppendFPDU(nil, writeSeg(OpWrite, true, 0xbad, 0, 1), true),
		sendSeg(OpSend, true, 9, 0, 1), true))
	r.Fail(TermLocalCatastrophic, nil)
	segs := describe(fpdus(t, append(b[:2000:2000], drain(r)...)))
	if len(segs) != 3 || !strings.HasPrefix(segs[2],
		"Terminate qn=2 msn=1 mo=0 last Terminate 1/1/00") {
		t.Errorf("%q", segs)
	}
}

// RDMAP-053, A26: what the peer asked for ahead of its fault is answered before the Terminate,
// wherever the fault is; what was posted is not sent, but for a message that an answer waits for.
func TestAnswersBeforeTerminate(t *testing.T) {
	good := AppendFPDU(AppendFPDU(nil, readReq(1, 20, 0x10, 0), true), readReq(2, 30, 0x10, 8), true)
	damaged := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 4), true)
	damaged[20] ^= 1
	for _, tt := range []struct {
		name, cause string
		bad         []byte
	}{
		{"a Read that is refused", "0/1/00", AppendFPDU(nil, readReq(3, 1, 0xbad, 0), true)},
		{"a Write that is refused", "1/1/00", AppendFPDU(nil, writeSeg(OpWrite, true, 0xbad, 0, 1),
			true)},
		{"an FPDU that is damaged", "2/0/02", damaged},
	} {
		for _, mid := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a message: %t", tt.name, mid), func(t *testing.T) {
				p := responder
				p.IRD = 3
				r := newRaw(p, true)
				want := []string{"Read Response", "Read Response", "Terminate " + tt.cause}
				r.PostWrite(1, 1, 0, &payload{b: pattern(3000, 0)}, 3000)
				var out []byte
				if mid {
					b, _ := io.ReadAll(r)
					r.Commit(1000)
					out = b[:1000:1000]
					want = append([]string{"RDMA Write", "RDMA Write", "RDMA Write"}, want...)
				}
				r.PostSend(2, OpSend, 0, nil, 0)
				r.Write(append(good[:len(good):len(good)], tt.bad...))
				if !r.Terminating() || r.Drained() {
					t.Error("no Terminate is waiting")
				}
				for r.Pending() {
					out = append(out, drain(r)...)
				}
				segs := describe(fpdus(t, out))
				if len(segs) != len(want) {
					t.Fatalf("sent %q, want %q", segs, want)
				}
				for i, w := range want {
					if !strings.Contains(segs[i], w) {
						t.Errorf("segment %d is %q, want %s", i, segs[i], w)
					}
				}
				if r.Terminating() || !r.Drained() || r.h.sources != 0 {
					t.Errorf("not over; %d sources are held", r.h.sources)
				}
			})
		}
	}
}

// RDMAP-115: an answer that cannot be read any more gives way to the Terminate for the first fault.
func TestAnswerBreaksBeforeTerminate(t *testing.T) {
	r := newRaw(responder, true)
	bad := readReq(2, 1, 0xbad, 0)
	r.Write(AppendFPDU(AppendFPDU(nil, readReq(1, 20, 0x10, 0), true), bad, true))
	r.h.last.fail = &LocalError{Cause: TermReadInvalidSTag, Err: errors.New("revoked")}
	if _, err := io.ReadAll(r); err == nil {
		t.Fatal("the answer could be read")
	}
	r.Commit(0)
	if out, want := drain(r), wantTerminate("0100e000", "dr", bad); !bytes.Equal(out, want) {
		t.Errorf("sent\n%x\nwant\n%x", out, want)
	}
	if r.Terminating() || !r.Drained() {
		t.Error("not over")
	}
}

// MPA-084, EMPA-043: nothing before the first valid FPDU has come.
func TestGate(t *testing.T) {
	r := newRaw(responder, false)
	r.PostSend(1, OpSend, 0, nil, 0)
	if r.Pending() || r.Drained() || r.Established() {
		t.Fatal("sends at once")
	}
	fp := AppendFPDU(nil, writeSeg(OpWrite, true, 1, 0, 0), true)
	r.Write(fp[:len(fp)-1])
	if r.Pending() {
		t.Fatal("sends before the FPDU is whole")
	}
	r.Write(fp[len(fp)-1:])
	if segs := describe(fpdus(t, drain(r))); len(segs) != 1 || !r.Established() {
		t.Errorf("%q", segs)
	}
}

// EMPA-039, 041, 044, 046: each ready-to-receive message, octet for octet, and its answer.
func TestRTR(t *testing.T) {
	for _, tt := range []struct {
		kind         RTRKinds
		wire, answer string
		log          string
	}{
		{RTRWrite, "000e c140 00000001 0000000000000000 ebd34c5f", "", "[write 0x1+0 0 last=true]"},
		{RTRRead, "002e 4141 00000000 00000001 00000001 00000000 00000000 0000000000000000 00000000 " +
			"00000001 0000000000000000 ba10e3c9",
			"000e c142 00000000 0000000000000000 6975d6ca", "[source 0]"},
		{RTRSend, "0012 4143 00000000 00000000 00000001 00000000 587be8c4", "",
			"[begin 9 receive 0  se=false inv=false 0x0]"},
	} {
		a, b := newSides(iwarptest.Link{Record: true}, func(a, b *Params) { a.RTR = tt.kind }, Config{})
		b.h.posted = [][]byte{make([]byte, 9)}
		if tt.kind == RTRRead && a.ReadsOutstanding() != 1 {
			t.Error("the RTR Read does not count") // EMPA-023
		}
		if a.Drained() || !a.Pending() || !b.Drained() {
			t.Error("the RTR is not to be sent, or something else is")
		}
		run(a, b)
		if _, log := a.s.Sent(); !bytes.Equal(log, unhex(tt.wire)) {
			t.Errorf("%v: sent %x", tt.kind, log)
		}
		if _, log := b.s.Sent(); !bytes.Equal(log, unhex(tt.answer)) {
			t.Errorf("%v: answered %x", tt.kind, log)
		}
		if fmt.Sprint(b.h.log) != tt.log || len(a.h.log) > 0 || a.Err() != nil || b.Err() != nil ||
			!a.Idle() || !b.Idle() {
			t.Errorf("%v: %v, %v, %v, %v", tt.kind, a.h.log, b.h.log, a.Err(), b.Err())
		}
		// and the counters go on behind it
		a.h.sinks[1], a.h.order = make([]byte, 4), []uint64{1}
		b.h.mem[0x10] = pattern(4, 9)
		b.h.posted = [][]byte{make([]byte, 9)}
		a.PostSend(9, OpSend, 0, nil, 0)
		a.PostRead(1, 0x99, 5, 4, 0x10, 0)
		run(a, b)
		if a.Err() != nil || b.Err() != nil || !bytes.Equal(a.h.sinks[1], pattern(4, 9)) {
			t.Errorf("%v: behind it %v, %v", tt.kind, a.Err(), b.Err())
		}
	}
}

// RDMAP-101: ORD, with an RTR Read counted.
func TestORD(t *testing.T) {
	for _, ord := range []uint16{0, 1, 2, 3, 5, 8} {
		p := initiator
		p.ORD = ord
		e := NewEndpoint(p, newHost(), Config{})
		n := uint16(0)
		for ; e.CanPostRead(); n++ {
			if err := e.PostRead(uint64(n), 0x99, 0, 8, 0x10, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.PostRead(99, 0x99, 0, 8, 0x10, 0); n != ord || !errors.Is(err, ErrReadLimit) ||
			e.ReadsOutstanding() != int(ord) {
			t.Errorf("ORD %d: %d Reads, %v", ord, n, err)
		}
		if segs := fpdus(t, drain(e)); len(segs) != int(ord) {
			t.Errorf("ORD %d: %d requests", ord, len(segs))
		}
		if e.Idle() && ord > 0 {
			t.Error("idle with Reads outstanding")
		}
	}
}

func TestQueueFull(t *testing.T) {
	e := NewEndpoint(initiator, newHost(), Config{SendQueue: 3})
	for i := range 3 {
		if !e.CanPost() {
			t.Error("full too early")
		}
		if err := e.PostWrite(uint64(i), 1, 1, nil, 0); err != nil {
			t.Error(err)
		}
	}
	if err := e.PostWrite(4, 1, 1, nil, 0); !errors.Is(err, ErrQueueFull) || e.CanPost() {
		t.Error(err)
	}
	if err := e.PostSend(4, OpWrite, 0, nil, 0); !errors.Is(err, ErrOpcode) {
		t.Error(err)
	}
	if err := e.PostSend(4, OpSend, 0, nil, 1); err == nil {
		t.Error("a message with an octet and no Payload")
	}
	drain(e)
	if !e.CanPost() {
		t.Error("full behind the last")
	}
}

// RDMAP-061, 098, S11: answers in the order of the requests, in turns with what is posted.
func TestAnswersTakeTurns(t *testing.T) {
	p := responder
	p.IRD = 4
	r := newRaw(p, true)
	for i := range 4 {
		r.Write(AppendFPDU(nil, readReq(MSN(i+1), uint32(i+1), 0x10, 0), true))
	}
	for i := range 3 {
		r.PostWrite(uint64(i), 1, 0, nil, 0)
	}
	got := ""
	for _, s := range fpdus(t, drain(r)) {
		got += fmt.Sprintf("%d:%d ", s[1]&15, len(s)-14)
	}
	if got != "2:1 0:0 2:2 0:0 2:3 0:0 2:4 " {
		t.Errorf("order %s", got)
	}
	if r.h.sources != 0 {
		t.Errorf("%d sources left", r.h.sources)
	}
}

// DDP-039: MSNs wrap. 2^32 messages are too many; the engine's arithmetic is that of uint32.
func TestMSN(t *testing.T) {
	if m := MSN(0xffffffff); !m.Before(m+1) || (m + 1).Before(m) || m+1 != 0 {
		t.Error("MSN does not wrap")
	}
}

func TestClose(t *testing.T) {
	r := newRaw(responder, true)
	r.Write(AppendFPDU(nil, readReq(1, 8, 0x10, 0), true))
	r.PostWrite(1, 1, 0, &payload{b: pattern(5000, 0)}, 5000)
	if r.h.sources != 1 {
		t.Fatal("no source")
	}
	r.Close()
	r.Close()
	if r.h.sources != 0 || r.Pending() || !r.Drained() || len(r.h.sent) > 0 {
		t.Errorf("%d sources, pending %t, sent %v", r.h.sources, r.Pending(), r.h.sent)
	}
	if n, err := r.Write(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("Write: %d, %v", n, err)
	}
	if err := r.PostSend(2, OpSend, 0, nil, 0); !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
}
