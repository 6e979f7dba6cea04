package ethswitch_test

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// A divider has what is marked by an even octet, the other port what is marked by a number that 3
// divides.
type divider struct{ got int }

func (d *divider) Transmit(*frame.Frame, *ethswitch.Delivery) bool { d.got++; return true }
func (d *divider) Offloads(frame.GSO) bool                         { return true }
func (d *divider) String() string                                  { return "divides" }
func (d *divider) Divide(f *frame.Frame) (mine, theirs bool) {
	b := f.AppendTo(nil)
	n := b[len(b)-1]
	return n%2 == 0, n%3 == 0
}

// Two ports that are one station: the Sharer says whose a frame is, neither hears the other, both
// send from one MAC, and addresses behind the other port are found as behind any.
func TestSharedStation(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	d := &divider{}
	station, child, far := frametest.MAC(1), frametest.MAC(7), frametest.MAC(9)
	at, err := sw.Attach(ethswitch.PortOptions{Name: "stack", MAC: station}, d)
	if err != nil {
		t.Fatal(err)
	}
	kernel := porttest.NewPortBeside(t, sw, "kernel", "stack", false)
	wire := porttest.NewPort(t, sw, "wire", false)
	third := porttest.NewPort(t, sw, "third", false)
	count := func() string {
		n := fmt.Sprintf("stack %d kernel %d wire %d third %d", d.got, len(kernel.Frames),
			len(wire.Frames), len(third.Frames))
		d.got = 0
		for _, p := range []*porttest.Port{kernel, wire, third} {
			for len(p.Frames) > 0 {
				<-p.Frames
			}
		}
		return n
	}
	send := func(p *porttest.Port, dst, src frame.MAC, mark byte, want string) {
		t.Helper()
		if err := p.Send(frametest.Ethernet(dst, src, mark), frame.Offload{}); err != nil {
			t.Errorf("%v to %v: %v", src, dst, err)
		}
		if got := count(); got != want {
			t.Errorf("%v to %v, mark %d: %s, want %s", src, dst, mark, got, want)
		}
	}
	send(wire, station, far, 2, "stack 1 kernel 0 wire 0 third 0")
	send(wire, station, far, 3, "stack 0 kernel 1 wire 0 third 0")
	send(wire, station, far, 6, "stack 1 kernel 1 wire 0 third 0")
	send(wire, frametest.Broadcast, far, 2, "stack 1 kernel 0 wire 0 third 1")
	send(wire, frametest.Broadcast, far, 3, "stack 0 kernel 1 wire 0 third 1")
	send(kernel, far, station, 6, "stack 0 kernel 0 wire 1 third 0")
	send(kernel, frametest.Broadcast, station, 6, "stack 0 kernel 0 wire 1 third 1")
	send(kernel, station, station, 6, "stack 0 kernel 0 wire 0 third 0")
	send(kernel, far, child, 6, "stack 0 kernel 0 wire 1 third 0")
	send(wire, child, far, 1, "stack 0 kernel 1 wire 0 third 0")
	f := frame.New(frametest.Ethernet(child, station, 6), frame.Offload{})
	defer f.Release()
	if err := at.Input(f); err != nil || count() != "stack 0 kernel 0 wire 0 third 0" {
		t.Errorf("the stack reaches what is behind the kernel: %v", err)
	}
	for _, i := range sw.Ports() {
		if i.Name == "kernel" && fmt.Sprint(i.MACs) != fmt.Sprint([]frame.MAC{station, child}) {
			t.Errorf("behind the kernel's port: %v", i.MACs)
		}
	}

	for _, o := range []ethswitch.PortOptions{
		{Name: "second", Beside: "stack"}, {Name: "x", Beside: "nobody"}, {Name: "y", Beside: "wire"},
		{Name: "z", Beside: "stack", MAC: frametest.MAC(8)},
	} {
		if _, err := sw.Attach(o, &divider{}); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}

	// Without the other port the stack has the station alone, and without the stack the other port is
	// one as any.
	kernel.Detach()
	send(wire, station, far, 3, "stack 1 kernel 0 wire 0 third 0")
	kernel = porttest.NewPortBeside(t, sw, "kernel", "stack", false)
	at.Detach()
	send(kernel, far, station, 6, "stack 0 kernel 0 wire 1 third 0")
	send(wire, station, far, 1, "stack 0 kernel 1 wire 0 third 0")
}
