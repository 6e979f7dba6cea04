package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// A markerModel builds a stream with markers octet by octet, from RFC 5044, section 4.3, and
// without the engine's arithmetic.
type markerModel struct{ b []byte }

var modelTable = crc32.MakeTable(crc32.Castagnoli)

func (m *markerModel) add(ulpdu []byte, crc bool) {
	begin, length := len(m.b), -1
	put := func(o byte) {
		if len(m.b)%512 == 0 {
			ptr := 0
			if length >= 0 {
				ptr = len(m.b) - length
			}
			m.b = append(m.b, 0, 0, byte(ptr>>8), byte(ptr))
		}
		if length < 0 {
			length = len(m.b)
		}
		m.b = append(m.b, o)
	}
	put(byte(len(ulpdu) >> 8))
	put(byte(len(ulpdu)))
	for _, o := range ulpdu {
		put(o)
	}
	for n := len(ulpdu) + 2; n%4 != 0; n++ {
		put(0)
	}
	if len(m.b)%512 == 0 { // between pad and CRC: covered
		ptr := len(m.b) - length
		m.b = append(m.b, 0, 0, byte(ptr>>8), byte(ptr))
	}
	sum := [4]byte{}
	if crc {
		binary.LittleEndian.PutUint32(sum[:], crc32.Checksum(m.b[begin:], modelTable))
	}
	m.b = append(m.b, sum[:]...)
}

func modelStream(crc bool, ulpdus ...[]byte) []byte {
	m := &markerModel{}
	for _, u := range ulpdus {
		m.add(u, crc)
	}
	return m.b
}

// unmarkedModel takes every marker out of b and checks that its reserved half is 0 and that its
// pointer is a multiple of 4.
func unmarkedModel(t *testing.T, b []byte) (plain []byte) {
	t.Helper()
	for i := 0; i < len(b); i += 512 {
		if i+4 > len(b) || b[i] != 0 || b[i+1] != 0 || b[i+3]&3 != 0 { // MPA-015, 017
			t.Fatalf("no Marker at %d of %d: %x", i, len(b), b[i:min(i+4, len(b))])
		}
		plain = append(plain, b[i+4:min(i+512, len(b))]...)
	}
	return plain
}

