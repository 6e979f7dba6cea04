package iwarp

import "testing"

// A ring that grows keeps what is in it, where its counts are about to wrap, too; one with room
// stays as it is.
func TestWiden(t *testing.T) {
	first := ^uint32(0) - 5
	end := first
	var ring []uint32
	check := func() {
		t.Helper()
		for i := first; i != end; i++ {
			if got := ring[i&uint32(len(ring)-1)]; got != i {
				t.Fatalf("entry %#x of %#x to %#x is %#x, in a ring of %d", i, first, end, got, len(ring))
			}
		}
	}
	for n := range 5 * leastRing {
		was := len(ring)
		ring = widen(ring, first, end)
		if full := int(end-first) == was; full != (len(ring) > was) {
			t.Fatalf("a ring of %d with %d entries becomes one of %d", was, end-first, len(ring))
		}
		ring[end&uint32(len(ring)-1)] = end
		end++
		if n%3 == 0 {
			first++
		}
		check()
	}
	if len(ring) != 4*leastRing {
		t.Errorf("a ring of %d for at most %d entries", len(ring), end-first)
	}
}
