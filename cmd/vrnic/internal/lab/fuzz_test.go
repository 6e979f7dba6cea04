package lab

import "testing"

// FuzzParseOrder: an order that is taken says what it has, and is the same read again.
func FuzzParseOrder(f *testing.F) {
	f.Add("both 7 vrnic0/18\ndelay 5ms\nat 1s loss 1%")
	f.Add("out 18446744073709551615 a b\nloss 1%")
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOrder(s)
		if err != nil {
			return
		}
		again, err := ParseOrder(o.String())
		if err != nil || *again != *o {
			t.Fatalf("%q: %+v, and then %+v, %v", s, o, again, err)
		}
	})
}