// Worked examples, with figures 5 and 6 of RFC 5044: a first Send of zeroes, then the FPDU, octet
// for octet; sent, built by the codec and received. MPA-009, 015, 021..025, 034, 035, 036.
func TestMarkerExamples(t *testing.T) {
	hello := append(AppendUntagged(nil, true, OpSend, 0, 2, 0), "hello"...)
	for _, tt := range []struct {
		name  string
		first int // octets of the Send before; -1: none
		size  int // octets that its FPDU takes
		crc   string
		ulpdu []byte
		want  string
	}{
		{"4a", 464, 492, "a01ee4fd", hello, "0017414300000000000000000000000200000000 00000014 " +
			"68656c6c6f 000000 bb7aef23"},
		{"4b", 456, 484, "a9524b0d", hello, "0017414300000000000000000000000200000000 68656c6c6f " +
			"000000 0000001c 5a375eac"},
		{"4c", 484, 512, "a09bb55b", hello, "00000000 0017414300000000000000000000000200000000 " +
			"68656c6c6f 000000 d5299f20"},
		{"4d", -1, 0, "", append(AppendTagged(nil, true, OpWrite, 0x100, 0), make([]byte, 1000)...),
			"00000000 03f6c1400000010000000000" + "00000000" + strings.Repeat("00", 492) + "000001fc" +
				strings.Repeat("00", 508) + "000003fc 65aed96f"},
		{"RFC 5044, figure 5", -1, 0, "", append(AppendUntagged(nil, true, OpSend, 0, 1, 0),
			make([]byte, 24)...),
			"00000000 002a414300000000000000000000000100000000" + strings.Repeat("00", 24) + "52239983"},
		{"RFC 5044, figure 6", 464, 492, "a01ee4fd", append(AppendUntagged(nil, true, OpSend, 0, 2, 0),
			make([]byte, 24)...),
			"002a414300000000000000000000000200000000 00000014" + strings.Repeat("00", 24) + "84925898"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost()
			p := initiator
			p.MarkersOut = true
			e := NewEndpoint(p, h, Config{MULPDU: 1500})
			if tt.first >= 0 {
				e.PostSend(1, OpSend, 0, &payload{b: make([]byte, tt.first)}, uint32(tt.first))
				b := drain(e)
				// MPA-022
				if len(b) != tt.size || !bytes.Equal(b[len(b)-4:], unhex(tt.crc)) ||
					!bytes.Equal(b[:4], make([]byte, 4)) {
					t.Errorf("the first FPDU: %d octets, %x", len(b), b)
				}
			}
			body := tt.ulpdu[UntaggedHeaderLen:]
			if tt.ulpdu[1] == 0x40 {
				body = tt.ulpdu[TaggedHeaderLen:]
				e.PostWrite(2, 0x100, 0, &payload{b: body}, uint32(len(body)))
			} else {
				e.PostSend(2, OpSend, 0, &payload{b: body}, uint32(len(body)))
			}
			want := unhex(tt.want)
			got := drain(e)
			if !bytes.Equal(got, want) {
				t.Errorf("sent %x\nwant %x", got, want)
			}
			if got := AppendMarkedFPDU(nil, tt.ulpdu, true, uint32(tt.size)); !bytes.Equal(got, want) {
				t.Errorf("built %x\nwant  %x", got, want)
			}

			p = responder
			p.MarkersIn = true
			r := newMarked(p, nil)
			r.h.posted = [][]byte{make([]byte, 1500), make([]byte, 1500)}
			r.h.mem[0x100] = make([]byte, 1500)
			if tt.first >= 0 {
				r.Write(modelStream(true, append(AppendUntagged(nil, true, OpSend, 0, 1, 0),
					make([]byte, tt.first)...)))
			}
			for i, o := range want {
				if i == len(want)-1 && r.Stats().FPDUsIn == 2 {
					t.Error("taken without its last octet")
				}
				r.Write([]byte{o})
			}
			if r.Err() != nil || r.InMessage() || int(r.Stats().PayloadIn) != max(tt.first, 0)+len(body) ||
				int(r.Stats().OctetsIn) != tt.size+len(want) {
				t.Errorf("received: %v, in a message: %t, %+v", r.Err(), r.InMessage(), r.Stats())
			}
		})
	}
}

// newMarked is newRaw without its opening FPDU: segs come first instead, with markers.
func newMarked(p Params, segs [][]byte) *raw {
	r := &raw{h: newHost()}
	r.Endpoint = NewEndpoint(p, r.h, Config{EMSS: 1460})
	r.h.mem[0x10] = make([]byte, 64)
	r.Write(modelStream(p.CRC, segs...))
	return r
}

// AppendMarkedFPDU against the model at every offset an FPDU can have and all kinds of lengths.
// MPA-010, 011, 012, 015, 017, 021, 023, 024, 025, 026.
func TestMarkedFPDU(t *testing.T) {
	lengths := []int{1000, 1018, 1500, 65535}
	for n := range 80 {
		lengths = append(lengths, n)
	}
	for n := 490; n < 530; n++ {
		lengths = append(lengths, n)
	}
	for pos := 0; pos < 512; pos += 4 {
		if pos == 4 {
			continue // an FPDU at 0 is led by its Marker
		}
		for _, n := range lengths {
			if n > 2000 && pos%64 != 0 {
				continue
			}
			u := pattern(n, byte(pos))
			m := &markerModel{b: make([]byte, pos)}
			m.add(u, pos%8 == 0)
			if got := AppendMarkedFPDU(nil, u, pos%8 == 0, uint32(pos)); !bytes.Equal(got, m.b[pos:]) {
				t.Fatalf("%d octets at %d:\n%x\nwant\n%x", n, pos, got, m.b[pos:])
			}
			far := uint32(pos) - 512 // the last interval before 2^32: MPA-026
			if got := AppendMarkedFPDU([]byte{7}, u, pos%8 == 0, far); !bytes.Equal(got[1:], m.b[pos:]) ||
				got[0] != 7 {
				t.Fatalf("%d octets at %#x: %x", n, far, got)
			}
		}
	}
}

