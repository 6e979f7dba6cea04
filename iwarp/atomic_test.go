package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// fetchAddBits is the pseudocode of RFC 7306, section 5.1.1, bit by bit.
func fetchAddBits(original, addData, addMask uint64) (value uint64) {
	bitLocation := uint64(1)
	carry := uint64(0)
	for bit := range 64 {
		if bit != 0 {
			bitLocation <<= 1
		}
		val1 := (original & bitLocation) >> bit
		val2 := (addData & bitLocation) >> bit
		sum := carry + val1 + val2
		carry = (sum & 2) >> 1
		sum &= 1
		if sum != 0 {
			value |= bitLocation
		}
		if addMask&bitLocation != 0 {
			carry = 0
		}
	}
	return value
}

// compareSwapBits is section 5.1.2, one bit at a time.
func compareSwapBits(original, compare, compareMask, swap, swapMask uint64) (value uint64) {
	same := true
	for bit := range 64 {
		if compareMask>>bit&1 == 1 && original>>bit&1 != compare>>bit&1 {
			same = false
		}
	}
	for bit := range 64 {
		from := original
		if same && swapMask>>bit&1 == 1 {
			from = swap
		}
		value |= from >> bit & 1 << bit
	}
	return value
}

// EXT-004, EXT-012, 013, 016: vectors, and any operands against the RFC's pseudocode.
func TestAtomicArithmetic(t *testing.T) {
	const all = ^uint64(0)
	for _, tt := range []struct{ old, add, mask, want uint64 }{
		{0x2a, 5, 0, 0x2f},
		{0x2a, 0, 0, 0x2a}, // the probe
		{all, 1, 0, 0},
		{all, all, 0, all - 1},
		{1 << 63, 1 << 63, 0, 0},
		{0xffffffff, 1, 1 << 31, 0},
		{0xffffffff, 1, 0, 1 << 32},
		{0xffffffff_ffffffff, 0x00000001_00000001, 1<<63 | 1<<31, 0},
		{0x00000001_ffffffff, 0x00000002_00000001, 1<<63 | 1<<31, 0x00000003_00000000},
		{0b1011, 0b0110, all, 0b1101}, // each bit on its own: exclusive or
		{0xff, 0x01, 1 << 3, 0xf0},
	} {
		if got := FetchAdd(tt.old, tt.add, tt.mask); got != tt.want {
			t.Errorf("FetchAdd(%#x, %#x, %#x) = %#x, want %#x", tt.old, tt.add, tt.mask, got, tt.want)
		}
		if got := (Atomic{Op: AtomicFetchAdd, Data: tt.add, Mask: tt.mask, Compare: 1,
			CompareMask: 2}).Apply(tt.old); got != tt.want {
			t.Errorf("Apply: %#x, want %#x", got, tt.want)
		}
	}
	for _, tt := range []struct{ old, compare, compareMask, swap, swapMask, want uint64 }{
		{0x2f, 0x2f, all, 0x1111222233334444, all, 0x1111222233334444},
		{0x2e, 0x2f, all, 0x1111222233334444, all, 0x2e},
		{0x2e, 0x2f, 0, 0x1111222233334444, all, 0x1111222233334444}, // always
		{0x2f, 0x2f, all, 0x1111222233334444, 0, 0x2f},               // never
		{0xabcd, 0xff0d, 0x000f, 0x1234, 0xff00, 0x12cd},
		{0xabcd, 0xff0e, 0x000f, 0x1234, 0xff00, 0xabcd},
		{1 << 63, 0, 1 << 63, all, all, 1 << 63},
	} {
		if got := CompareSwap(tt.old, tt.compare, tt.compareMask, tt.swap, tt.swapMask); got != tt.want {
			t.Errorf("%#x: %#x, want %#x", tt, got, tt.want)
		}
		a := Atomic{Op: AtomicCompareSwap, Data: tt.swap, Mask: tt.swapMask, Compare: tt.compare,
			CompareMask: tt.compareMask}
		if got := a.Apply(tt.old); got != tt.want {
			t.Errorf("%v on %#x: %#x, want %#x", a, tt.old, got, tt.want)
		}
	}
	rng := rand.New(rand.NewPCG(7306, 1))
	// Half of the words are sparse or nearly full, so that carries run far and masks have few bits.
	bit := func() uint64 { return 1 << rng.IntN(64) }
	word := func() uint64 {
		switch x := bit(); rng.IntN(4) {
		case 0:
			return x | bit()
		case 1:
			return ^(x | bit())
		}
		return rng.Uint64()
	}
	for range 50_000 {
		old, x, y, z, w := word(), word(), word(), word(), word()
		if got, want := FetchAdd(old, x, y), fetchAddBits(old, x, y); got != want {
			t.Fatalf("FetchAdd(%#x, %#x, %#x) = %#x, want %#x", old, x, y, got, want)
		}
		if rng.IntN(2) == 0 {
			x = old ^ word()&^y // often equal under the mask
		}
		if got, want := CompareSwap(old, x, y, z, w), compareSwapBits(old, x, y, z, w); got != want {
			t.Fatalf("CompareSwap(%#x, %#x, %#x, %#x, %#x) = %#x, want %#x", old, x, y, z, w, got, want)
		}
	}
}

