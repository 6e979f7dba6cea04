package porttest

import (
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A Filter sees each frame that a Wire carries and says whether it arrives. It may be called from
// several goroutines at once.
type Filter func(Received) bool

// Wire joins two switches in memory. With offloads it carries super-frames; filter may be nil. It
// is cut when the test ends.
func Wire(tb testing.TB, a, b *ethswitch.Switch, offloads bool, filter Filter) {
	tb.Helper()
	join(tb, a, b, &wireEnd{offloads: offloads, filter: filter},
		&wireEnd{offloads: offloads, filter: filter})
}

// Bend joins two switches in memory. carry sees each frame and lets it arrive when it calls
// deliver, be it later and behind others, or never. It may be called from several goroutines at
// once.
func Bend(tb testing.TB, a, b *ethswitch.Switch, carry func(octets []byte, deliver func())) {
	tb.Helper()
	join(tb, a, b, &wireEnd{carry: carry}, &wireEnd{carry: carry})
}

func join(tb testing.TB, a, b *ethswitch.Switch, x, y *wireEnd) {
	tb.Helper()
	x.peer, y.peer = y, x
	for _, e := range []struct {
		end *wireEnd
		sw  *ethswitch.Switch
	}{{x, a}, {y, b}} {
		at, err := e.sw.Attach(ethswitch.PortOptions{Name: "wire", Kind: "memory"}, e.end)
		if err != nil {
			tb.Fatal(err)
		}
		e.end.at.Store(at)
		tb.Cleanup(at.Detach)
	}
}

type wireEnd struct {
	peer     *wireEnd
	offloads bool
	filter   Filter
	carry    func([]byte, func())
	at       atomic.Pointer[ethswitch.Attachment]
}

// Transmit implements ethswitch.Port: what goes out here comes in at the other end.
func (e *wireEnd) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	at := e.peer.at.Load()
	if at == nil {
		return false
	}
	octets := f.AppendTo(nil)
	if e.filter != nil && !e.filter(Received{f.Offload, octets}) {
		return true // lost on the way
	}
	if e.carry != nil {
		o := f.Offload
		e.carry(octets, func() { put(at, octets, o) })
		return true
	}
	return put(at, octets, f.Offload)
}

func put(at *ethswitch.Attachment, octets []byte, o frame.Offload) bool {
	g := frame.New(octets, o)
	defer g.Release()
	return at.Input(g) == nil
}

func (e *wireEnd) Offloads(kind frame.GSO) bool {
	return e.offloads && kind != frame.GSOUDP
}

func (e *wireEnd) String() string { return "wire" }
