package handle

import "testing"

// A Scatter gives each number once, of 24 bits, and not the order of another one.
func TestScatter(t *testing.T) {
	a, err := NewScatter()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewScatter()
	if err != nil {
		t.Fatal(err)
	}
	const n = 1 << 16
	seen := make(map[uint32]bool, n)
	same := 0
	for range n {
		v := a.Next()
		if v > Max || seen[v] {
			t.Fatalf("%#x: too large, or a second time", v)
		}
		seen[v] = true
		if b.Next() == v {
			same++
		}
	}
	if same > 16 {
		t.Errorf("%d numbers of %d are those of another one", same, n)
	}
}