// MPA-002, 003, 040, 041.
func TestMULPDU(t *testing.T) {
	for _, tt := range []struct{ emss, off, on int }{
		{140, 134, 130}, {536, 530, 522}, {1440, 1434, 1422}, {1448, 1442, 1430}, {1460, 1454, 1442},
		{8948, 8942, 8870}, {8960, 8954, 8882}, {65483, 64768, 64768}, {65535, 64768, 64768},
		{1, 128, 128}, {64, 128, 128}, {88, 128, 128}, {134, 128, 128}, {135, 128, 128},
		{1450, 1442, 1430}, {512, 506, 502}, {513, 506, 498},
	} {
		if off, on := MULPDU(tt.emss), MULPDUMarkers(tt.emss); off != tt.off || on != tt.on {
			t.Errorf("EMSS %d: %d and %d, want %d and %d", tt.emss, off, on, tt.off, tt.on)
		}
		for _, mark := range []bool{false, true} {
			p := initiator
			p.MarkersOut = mark
			e := NewEndpoint(p, newHost(), Config{})
			e.SetEMSS(tt.emss)
			if want := map[bool]int{false: tt.off, true: tt.on}[mark]; e.MULPDU() != want {
				t.Errorf("EMSS %d, markers %t: %d", tt.emss, mark, e.MULPDU())
			}
			p.MarkersOut, p.MarkersIn = false, mark // what comes in has no part in it
			if e := NewEndpoint(p, newHost(), Config{EMSS: tt.emss}); e.MULPDU() != tt.off {
				t.Errorf("EMSS %d, markers in %t: %d", tt.emss, mark, e.MULPDU())
			}
		}
	}
}

// What an Endpoint sends with markers is what it sends without, by the model; and every full FPDU
// fits a segment. MPA-001, 004, 010, 019, 020, 021, 024.
func TestMarkersSent(t *testing.T) {
	for _, emss := range []int{140, 536, 1448, 1460, 8948, 65483} {
		post := func(e *Endpoint) {
			rng := rand.New(rand.NewPCG(1, uint64(emss)))
			for i := range uint64(40) {
				n := rng.IntN(300)
				if i%8 == 0 {
					n = rng.IntN(20_000)
				}
				p := &payload{b: pattern(n, byte(i))}
				switch i % 4 {
				case 0, 1:
					e.PostSend(i, OpSend, 0, p, uint32(n))
				case 2:
					e.PostWrite(i, 0x10, i, p, uint32(n))
				case 3:
					if e.CanPostRead() {
						e.PostRead(i, 0x99, 5, 8, 0x10, 0)
					}
				}
			}
		}
		p := initiator
		p.MarkersOut, p.RTR = true, RTRWrite
		e := NewEndpoint(p, newHost(), Config{EMSS: emss, BatchBytes: 3000})
		post(e)
		var out []byte
		for n := 0; e.Pending(); n++ {
			out = append(out, drain(e)...)
		}
		segs := fpdus2(t, unmarkedModel(t, out))
		if want := modelStream(true, segs...); !bytes.Equal(out, want) {
			t.Fatalf("EMSS %d: the stream differs from the model's", emss)
		}
		// The same segments as an Endpoint without markers whose MULPDU is the same.
		p.MarkersOut = false
		plain := NewEndpoint(p, newHost(), Config{MULPDU: MULPDUMarkers(emss)})
		post(plain)
		var octets []byte
		for plain.Pending() {
			octets = append(octets, drain(plain)...)
		}
		if want := fpdus(t, octets); len(want) != len(segs) || !slices.EqualFunc(want, segs,
			bytes.Equal) {
			t.Errorf("EMSS %d: the segments differ", emss)
		}
		at := 0
		for _, s := range segs {
			m := AppendMarkedFPDU(nil, s, true, uint32(at))
			if len(m) > emss && emss < 65000 {
				t.Errorf("EMSS %d: %d octets in an FPDU", emss, len(m))
			}
			at += len(m)
		}
		if at != len(out) || e.Stats().OctetsOut != uint64(len(out)) {
			t.Errorf("%d octets, %d counted, %d sent", at, e.Stats().OctetsOut, len(out))
		}
	}
}

