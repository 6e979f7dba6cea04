package daemon

import (
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
)

// A counter is a port that counts what it is given.
type counter struct{ n int }

func (c *counter) Transmit(*frame.Frame, *ethswitch.Delivery) bool { c.n++; return true }
func (c *counter) Offloads(frame.GSO) bool                         { return true }
func (c *counter) String() string                                  { return "counter" }

// From the look whether somebody is connected through a port until it is gone, nothing comes
// through: nobody is told that a connection is there which goes with the port. If the port stays
// all goes on.
func TestPortThatGoesIsShut(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	going := &outlet{spec: PortSpec{Kind: PortUnixListen, Path: "/p"}}
	var ports [2]counter
	var at [2]*ethswitch.Attachment
	for i, name := range []string{going.spec.name(), "other"} {
		var err error
		at[i], err = sw.Attach(ethswitch.PortOptions{Name: name}, &ports[i])
		if err != nil {
			t.Fatal(err)
		}
		defer at[i].Detach()
	}
	d := &Daemon{sw: sw}
	c := &change{delPorts: []*outlet{going}}
	send := func(when string, want int) {
		t.Helper()
		for i, a := range at {
			f := frame.New(frametest.Ethernet(frame.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
				frametest.MAC(byte(i)), 3), frame.Offload{})
			err := a.Input(f)
			f.Release()
			if got := ports[1-i].n; err != nil || got != want {
				t.Errorf("%s port %d has had %d frames, %v; want %d", when, 1-i, got, err, want)
			}
		}
	}
	send("before", 1)
	if err := d.claim(c); err != nil {
		t.Fatal(err)
	}
	send("when it is to go", 1)
	c.open()
	send("when it stays", 2)
}
