package tcp_test

import (
	"flag"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/impair"
	"github.com/vrnic/vrnic/netstack/port/impair/ideal"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

var (
	goodputTable = flag.Int("goodput-table", 0,
		"TestGoodput measures all cells, with so many seeds each")
	goodputTime = flag.Duration("goodput-time", time.Second, "each for so long, at least")
)

// An impaired is one direction of the network of a cell. What arrives together it brings as the
// reader of a TAP does.
type impaired struct {
	cell    impair.Cell
	link    *impair.Link
	clock   *porttest.Clock
	courier *ethswitch.Courier
	due     map[time.Duration][][]byte
}

// impair has the frames of a rig suffer c from now on.
func (r *rig) impair(c impair.Cell, seed uint64) {
	s := c.Schedule(seed)
	for i, d := range r.dirs {
		d.bad = &impaired{cell: c, link: s.Link(uint64(i + 1)), clock: r.clock,
			courier: ethswitch.NewCourier(d.to), due: map[time.Duration][][]byte{}}
	}
	// What has come together is dealt with by who brings it.
	r.a.SetPrompt(func(func() bool) {})
	r.b.SetPrompt(func(func() bool) {})
}

// carry has a frame that is sent now arrive, or not.
func (d *impaired) carry(now time.Duration, octets []byte) {
	f := d.link.Carry(now, len(octets))
	for _, at := range f.At[:f.Copies] {
		at = d.cell.Gather(at)
		d.due[at] = append(d.due[at], octets)
		if len(d.due[at]) == 1 {
			d.clock.AfterFunc(at-now, func() {
				frames := d.due[at]
				delete(d.due, at)
				d.bring(frames)
			})
		}
	}
}

func (d *impaired) bring(frames [][]byte) {
	full := func(b []byte) bool { return len(b) >= ethswitch.FullFrame }
	for len(frames) > 0 {
		if !full(frames[0]) || len(frames) == 1 || !full(frames[1]) {
			d.courier.BringOne(frame.New(frames[0], frame.Offload{}), len(frames) == 1, nil)
			frames = frames[1:]
			continue
		}
		for more := true; more && len(frames) > 0 && full(frames[0]); frames = frames[1:] {
			more = d.courier.Gather(frame.New(frames[0], frame.Offload{}))
		}
		d.courier.BringAll()
	}
	d.courier.Settle()
}

// goodput is how many Mbit/s arrive over a network within d, behind a time in which the connection
// finds out about it, from a sender that always has more to send.
func goodput(tb testing.TB, c impair.Cell, seed uint64, d time.Duration) (mbits float64,
	state string) {
	tb.Helper()
	r := newRig(tb, badWire{rate: 1e9, queue: 1 << 20, delay: c.RTT / 2}, seed)
	r.connect(tb)
	r.impair(c, seed)
	var src netstacktest.Zeros
	var sink netstacktest.Count
	var before netstacktest.Count
	from := r.clock.Elapsed() + c.WarmUp()
	for r.clock.Elapsed() < from+d {
		for n := 1; n > 0; {
			src = netstacktest.Chunk
			var err error
			if n, err = r.a.WriteFrom(&src); err != nil {
				tb.Fatal(err)
			}
		}
		if _, err := r.b.ReadInto(&sink); err != nil {
			tb.Fatal(err)
		}
		if r.clock.Elapsed() < from {
			before = sink
		}
		r.settle()
		if !r.step() {
			tb.Fatalf("%v: nothing is to come", c)
		}
		r.settle()
	}
	for _, d := range r.dirs {
		d.bad = nil // so that it can be closed
	}
	return float64(sink-before) * 8 / d.Seconds() / 1e6, r.a.LossState()
}

// TestGoodput: what a connection moves on bad networks is near what they leave to a sender without
// faults. The times are those of the network: no processor's speed is in them.
//
//	go test ./netstack/tcp -run Goodput -v -goodput-table 5
func TestGoodput(t *testing.T) {
	if *goodputTable > 0 {
		for _, c := range impair.Cells() {
			t.Run(c.String(), func(t *testing.T) {
				var sum, most float64
				var state string
				for seed := range uint64(*goodputTable) {
					var g float64
					g, state = goodput(t, c, seed+1, c.Length(*goodputTime))
					sum += g
					most += ideal.Goodput(c, seed+1, c.Length(*goodputTime))
				}
				n := float64(*goodputTable)
				t.Logf("%-46v %6.1f of %6.1f (%.2f); %s", c, sum/n, most/n, sum/most, state)
			})
		}
		return
	}
	const ms = time.Millisecond
	for _, tt := range []struct {
		impair.Cell
		share float64 // of what a sender without faults gets
	}{
		{impair.Cell{RTT: ms / 10, Jitter: 5 * ms}, 0.7},
		{impair.Cell{RTT: 50 * ms, Jitter: 5 * ms}, 0.5},
		{impair.Cell{Loss: 0.1, RTT: ms / 10, Jitter: 5 * ms}, 0.7},
		{impair.Cell{Loss: 1, RTT: 10 * ms}, 0.7},
		{impair.Cell{Loss: 1, Burst: 8, RTT: 50 * ms, Jitter: ms / 5}, 0.7},
		{impair.Cell{Loss: 5, RTT: 10 * ms}, 0.7},
	} {
		if netstacktest.RaceEnabled && tt.Loss == 0 {
			continue // for its time
		}
		d := tt.Length(300 * ms)
		g, state := goodput(t, tt.Cell, 1, d)
		most := ideal.Goodput(tt.Cell, 1, d)
		t.Logf("%-46v %6.1f of %6.1f; %s", tt.Cell, g, most, state)
		if g < tt.share*most {
			t.Errorf("%v: %.1f Mbit/s of %.1f, want %v of that", tt.Cell, g, most, tt.share)
		}
	}
}