// fpdus2 cuts a stream without its markers into segments; its CRCs are those with markers.
func fpdus2(t *testing.T, b []byte) (segs [][]byte) {
	t.Helper()
	for len(b) > 0 {
		n := int(b[0])<<8 | int(b[1])
		if len(b) < FPDULen(n) {
			t.Fatalf("FPDU of %d octets cut to %d", FPDULen(n), len(b))
		}
		segs, b = append(segs, b[2:2+n]), b[FPDULen(n):]
	}
	return segs
}

// What the transport takes of each batch, and how it reads, changes nothing with markers either.
func TestMarkersCommit(t *testing.T) {
	run := func(piece int, take func(read int) int) []byte {
		p := initiator
		p.MarkersOut = true
		e := NewEndpoint(p, newHost(), Config{EMSS: 700, BatchBytes: 3000})
		e.PostSend(1, OpSend, 0, &payload{b: pattern(4000, 0)}, 4000)
		e.PostWrite(2, 1, 0, &payload{b: pattern(1, 0)}, 1)
		e.PostSend(4, OpSend, 0, &payload{b: pattern(5000, 3)}, 5000)
		var out []byte
		for n := 0; e.Pending(); n++ {
			if n > 20_000 {
				t.Fatal("no end")
			}
			var batch []byte
			for want := e.Len(); len(batch) < want; {
				b := make([]byte, min(piece, want-len(batch)))
				if k, err := e.Read(b); k != len(b) || err != nil {
					t.Fatalf("Read: %d of %d, %v", k, len(b), err)
				}
				batch = append(batch, b...)
			}
			k := take(len(batch))
			out = append(out, batch[:k]...)
			e.Commit(k)
		}
		return out
	}
	want := run(1<<20, func(n int) int { return n })
	if !bytes.Equal(want, modelStream(true, fpdus2(t, unmarkedModel(t, want))...)) {
		t.Error("not the model's stream")
	}
	for _, piece := range []int{1, 3, 512, 701, 1 << 20} {
		for name, take := range map[string]func(int) int{
			"one": func(n int) int { return 1 }, "half": func(n int) int { return (n + 1) / 2 },
			"less 5": func(n int) int { return max(n-5, 1) },
		} {
			if name == "one" && piece < 512 {
				continue // a batch for each octet
			}
			if got := run(piece, take); !bytes.Equal(got, want) {
				t.Errorf("piece %d, %s: the stream differs", piece, name)
			}
		}
	}
}

