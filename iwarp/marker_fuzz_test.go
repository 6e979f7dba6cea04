package iwarp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// Any segments, of any length, cut anywhere: the same calls with markers as without; and what two
// ends say to each other is the model's stream. A damaged Marker ends it the same wherever it is
// cut.
func FuzzMarkers(f *testing.F) {
	f.Add([]byte("\x00\x10\x00\x20\x01\xe4"), uint16(3), uint8(1), uint16(0))
	f.Add([]byte("\x01\xd0\x00\x05\x03\xe8"), uint16(512), uint8(0), uint16(0))
	f.Add([]byte("\x01\xd0\x00\x05\x03\xe8\x00\x00"), uint16(515), uint8(3), uint16(515))
	f.Add([]byte("\x00\x00\x00\x01\x00\x02\x00\x03"), uint16(9), uint8(1), uint16(3))
	f.Add([]byte("\xff\xff\x10\x00"), uint16(650), uint8(1), uint16(0))
	f.Fuzz(func(t *testing.T, sizes []byte, cut uint16, kind uint8, damage uint16) {
		crc := kind&1 != 0
		var segs [][]byte
		var plain []byte
		total := 0
		for i := 0; i+1 < len(sizes) && total < 12_000; i += 2 {
			n := int(sizes[i])<<8 | int(sizes[i+1])
			junk := n > 60_000
			n = min(n, 6000)
			var s []byte
			switch {
			case n <= 64 && i%4 == 0:
				s = sendSeg(OpSend, true, MSN(len(segs)+1), 0, n)
			case junk:
				s = pattern(n%40, byte(i)) // not a segment at all
			default:
				s = writeSeg(OpWrite, true, 0x10, 0, n)
			}
			segs = append(segs, s)
			plain = AppendFPDU(plain, s, crc)
			total += n
		}
		marked := modelStream(crc, segs...)
		at, built := 0, []byte{}
		for _, s := range segs {
			built = AppendMarkedFPDU(built, s, crc, uint32(at))
			at = len(built)
		}
		if !bytes.Equal(built, marked) {
			t.Fatal("AppendMarkedFPDU and the model differ")
		}
		feed := func(mark bool, b []byte, cuts ...int) string {
			h := &strict{bufs: 1 << 20}
			p := Params{Revision: 2, CRC: crc, IRD: 2, ORD: 2, MarkersIn: mark}
			e := NewEndpoint(p, h, Config{EMSS: 256})
			h.e = e
			last := 0
			for _, c := range append(cuts, len(b)) {
				c = max(min(c, len(b)), last)
				if n, err := e.Write(b[last:c]); n != c-last || err != nil {
					t.Fatalf("took %d of %d, %v", n, c-last, err)
				}
				last = c
			}
			return fmt.Sprintf("%q %v %x %d", h.log, e.Err(), drain(e), e.Stats().FPDUsIn)
		}
		want := feed(false, plain)
		i := int(cut)
		for _, cuts := range [][]int{nil, {i}, {i, i + 1, i + 2, i + 3, i + 4, i + 5}} {
			if got := feed(true, marked, cuts...); got != want {
				t.Fatalf("cut at %v:\n%s\nwithout markers:\n%s", cuts, got, want)
			}
		}
		if d := int(damage); d > 0 && d < len(marked) && len(marked) < 5000 {
			bad := bytes.Clone(marked)
			bad[d] ^= 1 << (kind >> 5)
			if kind&2 != 0 && crc {
				bad = mendMarked(bad)
			}
			whole := feed(true, bad)
			var each []int
			for i := range bad {
				each = append(each, i)
			}
			if split := feed(true, bad, each...); split != whole {
				t.Fatalf("damaged at %d, octet by octet:\n%s\nin one piece:\n%s", d, split, whole)
			}
		}
	})
}

// Two ends with markers, random messages, random pieces: all of it arrives, and the stream is the
// model's.
func TestMarkersRandom(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := iwarptest.Link{EMSS: 140 + rng.IntN(3000), Record: true, CutEvery: rng.IntN(900),
			WriteMax: rng.IntN(2000), Buffer: 1000 + rng.IntN(5000), TakeLess: rng.IntN(3)}
		a, b := newSides(l, func(a, b *Params) { a.MarkersOut, b.MarkersIn = true, true },
			Config{SendQueue: 1000})
		var want [][]byte
		for i := range 200 {
			m := pattern(rng.IntN(700), byte(i))
			want = append(want, m)
			b.h.posted = append(b.h.posted, make([]byte, 700))
			if err := a.PostSend(uint64(i), OpSend, 0, &payload{b: m}, uint32(len(m))); err != nil {
				t.Fatal(err)
			}
		}
		posted := slices.Clone(b.h.posted)
		run(a, b)
		if len(b.h.received) != len(want) || a.Err() != nil || b.Err() != nil {
			t.Fatalf("%+v: %d received, %v, %v", l, len(b.h.received), a.Err(), b.Err())
		}
		for i, m := range want {
			if !bytes.Equal(posted[i][:b.h.received[i].Length], m) {
				t.Fatalf("%+v: message %d differs", l, i)
			}
		}
		_, log := a.s.Sent()
		if !bytes.Equal(log, modelStream(true, fpdus2(t, unmarkedModel(t, log))...)) {
			t.Fatalf("%+v: not the model's stream", l)
		}
	}
}
