package sctp

import (
	"flag"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/port/impair"
	"github.com/vrnic/vrnic/netstack/port/impair/ideal"
)

var (
	goodputTable = flag.Int("goodput-table", 0,
		"TestGoodput measures all cells, with so many seeds each")
	goodputTime = flag.Duration("goodput-time", time.Second, "each for so long, at least")
)

// settleFrames is how many packets that are there together are handled together.
const settleFrames = 16

// goodput is how many Mbit/s arrive over a network from a sender that always has more to send, and
// what that has counted.
func goodput(t testing.TB, c impair.Cell, seed uint64, d time.Duration) (mbits float64, st Stats) {
	return goodputStalled(t, c, seed, d, 0, 0)
}

// goodputStalled is goodput where what would arrive from at on, for so long, arrives behind that:
// somebody else has the processors.
func goodputStalled(t testing.TB, c impair.Cell, seed uint64, d, stall, long time.Duration) (
	mbits float64, st Stats) {
	opt := Options{SendBuffer: 8 << 20, RecvBuffer: 4 << 20, RTOMin: 300 * time.Millisecond}
	w, a, b := pair(t, Config{Options: opt}, Config{Options: opt})
	w.quiet = true
	schedule := c.Schedule(seed)
	links := map[bool]*impair.Link{true: schedule.Link(1), false: schedule.Link(2)}
	var at [2]time.Duration
	w.Fate = func(d Datagram) []time.Duration {
		const headers = 14 + 20 // of Ethernet and IPv4
		now := w.Now.Sub(start)
		f := links[d.Src == addrA].Carry(now, len(d.Data)+headers)
		for i := range f.Copies {
			if f.At[i] >= stall && f.At[i] < stall+long {
				f.At[i] = stall + long + (f.At[i]-stall)/1000
			}
			at[i] = c.Gather(f.At[i]) - now
		}
		return at[:f.Copies]
	}
	// What arrives together is handled together.
	arrived := map[*node]int{}
	w.Deliver = func(d Datagram) {
		n := a
		if d.Dst == addrB {
			n = b
		}
		m := &memory{w, d.Data, 1}
		n.e.Input(w.Now, Packet{Src: d.Src, Dst: d.Dst, Data: m.b, Ref: m, Verified: true})
		if arrived[n]++; arrived[n] == settleFrames {
			n.pump()
			arrived[n] = 0
		}
	}
	octets := 0
	b.onMsg = func(m *Message) { octets += m.Len() }
	src := &filler{}
	before, from, end := 0, w.Now.Add(c.WarmUp()), w.Now.Add(c.WarmUp()+d)
	for w.Now.Before(end) {
		for n := a.last.MaxPayload(); a.last.Room() >= n; {
			src.n = n
			if _, err := a.last.Send(w.Now, SendOptions{Unordered: true}, src); err != nil {
				t.Fatal(err)
			}
		}
		if !w.Due() {
			b.pump()
			a.pump()
			clear(arrived)
		}
		a.events, a.sent, b.events, b.sent = a.events[:0], a.sent[:0], b.events[:0], b.sent[:0]
		w.Step(end)
		if w.Now.Before(from) {
			before = octets
		}
		if a.last.State() != StateEstablished {
			t.Fatalf("%v: %v", c, a.last.State())
		}
	}
	return float64(octets-before) * 8 / d.Seconds() / 1e6, a.e.Stats()
}

// A filler is n octets that nobody looks at.
type filler struct{ n int }

func (f *filler) Len() int { return f.n }

func (f *filler) Read(b []byte) (int, error) {
	n := min(len(b), f.n)
	f.n -= n
	return n, nil
}

// What loss, delay and reordering leave of a wire of 1 Gbit/s. Before late packets were told from
// lost ones these cells had 302, 12, 2, 17, 336, 35 and 0.4 Mbit/s, measured for longer.
//
//	go test ./netstack/sctp -run Goodput -v -goodput-table 5
func TestGoodput(t *testing.T) {
	const ms = time.Millisecond
	if *goodputTable > 0 {
		for _, c := range impair.Cells() {
			t.Run(c.String(), func(t *testing.T) {
				var sum, most float64
				var all Stats
				for seed := range uint64(*goodputTable) {
					g, st := goodput(t, c, seed+1, c.Length(*goodputTime))
					sum += g
					most += ideal.Goodput(c, seed+1, c.Length(*goodputTime))
					all.Retransmits += st.Retransmits
					all.Spurious += st.Spurious
					all.Undone += st.Undone
					all.TailProbes += st.TailProbes
					all.Timeouts += st.Timeouts
				}
				n := float64(*goodputTable)
				t.Logf("%-46v %6.1f of %6.1f (%.2f); resent %d, spurious %d, undone %d, probes %d, timeouts %d",
					c, sum/n, most/n, sum/most, all.Retransmits, all.Spurious, all.Undone, all.TailProbes,
					all.Timeouts)
			})
		}
		return
	}
	for _, tt := range []struct {
		impair.Cell
		d     time.Duration
		least float64
	}{
		{impair.Cell{RTT: ms / 10, Jitter: ms / 5}, ms * 60, 600},
		{impair.Cell{RTT: ms * 10, Jitter: ms / 5}, ms * 250, 300},
		{impair.Cell{RTT: ms * 10, Jitter: ms * 5}, ms * 400, 150},
		{impair.Cell{RTT: ms * 50, Jitter: ms * 5}, ms * 1000, 60},
		{impair.Cell{RTT: ms / 10, Jitter: ms * 5}, ms * 400, 100},
		{impair.Cell{Loss: 1, RTT: ms / 10}, ms * 60, 500},
		{impair.Cell{Loss: 5, RTT: ms / 10}, ms * 60, 250},
		{impair.Cell{Loss: 20, RTT: ms / 10}, ms * 300, 10},
	} {
		g, st := goodput(t, tt.Cell, 1, tt.d)
		t.Logf("%-50v %6.1f Mbit/s; resent %d, spurious %d, undone %d, probes %d, timeouts %d",
			tt.Cell, g, st.Retransmits, st.Spurious, st.Undone, st.TailProbes, st.Timeouts)
		if g < tt.least {
			t.Errorf("%v: %.1f Mbit/s, at least %v are there", tt.Cell, g, tt.least)
		}
	}
}

// A machine that stands still for a while is no loss, be it at the beginning, when the first frames
// have come late and a timeout follows: the window of before both comes back.
func TestStall(t *testing.T) {
	c := impair.Cell{RTT: 50 * time.Millisecond, Jitter: 5 * time.Millisecond}
	for _, at := range []time.Duration{60, 120, 200, 400} {
		const long, d = 1200 * time.Millisecond, 1500 * time.Millisecond
		g, st := goodputStalled(t, c, 1, d, at*time.Millisecond, long)
		t.Logf("%v ms: %.0f Mbit/s; %+v", int(at), g, st)
		if g < 100 {
			t.Errorf("stalled after %d ms: %.1f Mbit/s then", at, g)
		}
	}
}
