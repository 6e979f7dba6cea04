package netstack_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// FuzzSegments: the segments of a super-frame have its octets, the right numbers and checksums.
func FuzzSegments(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), uint16(5), false, uint8(0), uint8(0x99))
	f.Add([]byte("0123456789abcdef"), uint16(1), true, uint8(3), uint8(0x18))
	f.Add(make([]byte, 40000), uint16(1448), false, uint8(3), uint8(0x10))
	sw := ethswitch.New(ethswitch.Config{})
	in := netstacktest.NewPort(f, sw, "in", true)
	plain := netstacktest.NewPort(f, sw, "plain", false)
	f.Fuzz(func(t *testing.T, payload []byte, mss uint16, v6 bool, options, flags uint8) {
		if len(payload) == 0 || len(payload) > 65000 || mss == 0 || len(payload)/int(mss) > 4000 {
			return
		}
		options %= 11
		n := len(payload) + int(options)*4
		b, o := superFrame(v6, n, 0)
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
		checkSegments(t, b, segs, l4)
	})
}

// TestHostileFrames puts spoilt frames into a switch with a stack on it; the stack must still work.
func TestHostileFrames(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s1, s2 := netstacktest.NewStack(t, sw, 1, 1500), netstacktest.NewStack(t, sw, 2, 1500)
	in := netstacktest.NewPort(t, sw, "in", true)
	a, b := netstacktest.Connect(t, s1, s2, false)
	defer b.Close()
	defer a.Close()
	m := s1.MAC()
	var seeds [][]byte
	for _, v6 := range []bool{false, true} {
		super, _ := superFrame(v6, 300, 100)
		seeds = append(seeds, super)
	}
	seeds = append(seeds, tooBig(s1, a, 1400), ethernet(m, mac(9), 1), append(append([]byte{}, broadcast[:]...),
		2, 0, 0, 0, 0, 9, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 77, 0, 9, 0, 0, 0, 0, 0, 0, 10, 77, 0, 1))
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		f := bytes.Clone(seeds[r.IntN(len(seeds))])
		if f[0]&1 == 0 {
			copy(f, m[:])
		}
		for range r.IntN(6) {
			f[12+r.IntN(min(len(f)-12, 80))] = byte(r.Uint32())
		}
		f = f[:len(f)-r.IntN(2)*r.IntN(len(f)-12)]
		o := frame.Offload{Csum: frame.CsumState(r.IntN(3)), CsumOffset: 16}
		if r.IntN(2) == 0 {
			o.GSO, o.GSOSize = frame.GSO(1+r.IntN(2)), uint16(r.IntN(200))
		}
		o.CsumStart = uint16(34 + 20*r.IntN(2))
		in.Send(f, o)
		for len(in.Frames) > 0 {
			<-in.Frames
		}
	}
	exchange(t, a, b, 1<<20)
}
