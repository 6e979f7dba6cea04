package ethswitch_test

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
)

// A putter is a port that puts off what it has to do for frames, if it can.
type putter struct {
	name    string
	refused int
	log     *[]string
}

func (p *putter) Transmit(f *frame.Frame, d *ethswitch.Delivery) bool {
	*p.log = append(*p.log, "frame to "+p.name)
	if !d.PutOff(p) {
		p.refused++
	}
	return true
}

func (p *putter) Settle()                 { *p.log = append(*p.log, p.name+" settles") }
func (p *putter) Offloads(frame.GSO) bool { return true }
func (p *putter) String() string          { return p.name }

// What is put off is done once behind all the frames that BringOne has brought, and at once behind
// those of Bring and BringAll. Who finds no place does it himself.
func TestPutOff(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	var log []string
	var ports []*putter
	for i := range 6 {
		p := &putter{name: fmt.Sprint(i), log: &log}
		at, err := sw.Attach(ethswitch.PortOptions{Name: p.name, MAC: frametest.MAC(byte(i))}, p)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Detach()
		ports = append(ports, p)
	}
	in, err := sw.Attach(ethswitch.PortOptions{Name: "in"}, &putter{log: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Detach()
	c := ethswitch.NewCourier(in)
	to := func(i int) *frame.Frame {
		return frame.New(frametest.Ethernet(frametest.MAC(byte(i)), frametest.MAC(9), 1), frame.Offload{})
	}
	want := func(lines ...string) {
		t.Helper()
		if fmt.Sprint(log) != fmt.Sprint(lines) {
			t.Errorf("%q, want %q", log, lines)
		}
		log = nil
	}
	for _, i := range []int{1, 2, 1} {
		c.BringOne(to(i), false, nil)
		if !c.Owes() {
			t.Error("nothing is owed")
		}
	}
	want("frame to 1", "frame to 2", "frame to 1")
	c.Settle()
	want("1 settles", "2 settles")
	if c.Settle(); c.Owes() {
		t.Error("it is owed twice")
	}
	want()
	c.Bring(to(1), true, nil)
	want("frame to 1", "1 settles")
	c.Gather(to(1))
	c.Gather(to(1))
	c.BringAll()
	want("frame to 1", "frame to 1", "1 settles")
	for i := range ports {
		c.BringOne(to(i), false, nil)
	}
	c.Settle()
	if n := ports[4].refused + ports[5].refused; n != 2 || len(log) != 10 {
		t.Errorf("%d of six may not put off; %q", n, log)
	}
	f := to(3)
	defer f.Release()
	_ = in.Input(f)
	if ports[3].refused != 1 {
		t.Error("who brings nothing else is to call")
	}
}