var initiatorExt = Config{EMSS: 1460, Extensions: true}

// EXT-006, EXT-008, EXT-011, EXT-017, EXT-022, EXT-025, EXT-027, EXT-037, EXT-039, EXT-049: what is
// sent, in the order of posting: queues, MSNs, sizes and fields.
func TestExtensionsSent(t *testing.T) {
	h := newHost()
	e := NewEndpoint(initiator, h, initiatorExt)
	for _, err := range []error{
		e.PostSend(1, OpSend, 0, nil, 0),
		e.PostImmediate(2, false, 0x000000c7_00000000),
		e.PostRead(3, 0x99, 5, 8, 0x10, 6),
		e.PostAtomic(4, Atomic{Op: AtomicFetchAdd, STag: 0x7c341, TO: 0x7f3a10003010, Data: 5, Mask: 0x80,
			Compare: 1, CompareMask: 2}),
		e.PostRead(5, 0x99, 5, 8, 0x10, 6),
		e.PostImmediate(6, true, 0x0123456789abcdef),
		e.PostAtomic(7, Atomic{Op: AtomicCompareSwap, STag: 0x10, TO: 8, Data: 1, Mask: 2, Compare: 3,
			CompareMask: 4}),
		e.PostSend(8, OpSend, 0, nil, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	segs := fpdus(t, drain(e))
	want := `18 Send qn=0 msn=1 mo=0 last len=0
26 Immediate Data qn=0 msn=2 mo=0 last data=000000c700000000
46 RDMA Read Request qn=1 msn=1 mo=0 last read 8 octets from stag=0x00000010 to=0x6 into stag=0x00000099 to=0x5
70 Atomic Request qn=1 msn=2 mo=0 last id=0x2 FetchAdd at stag=0x0007c341 to=0x7f3a10003010 add=0x5 mask=0x80
46 RDMA Read Request qn=1 msn=3 mo=0 last read 8 octets from stag=0x00000010 to=0x6 into stag=0x00000099 to=0x5
26 Immediate Data with SE qn=0 msn=3 mo=0 last data=0123456789abcdef
70 Atomic Request qn=1 msn=4 mo=0 last id=0x4 CmpSwap at stag=0x00000010 to=0x8 compare=0x3 mask=0x4 swap=0x1 mask=0x2
18 Send qn=0 msn=4 mo=0 last len=0`
	var got []string
	for _, s := range segs {
		got = append(got, fmt.Sprint(len(s), " ", DescribeSegment(s)))
	}
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	fetch := unhex("41 4a 00000000 00000001 00000002 00000000 00000000 00000002 0007c341 " +
		"00007f3a10003010" +
		"0000000000000005 0000000000000080 0000000000000000 ffffffffffffffff")
	if !bytes.Equal(segs[3], fetch) {
		t.Errorf("FetchAdd %x\nwant     %x", segs[3], fetch)
	}
	if fmt.Sprint(h.sent) != "[1 2 3 4 5 6 7 8]" {
		t.Errorf("sent %v", h.sent)
	}
	if s := e.Stats(); s.MessagesOut != [12]uint64{OpSend: 2, OpReadRequest: 2, OpImmediate: 1,
		OpImmediateSE: 1, OpAtomicRequest: 2} {
		t.Errorf("%+v", s)
	}
}

// EXT-002: without an agreement nothing of RFC 7306 is posted, and by default there is none.
func TestExtensionsOff(t *testing.T) {
	e := NewEndpoint(initiator, newHost(), Config{})
	if err := e.PostAtomic(1, Atomic{}); !errors.Is(err, ErrExtensions) {
		t.Error(err)
	}
	if err := e.PostImmediate(1, false, 0); !errors.Is(err, ErrExtensions) {
		t.Error(err)
	}
	if e.Pending() || !e.Idle() {
		t.Error("something is posted")
	}
}

// EXT-044: what cannot be sent is refused when it is posted; a failure while it goes out ends the
// stream with a Terminate that has no copies.
func TestAtomicNotSent(t *testing.T) {
	e := NewEndpoint(initiator, newHost(), initiatorExt)
	for op := range AtomicOp(32) {
		if err := e.PostAtomic(1, Atomic{Op: op}); errors.Is(err, ErrAtomicOp) == (op == 0 || op == 2) {
			t.Errorf("%v: %v", op, err)
		}
	}
	drain(e)
	for range 2 {
		if err := e.PostAtomic(2, Atomic{}); err != nil {
			t.Fatal(err)
		}
	}
	e.Fail(TermLocalCatastrophic, errors.New("the memory for the old value is gone"))
	if out := drain(e); !bytes.Equal(out, wantTerminate("00ff0000", "", nil)) {
		t.Errorf("sent %x", out)
	}
	if err := e.PostAtomic(3, Atomic{}); !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
}

// EXT-017, EXT-028, A17: Reads and atomics share ORD.
func TestSharedORD(t *testing.T) {
	for _, ord := range []uint16{0, 1, 4, 5} {
		p := initiator
		p.ORD = ord
		e := NewEndpoint(p, newHost(), initiatorExt)
		for i := range ord {
			if !e.CanPostRead() {
				t.Fatal("no more after", i)
			}
			post := func() error { return e.PostAtomic(uint64(i), Atomic{}) }
			if i%3 == 1 {
				post = func() error { return e.PostRead(uint64(i), 0x99, 0, 8, 0x10, 0) }
			}
			if err := post(); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.PostAtomic(99, Atomic{}); !errors.Is(err, ErrReadLimit) || e.CanPostRead() ||
			e.ReadsOutstanding() != int(ord) {
			t.Errorf("ORD %d: atomic %v, %d outstanding", ord, err, e.ReadsOutstanding())
		}
		if err := e.PostRead(99, 0x99, 0, 8, 0x10, 0); !errors.Is(err, ErrReadLimit) {
			t.Errorf("ORD %d: Read %v", ord, err)
		}
		if segs := fpdus(t, drain(e)); len(segs) != int(ord) {
			t.Errorf("ORD %d: %d requests", ord, len(segs))
		}
	}
}

// EXT-020, EXT-018, EXT-022, EXT-024, EXT-015, EXT-021, A24: what a responder takes and answers.
// The target keeps the word of the Atomic Request in codec_test.go in its own octet order.
func TestAtomicAnswered(t *testing.T) {
	all := ^uint64(0)
	fetch := Atomic{STag: 0x10, TO: 8, Data: 5, CompareMask: all}
	for _, tt := range []struct {
		name   string
		base   uint64
		segs   [][]byte
		want   string // of the response
		memory uint64
	}{
		{"E8", 0, [][]byte{atomReq(1, 0xa1, fetch)},
			"414b 00000000 00000003 00000001 00000000 000000a1 000000000000002a", 0x2f},
		{"identifier 0", 0, [][]byte{atomReq(1, 0, fetch)},
			"414b 00000000 00000003 00000001 00000000 00000000 000000000000002a", 0x2f},
		{"identifier FFFFFFFF", 0, [][]byte{atomReq(1, 0xffffffff, fetch)},
			"414b 00000000 00000003 00000001 00000000 ffffffff 000000000000002a", 0x2f},
		{"E9", 0, [][]byte{atomReq(1, 0xa2, Atomic{Op: AtomicCompareSwap, STag: 0x10, TO: 8,
			Data: 0x1111222233334444, Mask: all, Compare: 0x2a, CompareMask: all})},
			"414b 00000000 00000003 00000001 00000000 000000a2 000000000000002a", 0x1111222233334444},
		{"no match", 0, [][]byte{atomReq(1, 0xa2, Atomic{Op: AtomicCompareSwap, STag: 0x10, TO: 8,
			Data: 1, Mask: all, Compare: 0x2f, CompareMask: all})},
			"414b 00000000 00000003 00000001 00000000 000000a2 000000000000002a", 0x2a},
		{"reserved bits", 0, [][]byte{with(with(with(with(atomReq(1, 1, fetch), 18, 0xff), 19, 0xff), 20,
			0xff), 21, 0xf0)},
			"414b 00000000 00000003 00000001 00000000 00000001 000000000000002a", 0x2f},
		{"compare fields of a FetchAdd", 0, [][]byte{with(with(atomReq(1, 1, fetch), 54, 0x77), 69, 0)},
			"414b 00000000 00000003 00000001 00000000 00000001 000000000000002a", 0x2f},
		{"any TO at an aligned address", 3, [][]byte{atomReq(1, 1, Atomic{STag: 0x10, TO: 5, Data: 5})},
			"414b 00000000 00000003 00000001 00000000 00000001 000000000000002a", 0x2f},
		{"cut in 52", 0, cutSeg(atomReq(1, 1, fetch), func() (at []int) {
			for i := 1; i < 52; i++ {
				at = append(at, i)
			}
			return at
		}()...), "414b 00000000 00000003 00000001 00000000 00000001 000000000000002a", 0x2f},
		{"cut, the end first", 0, [][]byte{
			notLast(cutSeg(atomReq(1, 1, fetch), 20)[1]), cutSeg(atomReq(1, 1, fetch), 20)[0],
			AppendUntagged(nil, true, OpAtomicRequest, 0, 1, 52)},
			"414b 00000000 00000003 00000001 00000000 00000001 000000000000002a", 0x2f},
	} {
		r := newRawExt(responder, true, true)
		r.h.base = tt.base
		at := (8 - tt.base) % 8
		if tt.base == 0 {
			at = 8
		}
		word(r.h.mem[0x10][at:]).set(0x2a)
		for _, s := range tt.segs {
			r.Write(AppendFPDU(nil, s, true))
		}
		if out := drain(r); !bytes.Equal(out, AppendFPDU(nil, unhex(tt.want), true)) || r.Err() != nil {
			t.Errorf("%s: sent %x, %v", tt.name, out, r.Err())
		}
		if got := word(r.h.mem[0x10][at:]).get(); got != tt.memory {
			t.Errorf("%s: the target is %#x, want %#x", tt.name, got, tt.memory)
		}
		// Not shown to the program: no receive, no completion.
		if len(r.h.log) != 1 || !strings.HasPrefix(r.h.log[0], "atomic ") {
			t.Errorf("%s: %q", tt.name, r.h.log)
		}
		if !r.Idle() {
			t.Errorf("%s: not idle", tt.name)
		}
	}
}

// EXT-004, 007: FetchAdd of 0 changes nothing; an STag in octets 2 to 5 means nothing.
func TestAtomicProbe(t *testing.T) {
	r := newRawExt(responder, true, true)
	word(r.h.mem[0x10]).set(0x1234)
	r.Write(AppendFPDU(nil, with(atomReq(1, 9, Atomic{STag: 0x10}), 5, 0x10), true))
	if out := drain(r); !bytes.Equal(out, AppendFPDU(nil, atomResp(1, 9, 0x1234), true)) ||
		word(r.h.mem[0x10]).get() != 0x1234 {
		t.Errorf("sent %x, %v", out, r.Err())
	}
	r.h.posted = [][]byte{make([]byte, 8)}
	r.Write(AppendFPDU(nil, with(immSeg(OpImmediate, 1, 5), 5, 0x10), true))
	if len(r.h.received) != 1 || r.h.received[0] != (Received{Immediate: true, Data: 5}) {
		t.Errorf("%+v, %v", r.h.received, r.Err())
	}
	requests("a")(r)
	r.Write(AppendFPDU(nil, with(atomResp(1, 1, 7), 5, 0x10), true))
	if r.Err() != nil || r.h.log[len(r.h.log)-1] != "atomic 7 0x7" {
		t.Errorf("%q, %v", r.h.log, r.Err())
	}
}

// EXT-028, EXT-034: IRD atomics and Reads back to back, again and again, are answered in their
// order.
func TestAtomicsInOrder(t *testing.T) {
	p := responder
	p.IRD = 8
	r := newRawExt(p, true, true)
	msn, amsn, want := MSN(1), MSN(1), uint64(0)
	for range 5 {
		for i := range 8 {
			if i%3 == 2 {
				r.Write(AppendFPDU(nil, readReq(msn, 1, 0x10, 0), true))
			} else {
				r.Write(AppendFPDU(nil, atomReq(msn, uint32(i%2), Atomic{STag: 0x10, Data: 1}), true))
			}
			msn++
		}
		segs := fpdus(t, drain(r))
		for i, s := range segs {
			if i%3 == 2 {
				if Opcode(s[1]&15) != OpReadResponse {
					t.Fatalf("%d is %s", i, DescribeSegment(s))
				}
				continue
			}
			if !bytes.Equal(s, atomResp(amsn, uint32(i%2), want)) {
				t.Errorf("%d is %s, want MSN %d and %d", i, DescribeSegment(s), amsn, want)
			}
			amsn, want = amsn+1, want+1
		}
		if len(segs) != 8 || r.Err() != nil {
			t.Fatalf("%d answers, %v", len(segs), r.Err())
		}
	}
}

// EXT-026: a long Read before an atomic is answered in full first. EXT-033: what is sent behind
// them meanwhile is delivered although no answer can be sent, and the atomic is done by then.
func TestAtomicBehindRead(t *testing.T) {
	a, b := newSides(iwarptest.Link{Buffer: 4000}, nil, initiatorExt)
	b.h.mem[0x10] = make([]byte, 1<<20)
	b.h.posted = [][]byte{make([]byte, 8), nil}
	a.h.sinks[1], a.h.order = make([]byte, 1<<20), []uint64{1, 2}
	for _, err := range []error{
		a.PostRead(1, 0x99, 0, 1<<20, 0x10, 0), a.PostAtomic(2, Atomic{STag: 0x10, TO: 16, Data: 3}),
		a.PostSend(3, OpSend, 0, &payload{b: []byte("hi")}, 2), a.PostImmediate(4, false, 5),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// Only a sends: its peer's answers are not read, as behind a closed window.
	for range 10 {
		n, _ := a.s.WriteFrom(a.Endpoint)
		a.Commit(n)
		b.step()
	}
	if len(b.h.received) != 2 || len(a.h.order) != 2 || b.Drained() {
		t.Fatalf("received %v, answered %v, drained %t", b.h.received, a.h.order, b.Drained())
	}
	if word(b.h.mem[0x10][16:]).get() != 3 {
		t.Error("the atomic waits for the answer to the Read")
	}
	run(a, b)
	if a.Err() != nil || b.Err() != nil || len(a.h.order) != 0 || !a.Idle() || !b.Idle() {
		t.Fatalf("%v, %v, %v left", a.Err(), b.Err(), a.h.order)
	}
	asked := [12]uint64{OpReadRequest: 1, OpAtomicRequest: 1, OpSend: 1, OpImmediate: 1}
	answered := [12]uint64{OpReadResponse: 1, OpAtomicResponse: 1}
	if sa, sb := a.Stats(), b.Stats(); sa.MessagesOut != asked || sb.MessagesIn != asked ||
		sb.MessagesOut != answered || sa.MessagesIn != answered {
		t.Errorf("counted %+v and %+v", sa, sb)
	}
	if log := a.h.log[len(a.h.log)-2:]; log[0] != "read 1" || log[1] != "atomic 2 0x0" {
		t.Errorf("%q", log)
	}
}

// EXT-029, EXT-031: nothing but the response completes an atomic.
func TestAtomicCompletes(t *testing.T) {
	a, b := newSides(iwarptest.Link{}, nil, initiatorExt)
	b.h.mem[0x10] = make([]byte, 64)
	b.h.posted = [][]byte{nil}
	word(b.h.mem[0x10]).set(41)
	a.h.order = []uint64{1}
	b.s.Hold()
	a.PostAtomic(1, Atomic{STag: 0x10, Data: 1})
	a.PostSend(2, OpSend, 0, nil, 0)
	a.h.posted = [][]byte{nil}
	run(a, b)
	if fmt.Sprint(a.h.sent) != "[1 2]" || len(a.h.order) != 1 || a.ReadsOutstanding() != 1 ||
		a.Idle() {
		t.Fatalf("sent %v, outstanding %v", a.h.sent, a.h.order)
	}
	if word(b.h.mem[0x10]).get() != 42 || len(b.h.received) != 1 {
		t.Error("not carried out")
	}
	b.s.Release()
	run(a, b)
	if len(a.h.order) != 0 || a.h.log[len(a.h.log)-1] != "atomic 1 0x29" || !a.Idle() {
		t.Errorf("%q, %v", a.h.log, a.Err())
	}
}

// EXT-025: each CmpSwap of a burst meets what the one before left. EXT-001: both operations.
func TestAtomicChain(t *testing.T) {
	for _, l := range []iwarptest.Link{{}, {CutEvery: 7, WriteMax: 13}, {TakeLess: 3}, {Buffer: 61}} {
		a, b := newSides(l, func(a, b *Params) { a.ORD, b.IRD = 16, 16 }, initiatorExt)
		b.h.mem[0x10] = make([]byte, 64)
		for i := range uint64(8) {
			a.h.order = append(a.h.order, 2*i, 2*i+1)
			if err := a.PostAtomic(2*i, Atomic{Op: AtomicCompareSwap, STag: 0x10, Compare: 10 * i,
				CompareMask: ^uint64(0), Data: 10*i + 9, Mask: ^uint64(0)}); err != nil {
				t.Fatal(err)
			}
			if err := a.PostAtomic(2*i+1, Atomic{STag: 0x10, Data: 1}); err != nil {
				t.Fatal(err)
			}
		}
		run(a, b)
		log := slices.DeleteFunc(a.h.log, func(s string) bool { return strings.HasPrefix(s, "sent") })
		for i := range uint64(8) {
			want := fmt.Sprintf("atomic %d %#x,atomic %d %#x", 2*i, 10*i, 2*i+1, 10*i+9)
			if got := strings.Join(log[2*i:][:2], ","); got != want {
				t.Errorf("%+v: got %s, want %s", l, got, want)
			}
		}
		if got := word(b.h.mem[0x10]).get(); got != 80 || a.Err() != nil || b.Err() != nil {
			t.Errorf("%+v: %d, %v, %v", l, got, a.Err(), b.Err())
		}
	}
}

// EXT-032: an atomic starts behind the delivery of all that was sent before it, be it unfinished
// when its request comes; so does the delivery of its response.
func TestAtomicDelivery(t *testing.T) {
	a, b := newSides(iwarptest.Link{CutEvery: 10}, nil, initiatorExt)
	b.h.mem[0x10] = make([]byte, 4096)
	x := make([]byte, 4096)
	word(x[4088:]).set(1000)
	a.h.order = []uint64{2}
	a.PostWrite(1, 0x10, 0, &payload{b: x}, 4096)
	a.PostAtomic(2, Atomic{STag: 0x10, TO: 4088, Data: 1})
	run(a, b)
	if got := word(b.h.mem[0x10][4088:]).get(); got != 1001 ||
		a.h.log[len(a.h.log)-1] != "atomic 2 0x3e8" {
		t.Errorf("%d, %q", got, a.h.log)
	}

	r := newRawExt(responder, true, true)
	requests("aa")(r)
	r.h.log = nil
	r.h.posted = [][]byte{nil, nil}
	part, rest := writeSeg(OpWrite, false, 0x10, 0, 8), writeSeg(OpWrite, true, 0x10, 8, 8)
	for i, seg := range [][]byte{atomReq(1, 1, Atomic{STag: 0x10, TO: 16}), atomResp(1, 1, 9),
		immSeg(OpImmediateSE, 1, 3)} {
		for _, s := range [][]byte{part, seg} {
			r.Write(AppendFPDU(nil, s, true))
		}
		for _, s := range r.h.log {
			if !strings.HasPrefix(s, "write") && !strings.HasPrefix(s, "begin") {
				t.Errorf("before the end of the Write: %s", s)
			}
		}
		r.Write(AppendFPDU(nil, rest, true))
		want := []string{"atomic FetchAdd at stag=0x00000010 to=0x10 add=0x0 mask=0x0, was 0x0",
			"atomic 7 0x9", "immediate 0x3 in 0 octets  se=true"}[i]
		if got := r.h.log[len(r.h.log)-1]; got != want || r.Err() != nil {
			t.Errorf("got %s, %v, want %s", got, r.Err(), want)
		}
		r.h.log = nil
	}
	// A Terminate may come in between, in parts: A26. It does not reach what waits.
	for _, seg := range [][]byte{part, atomReq(2, 1, Atomic{STag: 0x10, TO: 24, Data: 7}),
		append(AppendUntagged(nil, false, OpTerminate, 0, 1, 4), make([]byte, 60)...), rest} {
		r.Write(AppendFPDU(nil, seg, true))
	}
	if got := r.h.log[len(r.h.log)-1]; got !=
		"atomic FetchAdd at stag=0x00000010 to=0x18 add=0x7 mask=0x0, was 0x0" {
		t.Errorf("%q, %v", r.h.log, r.Err())
	}
}

// A poster posts the next atomic from within the delivery of the one before.
type poster struct {
	host
	e    *Endpoint
	left int
	olds []uint64
}

func (p *poster) EndAtomic(token, old uint64) error {
	p.olds = append(p.olds, token, old)
	if p.left--; p.left < 0 {
		return nil
	}
	return p.e.PostAtomic(token+1, Atomic{STag: 0x10, Data: 5})
}
func (p *poster) Sent(uint64) {}

// EXT-029: with an ORD of 1 the next atomic can be posted once the one before is complete.
func TestPostFromEndAtomic(t *testing.T) {
	h := &poster{left: 3}
	h.e = NewEndpoint(Params{Initiator: true, CRC: true, ORD: 1}, h, initiatorExt)
	r := newRawExt(responder, true, true)
	if err := h.e.PostAtomic(1, Atomic{STag: 0x10, Data: 5}); err != nil {
		t.Fatal(err)
	}
	for h.e.Pending() {
		r.Write(drain(h.e))
		if err := h.e.PostAtomic(99, Atomic{}); !errors.Is(err, ErrReadLimit) {
			t.Errorf("before the response: %v", err)
		}
		h.e.Write(drain(r))
	}
	if fmt.Sprint(h.olds) != "[1 0 2 5 3 10 4 15]" || h.e.Err() != nil || r.Err() != nil ||
		!h.e.Idle() {
		t.Errorf("%v, %v, %v", h.olds, h.e.Err(), r.Err())
	}
}
