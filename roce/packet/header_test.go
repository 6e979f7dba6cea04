package packet_test

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

func hexLen(n int) string { return strconv.Itoa(n) }

// ROCE-018: the opcodes that there are, by the table of the specification, with the octets of their
// headers; all others are refused.
func TestOpcodes(t *testing.T) {
	rc := map[Opcode]int{0x00: 12, 0x01: 12, 0x02: 12, 0x03: 16, 0x04: 12, 0x05: 16, 0x06: 28,
		0x07: 12,
		0x08: 12, 0x09: 16, 0x0a: 28, 0x0b: 32, 0x0c: 28, 0x0d: 16, 0x0e: 12, 0x0f: 16, 0x10: 16,
		0x11: 16,
		0x12: 24, 0x13: 40, 0x14: 40, 0x16: 16, 0x17: 16}
	want := map[Opcode]int{0x64: 20, 0x65: 24, CNP: 12}
	for op, n := range rc {
		want[op] = n
		if op <= WriteOnlyImm {
			want[op.Of(UC)] = n
		}
	}
	b := make([]byte, MaxHeaderLen+ICRCLen)
	for i := range 256 {
		op := Opcode(i)
		n, known := want[op]
		if op.Known() != known || op.HeaderLen() != n {
			t.Errorf("%v: known %t, %d octets; want %t, %d", op, op.Known(), op.HeaderLen(), known, n)
		}
		b[0] = byte(op)
		var h Header
		if _, err := h.Parse(b[:max(n, BTHLen)+ICRCLen]); known != (err == nil) ||
			!known && !errors.Is(err,
				ErrOpcode) {
			t.Errorf("%v: %v", op, err)
		}
		if known && op != CNP && (op.Operation().Of(op.Transport()) != op || !rcHas(rc, op)) {
			t.Errorf("%v is operation %v of %v", op, op.Operation(), op.Transport())
		}
	}
}

func rcHas(rc map[Opcode]int, op Opcode) bool { _, ok := rc[op.Operation()]; return ok }

// A packet cut anywhere is refused before what is missing is read.
func TestParseCut(t *testing.T) {
	for i := range 256 {
		if op := Opcode(i); op.Known() {
			b := make([]byte, op.HeaderLen()+ICRCLen)
			b[0] = byte(op)
			for n := range b {
				var h Header
				if _, err := h.Parse(b[:n:n]); !errors.Is(err, ErrShort) {
					t.Errorf("%v of %d octets: %v", op, n, err)
				}
			}
		}
	}
}

// ROCE-017, ROCE-022, ROCE-026, ROCE-027: what of the BTH leads to a refusal, and what does not.
func TestParseBTH(t *testing.T) {
	ip := examples(t)["IPv4"]
	for _, c := range []struct {
		name string
		do   func(b []byte) []byte
		err  error
		data int
	}{
		{"as it is", func(b []byte) []byte { return b }, nil, 64},
		{"version 1", func(b []byte) []byte { b[1] = 1; return b }, ErrVersion, 0},
		{"version 15", func(b []byte) []byte { b[1] = 15; return b }, ErrVersion, 0},
		{"SE and M", func(b []byte) []byte { b[1] = 0xc0; return b }, nil, 64},
		{"reserved bits", func(b []byte) []byte { b[4], b[8] = 0xff, 0xff; return b }, nil, 64},
		{"padding", func(b []byte) []byte { b[1] = 0x30; b[75] = 0xff; return b }, nil, 61},
		{"padding of nothing", func(b []byte) []byte { b[1] = 0x30; return b[:BTHLen+ICRCLen+2] },
			ErrPad, 0},
		{"an ACK with a payload", func(b []byte) []byte { b[0] = 0x11; return b }, ErrPayload, 0},
		{"a Read Request with a payload", func(b []byte) []byte { b[0] = 0x0c; return b }, ErrPayload, 0},
	} {
		var h Header
		data, err := h.Parse(c.do(bytes.Clone(rocetest.Datagram(ip))))
		if !errors.Is(err, c.err) || len(data) != c.data {
			t.Errorf("%s: %d octets, %v; want %d, %v", c.name, len(data), err, c.data, c.err)
		}
	}
}

// ROCE-030: PSNs go round, and half the circle is behind.
func TestPSN(t *testing.T) {
	for _, c := range []struct {
		p, q PSN
		d    int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {2, 0xfffffe, 4},
		{1<<23 - 1, 0, 1<<23 - 1}, {1 << 23, 0, -1 << 23}, {0, 1 << 23, -1 << 23},
		{5, 1<<23 + 6, 1<<23 - 1},
	} {
		if got := c.p.Sub(c.q); got != c.d {
			t.Errorf("%#x - %#x = %d, want %d", c.p, c.q, got, c.d)
		}
		if got := c.q.Add(uint32(c.d)); got != c.p {
			t.Errorf("%#x + %d = %#x, want %#x", c.q, c.d, got, c.p)
		}
	}
}

