package sim

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A weather is what the wire does to frames.
type weather struct {
	loss, double, late float64       // of all frames: lost, carried twice, late
	delay              time.Duration // of every frame
	lateness           time.Duration // a late frame takes up to that much longer
}

// A wireEnd is the port of one switch, and carries frames to the other switch.
type wireEnd struct {
	w       *world
	i       int // of which side
	at      atomic.Pointer[ethswitch.Attachment]
	peer    *wireEnd
	courier *ethswitch.Courier // brings what arrives here
	rng     *rand.Rand         // of what happens to the frames of this direction
	free    []*flight
}

// A flight is a frame under way.
type flight struct {
	item
	e      *wireEnd // where it arrives
	octets []byte
	off    frame.Offload
}

func newWireEnd(w *world, i int, seed uint64) *wireEnd {
	return &wireEnd{w: w, i: i, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
}

// Transmit implements ethswitch.Port.
func (e *wireEnd) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	fl := e.newFlight()
	fl.octets = f.AppendTo(fl.octets[:0])
	fl.off = f.Offload
	// Each frame takes as many numbers, so that what becomes of one says nothing of the next.
	r, x := e.rng.Float64(), e.rng.Uint64()
	wt := &w.weather
	now := time.Now()
	fate := uint64(0)
	switch {
	case !w.up:
		fate = 1
	case r < wt.loss:
		fate = 2
	}
	w.trace.mix(uint64(e.i), octets(fl.octets), fate, uint64(now.Sub(w.trace.start)))
	if w.trace.lines != nil {
		w.trace.say("frame from %d, %d octets, fate %d: %x", e.i, len(fl.octets), fate,
			slices.Clone(fl.octets[14:min(len(fl.octets), 1600)]))
	}
	if fate != 0 {
		e.free = append(e.free, fl)
		return true
	}
	// Some nanoseconds more or less, so that nothing is due at the same time as something else.
	d := wt.delay + time.Duration(x%997)
	if r -= wt.loss; r < wt.late {
		d += time.Duration(x>>16) % (wt.lateness + 1)
	} else if r -= wt.late; r < wt.double {
		again := e.newFlight()
		again.octets, again.off = append(again.octets[:0], fl.octets...), fl.off
		w.agenda.put(&again.item, now.Add(d+time.Duration(x>>16)%(wt.lateness+1)+1))
	}
	w.agenda.put(&fl.item, now.Add(d))
	return true
}

func (e *wireEnd) newFlight() *flight {
	if n := len(e.free); n > 0 {
		fl := e.free[n-1]
		e.free = e.free[:n-1]
		return fl
	}
	fl := &flight{e: e}
	fl.item = item{i: -1, a: e.w.agenda, frame: true, f: fl.arrive}
	return fl
}

// arrive puts the frame into the other switch, as the reader of a port does.
func (fl *flight) arrive() {
	e := fl.e
	w := e.w
	to := e.peer
	f := frame.New(fl.octets, fl.off)
	w.sides[to.i].fresh = true
	if w.couriers {
		to.courier.Bring(f, true, nil)
	} else {
		_ = to.at.Load().Input(f) // it counts what it drops
		f.Release()
	}
	w.mu.Lock()
	e.free = append(e.free, fl)
	w.mu.Unlock()
}

// Offloads implements ethswitch.Port.
func (e *wireEnd) Offloads(frame.GSO) bool { return false }

// String implements ethswitch.Port.
func (e *wireEnd) String() string { return "wire" }
