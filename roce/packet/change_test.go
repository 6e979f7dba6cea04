package packet_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/vrnic/vrnic/roce/packet"
)

// ROCE-009: the ICRC of a packet follows a change of its identification and its source port, and
// tells an identification that is not known, with DF and without; that of a damaged packet tells
// nothing, but for as many as chance has.
func TestChange(t *testing.T) {
	for name, ip := range examples(t) {
		head := 20
		if ip[0]>>4 == 6 {
			head = 40
		}
		for _, more := range []int{0, 4, 1024, 8192} {
			body := slices.Concat(ip[:len(ip)-ICRCLen], make([]byte, more))
			s := ShiftFor(len(body), head)
			if !s.Is(len(body), head) || s.Is(len(body)+4, head) || (&Shift{}).Is(0, 0) {
				t.Error("a Shift does not know what it is for")
			}
			r := rand.New(rand.NewPCG(1, uint64(more)))
			for range 100 {
				c, _ := Of(body)
				id, port := uint16(r.Uint32()), uint16(r.Uint32())
				changed := slices.Clone(body)
				xor(changed[head:], port)
				if ip[0]>>4 == 4 {
					xor(changed[4:], id)
				} else {
					id = 0
				}
				want, _ := Of(changed)
				if got := s.Change(c, id, port); got != want {
					t.Fatalf("%s, %d octets: %08x, want %08x", name, len(body), got, want)
				}
				if ip[0]>>4 != 4 {
					continue
				}
				unknown := slices.Clone(changed)
				unknown[4], unknown[5], unknown[6] = 0, 0, 0x40
				have, _ := Of(unknown)
				for _, df := range []bool{true, false} {
					if changed[6] = 0; df {
						changed[6] = 0x40
					}
					want, _ := Of(changed)
					if got, isDF, ok := s.Identification(have, want); !ok || isDF != df ||
						got != binary.BigEndian.Uint16(changed[4:]) {
						t.Fatalf("%s, %d octets: identification %04x, DF %v, %v", name, len(body), got, isDF, ok)
					}
				}
			}
			if ip[0]>>4 != 4 {
				continue
			}
			found := 0
			for range 1 << 16 {
				if _, _, ok := s.Identification(ICRC(r.Uint32()), ICRC(r.Uint32())); ok {
					found++
				}
			}
			if found > 12 { // 2 are the mean
				t.Errorf("%s: %d of 65536 damaged packets have an identification", name, found)
			}
		}
	}
}

// xor changes bits of two octets.
func xor(b []byte, v uint16) {
	b[0] ^= byte(v >> 8)
	b[1] ^= byte(v)
}

func BenchmarkShiftFor(b *testing.B) {
	b.ReportAllocs()
	for i := range b.N {
		_ = ShiftFor(1000+i%1000, 20)
	}
}

func BenchmarkIdentification(b *testing.B) {
	s := ShiftFor(1084, 20)
	b.ReportAllocs()
	for i := range b.N {
		s.Identification(ICRC(i), 0)
	}
}
