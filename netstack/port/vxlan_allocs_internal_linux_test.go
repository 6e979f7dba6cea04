//go:build !race

package port

import (
	"testing"

	"github.com/vrnic/vrnic/netstack/frame"
)

// No frame allocates on its way to one remote end, or to several.
func TestVXLANTransmitAllocs(t *testing.T) {
	a, b := newFar(t, "127.0.0.2", 0), newFar(t, "127.0.0.3", 0)
	for _, ends := range [][]*far{{a}, {a, b}} {
		v, _ := segment(t, ends...)
		if v.behind != nil {
			v.behind.learn(frame.MAC{4, 0, 0, 0, 0, 4}, 1)
		}
		for _, to := range []byte{4, everybody} {
			f := frame.New(ether(to, 1, "text"), frame.Offload{})
			send := func() { v.Transmit(f, nil) } // what the sockets have no room for is lost
			send()
			if n := testing.AllocsPerRun(100, send); n != 0 {
				t.Errorf("to %d remote ends: %v allocations", len(ends), n)
			}
			f.Release()
		}
	}
}
