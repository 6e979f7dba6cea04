package porttest

import (
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A Received is a frame that a Port was sent by its switch.
type Received struct {
	frame.Offload
	Octets []byte
}

// A Port is a switch port whose link is a channel.
type Port struct {
	Frames   chan Received // what came out of the switch
	offloads bool
	drop     atomic.Bool
	at       *ethswitch.Attachment
}

// NewPort attaches a Port. With offloads it takes super-frames and partial checksums. It drops what
// does not fit into Frames. It is detached when the test ends.
func NewPort(tb testing.TB, sw *ethswitch.Switch, name string, offloads bool) *Port {
	tb.Helper()
	return NewPortBeside(tb, sw, name, "", offloads)
}

// NewPortBeside is NewPort of one that is a station with the port beside.
func NewPortBeside(tb testing.TB, sw *ethswitch.Switch, name, beside string, offloads bool) *Port {
	tb.Helper()
	p := &Port{Frames: make(chan Received, 4096), offloads: offloads}
	at, err := sw.Attach(ethswitch.PortOptions{Name: name, Kind: "memory", Beside: beside}, p)
	if err != nil {
		tb.Fatal(err)
	}
	p.at = at
	tb.Cleanup(p.Detach)
	return p
}

// Transmit implements ethswitch.Port.
func (p *Port) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	if p.drop.Load() {
		return false
	}
	select {
	case p.Frames <- Received{f.Offload, f.AppendTo(nil)}:
		return true
	default:
		return false
	}
}

// Offloads implements ethswitch.Port.
func (p *Port) Offloads(kind frame.GSO) bool { return p.offloads && kind != frame.GSOUDP }

// String implements ethswitch.Port.
func (p *Port) String() string { return "in memory" }

// Drop makes the port drop every frame that it should send, or stop doing so.
func (p *Port) Drop(on bool) { p.drop.Store(on) }

// Send puts a frame into the switch as if it had come in at the port.
func (p *Port) Send(octets []byte, off frame.Offload) error {
	f := frame.New(octets, off)
	defer f.Release()
	return p.at.Input(f)
}

// Stats returns the port's counters.
func (p *Port) Stats() ethswitch.PortStats { return p.at.Stats() }

// Detach takes the port off its switch.
func (p *Port) Detach() { p.at.Detach() }
