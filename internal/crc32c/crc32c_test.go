package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// longest is beyond what one step of three lanes takes.
const longest = 2*3*8*128 + 100

// The sum is hash/crc32's for every length that takes another way through the code, at every
// alignment.
func TestSameAsHash(t *testing.T) {
	rng := rand.NewChaCha8([32]byte{})
	b := make([]byte, longest+8)
	rng.Read(b) // never fails
	for n := range longest {
		p, c := b[n%8:][:n], uint32(rng.Uint64())
		if got, want := Update(c, p), crc32.Update(c, table, p); got != want {
			t.Fatalf("Update(%#x, %d octets) = %#x, want %#x", c, n, got, want)
		}
	}
}

// The check value of the Castagnoli polynomial, and the example with 32 zeros of RFC 3720 appendix
// B.4.
func TestKnown(t *testing.T) {
	for _, tt := range []struct {
		p    []byte
		want uint32
	}{
		{nil, 0},
		{[]byte("123456789"), 0xe3069283},
		{make([]byte, 32), 0x8a9136aa},
	} {
		if got := Update(0, tt.p); got != tt.want {
			t.Errorf("Update(0, %q) = %#x, want %#x", tt.p, got, tt.want)
		}
	}
}

// Any octets have hash/crc32's sum, in one piece and in two.
func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("123456789"), 4)
	f.Add(uint32(1), make([]byte, longest), 1448)
	f.Fuzz(func(t *testing.T, c uint32, p []byte, at int) {
		want := crc32.Update(c, table, p)
		if got := Update(c, p); got != want {
			t.Fatalf("Update = %#x, want %#x", got, want)
		}
		at = min(max(at, 0), len(p))
		if got := Update(Update(c, p[:at]), p[at:]); got != want {
			t.Fatalf("Update in two pieces = %#x, want %#x", got, want)
		}
	})
}

// The second of each pair is hash/crc32.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{16, 64, 256, 1448, 8960, 65536} {
		p := make([]byte, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Update(0, p)
			}
		})
		b.Run(fmt.Sprintf("%d/hash", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				crc32.Update(0, table, p)
			}
		})
	}
}