// MPA-016, 018, 091, 092, 094, 095, 035: what of a Marker is looked at. Every Marker of an in-order
// stream is checked; a false one ends the stream with 2/0/3, behind a bad CRC with 2/0/2.
func TestMarkerChecks(t *testing.T) {
	long := writeSeg(OpWrite, true, 0x10, 0, 20)
	// Markers: 0 leads the first, 512 in the second, 1024 and 1536 in the fourth, 2048 in the fifth
	stream := func() []byte {
		return modelStream(true, sendSeg(OpSend, true, 1, 0, 460), long, writeSeg(OpWrite, true, 0x11, 0,
			460), writeSeg(OpWrite, true, 0x11, 0, 1000), long)
	}
	if s := stream(); s[512+3] != 24 {
		t.Fatalf("the Marker at 512 holds %x", s[512:516])
	}
	for _, tt := range []struct {
		name  string
		at    int
		to    string
		mend  bool
		want  TermCode
		good  int // FPDUs before
		clean bool
	}{
		{"as it is", 512, "00000018", true, TermCode{}, 5, true},
		{"reserved half", 512, "ffff0018", true, TermCode{}, 5, true},   // MPA-016
		{"low bits", 512, "0000001b", true, TermCode{}, 5, true},        // MPA-018
		{"leading, reserved", 0, "12340000", true, TermCode{}, 5, true}, // MPA-016
		{"off by 4", 512, "0000001c", true, TermMarker, 1, false},
		{"zero", 512, "00000000", true, TermMarker, 1, false},
		{"leading, not zero", 0, "00000004", true, TermMarker, 0, false},
		{"first of the long one's", 1024, "00000100", true, TermMarker, 3, false},
		{"second of the long one's", 1536, "00000300", true, TermMarker, 3, false},
		{"in the last", 2048, "00000300", true, TermMarker, 4, false},
		{"off by 4 with a bad CRC", 512, "0000001c", false, TermCRC, 1, false},
		{"reserved half with a bad CRC", 512, "ffff0018", false, TermCRC, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cut := range []int{1 << 20, 1, 3, 512, 513} {
				in := stream()
				copy(in[tt.at:], unhex(tt.to))
				if tt.mend {
					in = mendMarked(in)
				}
				p := responder
				p.MarkersIn = true
				r := newMarked(p, nil)
				r.h.posted = [][]byte{make([]byte, 460)}
				r.h.mem[0x11] = make([]byte, 1000)
				for b := in; len(b) > 0; b = b[min(cut, len(b)):] {
					if n, err := r.Write(b[:min(cut, len(b))]); n != min(cut, len(b)) || err != nil {
						t.Fatalf("took %d, %v", n, err)
					}
				}
				if got := int(r.Stats().FPDUsIn); got != tt.good {
					t.Errorf("cut %d: %d FPDUs taken", cut, got)
				}
				if tt.clean {
					if r.Err() != nil || r.InMessage() {
						t.Errorf("cut %d: %v", cut, r.Err())
					}
					continue
				}
				var le *LocalError
				if !errors.As(r.Err(), &le) || le.Cause != tt.want {
					t.Errorf("cut %d: %v, want %v", cut, r.Err(), tt.want)
				}
				if out := drain(r); tt.good > 0 && !bytes.Equal(out,
					AppendFPDU(nil, (&Terminate{Cause: tt.want}).Append(AppendUntagged(nil, true, OpTerminate, 0,
						1, 0)), true)) {
					t.Errorf("cut %d: sent %x", cut, out) // MPA-097
				} else if tt.good == 0 && len(out) > 0 { // M12
					t.Errorf("cut %d: sent %x before a valid FPDU", cut, out)
				}
			}
		})
	}
}

// mendMarked puts right CRCs into a stream with markers.
func mendMarked(b []byte) []byte {
	b = bytes.Clone(b)
	for at := 0; at < len(b); {
		lead := 0
		if at%512 == 0 {
			lead = 4
		}
		if at+lead+2 > len(b) {
			break
		}
		// One octet after another until the FPDU has all of its own.
		left, end := FPDULen(int(b[at+lead])<<8|int(b[at+lead+1])), at+lead
		for ; left > 0; left-- {
			if end%512 == 0 && end > at {
				end += 4
			}
			end++
		}
		if end > len(b) {
			break
		}
		binary.LittleEndian.PutUint32(b[end-4:], crc32.Checksum(b[at:end-4], modelTable))
		at = end
	}
	return b
}

// CRC off: the CRC field means nothing, with markers too; a false Marker still does. MPA-032, 033.
func TestMarkersWithoutCRC(t *testing.T) {
	p := responder
	p.MarkersIn, p.MarkersOut, p.CRC = true, true, false
	in := modelStream(false, writeSeg(OpWrite, true, 0x10, 0, 20), writeSeg(OpWrite, true, 0x11, 0,
		600), writeSeg(OpWrite, true, 0x10, 0, 20))
	copy(in[len(in)-4:], "junk")
	r := newMarked(p, nil)
	r.h.mem[0x11] = make([]byte, 600)
	r.Write(in)
	// MPA-029
	if r.Err() != nil || r.Stats().FPDUsIn != 3 || !bytes.Equal(r.h.mem[0x11], pattern(600, 0)) {
		t.Errorf("%v, %+v", r.Err(), r.Stats())
	}
	r.PostWrite(1, 1, 0, &payload{b: pattern(600, 0)}, 600)
	out := drain(r)
	if want := modelStream(false, writeSeg(OpWrite, true, 1, 0, 600)); !bytes.Equal(out, want) {
		t.Errorf("sent %x\nwant %x", out, want)
	}
	r = newMarked(p, nil)
	r.h.mem[0x11] = make([]byte, 600)
	in[515] ^= 8
	r.Write(in)
	var le *LocalError
	if !errors.As(r.Err(), &le) || le.Cause != TermMarker {
		t.Errorf("a false Marker: %v", r.Err())
	}
}

