package mem

import (
	"errors"
	"math"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// even wants the values of each octet of n numbers to be equally frequent, by chi-square with 255
// degrees of freedom: mean 255, deviation 22.6. Seven deviations are a failure once in 10^12 runs.
func even(t *testing.T, buckets [][256]int, n float64) {
	t.Helper()
	for i, b := range buckets {
		var chi float64
		for _, k := range b {
			d := float64(k) - n/256
			chi += d * d / (n / 256)
		}
		if math.Abs(chi-255) > 7*22.6 {
			t.Errorf("octet %d: chi-square %.0f", i, chi)
		}
	}
}

// SEC-008: STags are spread over the range and not predictable from each other; SEC-009: none
// comes back for as long as can be.
func TestSTags(t *testing.T) {
	s, err := newSTagSource()
	if err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	seen := make(map[uint32]bool, n)
	var buckets [4][256]int // of each octet
	steps := make(map[uint32]int)
	var last uint32
	for range n {
		v := s.next()
		if v == 0 || seen[v] {
			t.Fatalf("STag %#x came twice, or is 0", v)
		}
		seen[v] = true
		for i := range buckets {
			buckets[i][byte(v>>(8*i))]++
		}
		steps[v-last]++
		last = v
	}
	even(t, buckets[:], n)
	for d, k := range steps {
		if k > 3 {
			t.Errorf("the step %#x came %d times: a progression", d, k)
		}
	}
	other, err := newSTagSource()
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for range 1000 {
		if seen[other.next()] {
			same++
		}
	}
	if same > 20 { // 0.02 expected
		t.Errorf("two devices gave %d STags of 1000 in common", same)
	}
}

// The source is a permutation: no two counts give one STag. A Feistel network is one for any
// round function; this checks the network.
func TestSTagPermutation(t *testing.T) {
	s, err := newSTagSource()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint32]uint32)
	for _, base := range []uint32{0, 1 << 16, math.MaxUint32 - 50_000} {
		for i := range uint32(50_000) {
			v := s.permute(base + i)
			if at, ok := seen[v]; ok {
				t.Fatalf("%#x and %#x both give %#x", at, base+i, v)
			}
			seen[v] = base + i
		}
	}
}

// The prefixes of windows and fast regions are spread and unpredictable as well, do not come twice,
// and have no STag of a registration among them. SEC-008, SEC-009.
func TestSTagPrefixes(t *testing.T) {
	s, err := newSTagSource()
	if err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	seen := make(map[uint32]bool, n)
	var buckets [4][256]int // of each octet; the lowest is the key at allocation
	steps := make(map[uint32]int)
	var last uint32
	for range n {
		v := s.nextPrefix()
		if v>>8 == 0 || seen[v>>8] {
			t.Fatalf("the prefix of %#x came twice, or is 0", v)
		}
		seen[v>>8] = true
		for i := range buckets {
			buckets[i][byte(v>>(8*i))]++
		}
		steps[v>>8-last]++
		last = v >> 8
	}
	even(t, buckets[:], n)
	for d, k := range steps {
		if k > 6 { // of 2^24
			t.Errorf("the step %#x came %d times: a progression", d, k)
		}
	}
	for range n {
		if v := s.next(); seen[v>>8] {
			t.Fatalf("%#x is given to a registration and belongs to a window", v)
		}
	}
	perm := make(map[uint32]bool)
	for i := range uint32(100_000) {
		v := s.permutePrefix(1<<24 - 1 - i)
		if v >= 1<<24 || perm[v] {
			t.Fatalf("%#x comes twice or is too long", v)
		}
		perm[v] = true
	}
}

// A device has far fewer windows than prefixes; over that it refuses, and what is given back can be
// taken again.
func TestPrefixLimit(t *testing.T) {
	s, err := newSTagSource()
	if err != nil {
		t.Fatal(err)
	}
	d := &Keys{source: s, prefixes: make(map[uint32]struct{})}
	key, err := d.takePrefix(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.takePrefix(1); !errors.Is(err, rdma.ErrLimit) {
		t.Errorf("one more: %v", err)
	}
	d.dropPrefix(key)
	if _, err := d.takePrefix(1); err != nil {
		t.Errorf("one less: %v", err)
	}
}

// A million registrations are to cost little: this is the STag's part of each.
func BenchmarkSTag(b *testing.B) {
	s, err := newSTagSource()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("region", func(b *testing.B) {
		for b.Loop() {
			s.next()
		}
	})
	b.Run("window", func(b *testing.B) {
		for b.Loop() {
			s.nextPrefix()
		}
	})
}
