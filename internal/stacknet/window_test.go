package stacknet_test

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A Write is many segments under way at once: the peer lets that many come before it has
// acknowledged the first. DDP-101.
func TestSegmentsInFlight(t *testing.T) {
	const (
		long    = 1000 // octets of a frame that is full of data
		several = 8
	)
	var mute atomic.Bool
	var sent atomic.Int32
	enough := make(chan struct{}) // several segments are under way
	sw := []*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
	porttest.Wire(t, sw[0], sw[1], false, func(f porttest.Received) bool {
		b := f.Octets
		if len(b) < 34 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[23] != 6 || !mute.Load() {
			return true
		}
		if b[29] == 1 { // from the end that writes
			if len(b) > long && sent.Add(1) == several {
				close(enough)
			}
			return true
		}
		return false
	})
	var cs []*vnic.Context
	for i := range 2 {
		st := netstacktest.NewStack(t, sw[i], i+1, 1500)
		net := stacknet.New(st)
		t.Cleanup(func() { net.Close() })
		d, err := vnic.New(vnic.Config{Name: st.Name(), MAC: st.MAC(), MTU: st.MTU(), Addrs: st.Addrs(),
			Network: net})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		cs = append(cs, vnictest.Open(t, d, vnic.ContextConfig{}))
	}
	x, y := vnictest.NewQPs(t, cs[0], cs[1], vnictest.PeerConfig{Buffer: 1 << 20}, vnictest.PeerConfig{
		Buffer: 1 << 20})
	x.Write(1, 0, 1000, y, 0) // both ends are ready
	x.WantSend("written", vnictest.Want{ID: 1})
	mute.Store(true) // no acknowledgement comes any more
	x.Write(2, 0, 1<<20, y, 0)
	select {
	case <-enough:
	case <-time.After(time.Minute):
		t.Fatalf("%d segments are under way, want %d", sent.Load(), several)
	}
	mute.Store(false)
	x.WantSend("written when acknowledgements come again", vnictest.Want{ID: 2})
}
