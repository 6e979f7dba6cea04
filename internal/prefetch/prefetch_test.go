package prefetch

import (
	"fmt"
	"testing"
)

// Asking changes nothing, for any length and alignment.
func TestReadChangesNothing(t *testing.T) {
	b := make([]byte, 512)
	for i := range b {
		b[i] = byte(i)
	}
	for from := range 130 {
		for to := from; to <= from+130; to++ {
			Read(b[from:to])
		}
	}
	for i := range b {
		if b[i] != byte(i) {
			t.Fatalf("octet %d has become %d", i, b[i])
		}
	}
	Read(nil)
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{64, 1448, 4096} {
		p := make([]byte, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Read(p)
			}
		})
	}
}
