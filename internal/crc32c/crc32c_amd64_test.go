package crc32c

import "testing"

// What this processor has is tested by the other tests; those before it have the same sums.
func TestOlderProcessors(t *testing.T) {
	f, w := fast, wide
	defer func() { fast, wide = f, w }()
	for _, older := range []struct {
		name       string
		fast, wide bool
	}{{"no VPCLMULQDQ", f, false}, {"nothing", false, false}} {
		fast, wide = older.fast, older.wide
		t.Run(older.name, func(t *testing.T) {
			TestSameAsHash(t)
			TestKnown(t)
		})
	}
}