// The syndromes by kind, and the tables of credits and times: tables of chapter 9.
func TestSyndrome(t *testing.T) {
	for i := range 256 {
		s := Syndrome(i)
		n, limited := s.Credits()
		switch {
		case i < 0x20:
			if !s.IsACK() || s.IsNAK() || s.IsRNR() || limited != (i != 0x1f) {
				t.Errorf("%v", s)
			}
			if limited && CreditsFor(n) != s || limited && CreditsFor(n+1) == s && n != 0 && i < 4 {
				t.Errorf("%d credits are code %d, want %d", n, CreditsFor(n), s)
			}
		case i < 0x40:
			if !s.IsRNR() || s.IsACK() || s.IsNAK() || limited || RNR(uint8(i)) != s {
				t.Errorf("%v", s)
			}
		default:
			if s.IsNAK() != (i >= 0x60 && i < 0x80) || s.IsACK() || s.IsRNR() || limited {
				t.Errorf("%v", s)
			}
		}
	}
	for n, want := range map[uint32]Syndrome{0: 0, 3: 3, 5: 4, 6: 5, 100: 13, 32767: 29, 32768: 30,
		1 << 31: 30} {
		if got := CreditsFor(n); got != want {
			t.Errorf("%d receives are credit code %d, want %d", n, got, want)
		}
	}
	for code, want := range map[uint8]time.Duration{0: 655360 * time.Microsecond,
		1:  10 * time.Microsecond,
		12: 640 * time.Microsecond, 31: 491520 * time.Microsecond} {
		if got := RNR(code).RNRTimer(); got != want {
			t.Errorf("RNR timer %d is %v, want %v", code, got, want)
		}
	}
	for code, want := range map[uint8]time.Duration{0: 0, 1: 8192, 14: 67108864, 19: 2147483648,
		31: 8796093022208} {
		if got := ACKTimeout(code); got != want {
			t.Errorf("ACK timeout %d is %v, want %v", code, got, want)
		}
	}
}

// Reading and making headers allocates nothing.
func TestAllocs(t *testing.T) {
	ip := examples(t)["IPv4"]
	var h Header
	buf := make([]byte, 0, MaxHeaderLen)
	if n := testing.AllocsPerRun(100, func() {
		if !Check(ip) {
			t.Error("a good packet is not")
		}
		if _, err := h.Parse(rocetest.Datagram(ip)); err != nil {
			t.Error(err)
		}
		buf = h.Append(buf[:0])
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// Whatever Parse takes Append makes again, but for reserved bits, and a packet that Append makes is
// taken. Parse keeps within what it is given.
func FuzzHeader(f *testing.F) {
	for _, ip := range examples(f) {
		f.Add(rocetest.Datagram(ip))
	}
	for i := range 256 {
		if op := Opcode(i); op.Known() {
			b := make([]byte, op.HeaderLen()+ICRCLen)
			b[0] = byte(op)
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		payload, err := h.Parse(b)
		if err != nil {
			return
		}
		if got := h.Opcode.HeaderLen() + len(payload) + int(h.Pad) + ICRCLen; got != len(b) {
			t.Fatalf("%v: %d octets in all, of %d", &h, got, len(b))
		}
		head := h.Append(nil)
		want := bytes.Clone(b[:h.Opcode.HeaderLen()])
		want[4] &= 0xc0
		want[8] &= 0x80
		if h.Opcode.Transport() == UD {
			want[BTHLen+4] = 0
		}
		if !bytes.Equal(head, want) {
			t.Fatalf("%v is made as % x, was % x", &h, head, want)
		}
		var again Header
		if _, err := again.Parse(append(head, b[len(head):]...)); err != nil || again != h {
			t.Fatalf("%v, %v; want %v", &again, err, &h)
		}
	})
}

// No packet, however it is cut or made, crashes Check, and one that it takes has lost it with any
// octet of the sum changed.
func FuzzCheck(f *testing.F) {
	for _, ip := range examples(f) {
		f.Add(ip)
	}
	f.Fuzz(func(t *testing.T, ip []byte) {
		if Check(ip) {
			ip[len(ip)-1] ^= 1
			if Check(ip) {
				t.Fatal("two sums are right")
			}
		}
	})
}
