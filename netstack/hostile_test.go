package netstack_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// TestHostileFrames puts spoilt frames into a switch with a stack on it; the stack must still work.
func TestHostileFrames(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s1, s2 := netstacktest.NewStack(t, sw, 1, 1500), netstacktest.NewStack(t, sw, 2, 1500)
	in := porttest.NewPort(t, sw, "in", true)
	a, b := netstacktest.Connect(t, s1, s2, false)
	defer b.Close()
	defer a.Close()
	m := s1.MAC()
	var seeds [][]byte
	for _, v6 := range []bool{false, true} {
		super, _ := frametest.Super(v6, 300, 100)
		seeds = append(seeds, super)
	}
	seeds = append(seeds, netstacktest.TooBig(s1, a, 1400), frametest.Ethernet(m, frametest.MAC(9), 1),
		append(append([]byte{}, frametest.Broadcast[:]...),
			2, 0, 0, 0, 0, 9, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 77, 0, 9, 0, 0, 0, 0,
			0, 0, 10, 77, 0, 1))
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
	netstacktest.Exchange(t, a, b, 1<<20)
}
