package session

import "testing"

// All associations of a peer together keep a few times what one does, however many there are.
func TestHoldOfAssociations(t *testing.T) {
	if n := holdOf(0); n != 16<<20 {
		t.Errorf("one that we have set up keeps %d octets", n)
	}
	sum, last := 0, 16<<20
	for nth := 1; nth <= 256; nth++ {
		n := holdOf(nth)
		if n > last || n < stallCredit {
			t.Errorf("association %d keeps %d octets, the one before %d", nth, n, last)
		}
		sum, last = sum+n, n
	}
	if sum > 20*(16<<20) {
		t.Errorf("256 associations keep %d octets", sum)
	}
}
