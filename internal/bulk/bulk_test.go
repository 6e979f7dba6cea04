package bulk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"
)

// Whatever the lengths and the places, all of src is in dst and nothing beside it.
func TestCopy(t *testing.T) {
	const room = 5*block + 256
	rng := rand.New(rand.NewPCG(1, 2))
	src, was := make([]byte, room), make([]byte, room)
	for i := range src {
		src[i], was[i] = byte(rng.Uint32()), byte(rng.Uint32())
	}
	for _, n := range []int{0, 1, 63, 64, block - 1, block, block + 1, block + 63, block + 64,
		2*block - 1, 3*block + 100, 4*block + 64} {
		for to := range line {
			from := (to * 7) % (2 * line)
			for _, more := range []bool{false, true} {
				got := bytes.Clone(was)
				Copy(got[to:to+n], src[from:from+n], more)
				if !bytes.Equal(got[to:to+n], src[from:from+n]) || !bytes.Equal(got[:to], was[:to]) ||
					!bytes.Equal(got[to+n:], was[to+n:]) {
					t.Fatalf("%d octets from %d to %d, more %v: wrong", n, from, to, more)
				}
			}
		}
	}
}

// Slices that overlap are copied as copy does it, in both directions and by any distance.
func TestCopyOverlap(t *testing.T) {
	const n = 3 * block
	for _, by := range []int{0, 1, 64, 4096, block, n - 1, n} {
		for _, up := range []bool{false, true} {
			got, want := make([]byte, 2*n), make([]byte, 2*n)
			for i := range got {
				got[i] = byte(i * i >> 8)
			}
			copy(want, got)
			from, to := 0, by
			if !up {
				from, to = by, 0
			}
			copy(want[to:to+n], want[from:from+n])
			Copy(got[to:to+n], got[from:from+n], true)
			if !bytes.Equal(got, want) {
				t.Errorf("by %d, up %v: wrong", by, up)
			}
		}
	}
}

// A source that is shorter is a mistake, and nothing beyond it is read.
func TestCopyShort(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("copied")
		}
	}()
	Copy(make([]byte, 2*block), make([]byte, block)[:block:block], false)
}

// fault has Copy run into memory that is not there, and returns the address.
func fault(t *testing.T, dst, src []byte) (addr uintptr) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		f, ok := recover().(interface{ Addr() uintptr })
		if !ok {
			t.Fatal("no fault")
		}
		addr = f.Addr()
	}()
	Copy(dst, src, true)
	return 0
}

func BenchmarkCopy(b *testing.B) {
	const n, slots = 1 << 20, 16
	dst, src := make([]byte, slots*n), make([]byte, slots*n)
	for i := 0; i < len(src); i += 4096 { // pages of its own for each
		src[i], dst[i] = 1, 1
	}
	for _, way := range []struct {
		name string
		copy func(dst, src []byte)
	}{
		{"bulk", func(dst, src []byte) { Copy(dst, src, true) }},
		{"runtime", func(dst, src []byte) { copy(dst, src) }},
	} {
		for _, chunk := range []int{128 << 10, n} {
			b.Run(fmt.Sprintf("%s/%dK", way.name, chunk>>10), func(b *testing.B) {
				b.SetBytes(n)
				for i := 0; b.Loop(); i = (i + n) % len(dst) {
					for at := i; at < i+n; at += chunk {
						way.copy(dst[at:at+chunk], src[at:at+chunk])
					}
				}
			})
		}
	}
}