// MPA-014, M7: the longest FPDUs; a pointer of the last Markers does not fit and is taken
// modulo 2^16. Without markers for comparison.
func TestLongestFPDU(t *testing.T) {
	for _, n := range []int{64768, 65474, 65535} {
		for _, mark := range []bool{false, true} {
			p := responder
			p.MarkersIn = mark
			r := newMarked(p, nil)
			r.h.mem[0x11] = make([]byte, 65535)
			segs := [][]byte{writeSeg(OpWrite, true, 0x10, 0, 8), writeSeg(OpWrite, true, 0x11, 0,
				n-TaggedHeaderLen), writeSeg(OpWrite, true, 0x10, 0, 8)}
			in := modelStream(true, segs...)
			if !mark {
				in = AppendFPDU(AppendFPDU(AppendFPDU(nil, segs[0], true), segs[1], true), segs[2], true)
			}
			for b := in; len(b) > 0; b = b[min(10_000, len(b)):] {
				r.Write(b[:min(10_000, len(b))])
			}
			if r.Err() != nil || r.Stats().FPDUsIn != 3 || !bytes.Equal(r.h.mem[0x11][:n-TaggedHeaderLen],
				pattern(n-TaggedHeaderLen, 0)) {
				t.Errorf("ULPDU of %d, markers %t: %v", n, mark, r.Err())
			}
		}
	}
}

// M10: a Marker behind the last FPDU is neither sent before the next nor waited for. MPA-025.
func TestMarkerBehindLast(t *testing.T) {
	a, b := newSides(iwarptest.Link{Record: true}, func(a, b *Params) {
		a.MarkersOut, b.MarkersIn = true, true
	}, Config{})
	b.h.posted = [][]byte{make([]byte, 500), make([]byte, 500)}
	a.PostSend(1, OpSend, 0, &payload{b: make([]byte, 484)}, 484)
	run(a, b)
	if n, _ := a.s.Sent(); n != 512 || len(b.h.received) != 1 || b.InMessage() {
		t.Errorf("sent %d octets, received %d, in a message: %t", n, len(b.h.received), b.InMessage())
	}
	a.PostSend(2, OpSend, 0, nil, 0)
	run(a, b)
	if n, log := a.s.Sent(); n != 512+28 || !bytes.Equal(log[512:516], make([]byte, 4)) ||
		len(b.h.received) != 2 {
		t.Errorf("sent %d octets, received %d", n, len(b.h.received))
	}
	// The leading Marker alone: the FPDU has begun.
	p := responder
	p.MarkersIn = true
	r := newMarked(p, nil)
	for i := range 4 {
		r.Write([]byte{0})
		if !r.InMessage() {
			t.Errorf("not in a message with %d octets of a Marker", i+1)
		}
	}
}

