package ethswitch_test

import (
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// FuzzSegments: the segments of a super-frame have its octets, the right numbers and checksums.
func FuzzSegments(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), uint16(5), false, uint8(0), uint8(0x99))
	f.Add([]byte("0123456789abcdef"), uint16(1), true, uint8(3), uint8(0x18))
	f.Add(make([]byte, 40000), uint16(1448), false, uint8(3), uint8(0x10))
	sw := ethswitch.New(ethswitch.Config{})
	in := porttest.NewPort(f, sw, "in", true)
	plain := porttest.NewPort(f, sw, "plain", false)
	f.Fuzz(func(t *testing.T, payload []byte, mss uint16, v6 bool, options, flags uint8) {
		if len(payload) == 0 || len(payload) > 65000 || mss == 0 || len(payload)/int(mss) > 4000 {
			return
		}
		options %= 11
		n := len(payload) + int(options)*4
		b, o := frametest.Super(v6, n, 0)
		l4 := int(o.CsumStart)
		copy(b[l4+20+int(options)*4:], payload)
		b[l4+12] = (5 + options) << 4
		b[l4+13] = flags
		o.GSOSize = mss
		if err := in.Send(b, o); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		var segs [][]byte
		for len(plain.Frames) > 0 {
			segs = append(segs, (<-plain.Frames).Octets)
		}
		if want := (len(payload) + int(mss) - 1) / int(mss); len(segs) != want {
			t.Errorf("%d segments, want %d", len(segs), want)
		}
		frametest.CheckSegments(t, b, segs, l4)
	})
}