// Data both ways, over all four choices of M. MPA-020, 028, 029, 038, 047.
func TestMarkersPerDirection(t *testing.T) {
	for _, l := range []iwarptest.Link{{Record: true}, {CutEvery: 1, Record: true},
		{CutEvery: 7, WriteMax: 13, Record: true}, {TakeLess: 3, WriteMax: 100, EMSS: 200,
			Record: true}} {
		for m := range 8 {
			ab, ba, crc := m&1 != 0, m&2 != 0, m&4 != 0
			a, b := newSides(l, func(a, b *Params) {
				a.MarkersOut, b.MarkersIn, b.MarkersOut, a.MarkersIn = ab, ab, ba, ba
				a.CRC, b.CRC = crc, crc
			}, Config{})
			data := pattern(5000, 1)
			b.h.mem[0x10] = make([]byte, 5000)
			b.h.posted = [][]byte{make([]byte, 5000)}
			a.h.sinks[3], a.h.order = make([]byte, 5000), []uint64{3}
			a.PostWrite(1, 0x10, 0, &payload{b: data}, 5000)
			a.PostSend(2, OpSend, 0, &payload{b: data}, 5000)
			a.PostRead(3, 0x99, 55, 5000, 0x10, 0)
			run(a, b)
			if a.Err() != nil || b.Err() != nil || !bytes.Equal(b.h.mem[0x10], data) ||
				!bytes.Equal(a.h.sinks[3], data) || len(b.h.received) != 1 || !a.Idle() || !b.Idle() {
				t.Fatalf("%+v, markers %t %t: %v, %v", l, ab, ba, a.Err(), b.Err())
			}
			for i, s := range []*side{a, b} {
				_, log := s.s.Sent()
				marked := []bool{ab, ba}[i]
				var segs [][]byte
				if marked {
					segs = fpdus2(t, unmarkedModel(t, log))
					if !bytes.Equal(log, modelStream(crc, segs...)) {
						t.Errorf("%+v: side %d: not the model's stream", l, i)
					}
				} else {
					var want []byte
					segs = fpdus2(t, log)
					for _, s := range segs {
						want = AppendFPDU(want, s, crc)
					}
					if !bytes.Equal(log, want) {
						t.Errorf("%+v: side %d: markers that nobody asked for", l, i)
					}
				}
				if s.Stats().OctetsOut != uint64(len(log)) || []*side{b, a}[i].Stats().OctetsIn != uint64(
					len(log)) {
					t.Errorf("octets: %d sent, %d counted, %d taken", len(log), s.Stats().OctetsOut,
						[]*side{b, a}[i].Stats().OctetsIn)
				}
			}
		}
	}
}

// A Send without a buffer holds a stream with markers as one without: A29.
func TestMarkersStall(t *testing.T) {
	var segs [][]byte
	for i := range 40 {
		segs = append(segs, sendSeg(OpSend, true, MSN(i+1), 0, 5+i))
	}
	in := modelStream(true, segs...)
	for _, cut := range []int{1 << 20, 1, 5, 33} {
		p := responder
		p.MarkersIn = true
		r := newMarked(p, nil)
		stalls := 0
		for b := in; len(b) > 0 || r.Stalled(); {
			n, err := r.Write(b[:min(cut, len(b))])
			b = b[n:]
			if err == nil && !r.Stalled() {
				continue
			}
			if err != nil && !errors.Is(err, ErrNoReceive) {
				t.Fatal(err)
			}
			if n, err := r.Write(b); n > 0 || err == nil && len(b) > 0 {
				t.Fatalf("took %d more, %v", n, err)
			}
			r.h.posted = append(r.h.posted, make([]byte, 64))
			if err := r.Resume(); err != nil {
				t.Fatal(err)
			}
			if stalls++; stalls > 40 {
				t.Fatal("no end")
			}
		}
		if len(r.h.received) != 40 || r.Err() != nil || r.Stats().OctetsIn != uint64(len(in)) {
			t.Errorf("cut %d: %d received, %v", cut, len(r.h.received), r.Err())
		}
	}
}

func TestDescribeMarkedStream(t *testing.T) {
	b := unhex(reqKey + "40 01 0005 68656c6c6f")
	s := modelStream(true, sendSeg(OpSend, true, 1, 0, 484), sendSeg(OpSend, true, 2, 0, 600))
	b = append(b, s...)
	got := strings.Join(DescribeMarkedStream(append(b, 0, 9, 1), true, 0), "\n")
	want := `MPA Request rev=1 markers=off crc=on pd="hello"
FPDU 512 octets: Send qn=0 msn=1 mo=0 last len=484
FPDU 632 octets: Send qn=0 msn=2 mo=0 last len=600
3 octets of a cut FPDU`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b[len(b)-1] ^= 1
	if got := DescribeMarkedStream(b, true, 0); len(got) != 3 || !strings.HasSuffix(got[2],
		"BAD CRC") {
		t.Errorf("%q", got)
	}
	for n := 25; n < len(b); n++ {
		if got := DescribeMarkedStream(b[:n], true, 0); n > 25 && n != 25+512 && !strings.HasSuffix(
			got[len(got)-1], "of a cut FPDU") {
			t.Fatalf("%d octets: %q", n, got)
		}
	}
}
