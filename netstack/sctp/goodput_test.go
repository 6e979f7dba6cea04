package sctp

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var goodputTable = flag.Bool("goodput-table", false, "TestGoodput measures all cells")

// A badLink is one direction of a wire of 1 Gbit/s with a queue before it: what a frame-by-frame
// impairing bridge does to Ethernet.
type badLink struct {
	w      *world
	rng    *rand.Rand
	loss   float64
	delay  time.Duration
	jitter time.Duration // each frame takes up to that much longer, whatever the others do
	queue  time.Duration // what may wait before the wire; more is dropped
	busy   time.Time
}

// wireTime is how long a packet is on the wire, with the headers of Ethernet and IPv4.
func wireTime(n int) time.Duration { return time.Duration(n+20+38) * 8 }

func (l *badLink) fate(d Datagram) []time.Duration {
	now := l.w.Now
	if l.busy.Before(now) {
		l.busy = now
	}
	if l.busy.Sub(now) > l.queue {
		return nil
	}
	l.busy = l.busy.Add(wireTime(len(d.Data)))
	if l.rng.Float64() < l.loss {
		return nil
	}
	at := l.busy.Sub(now) + l.delay
	if l.jitter > 0 {
		at += time.Duration(l.rng.Int64N(int64(l.jitter)))
	}
	return []time.Duration{at}
}

// A cell is a network to be measured on.
type cell struct {
	loss        float64
	rtt, jitter time.Duration
}

func (c cell) String() string {
	return fmt.Sprintf("loss=%v%%,rtt=%v,jitter=%v", c.loss*100, c.rtt, c.jitter)
}

// goodput is how many Mbit/s arrive within d of network time, from a sender that always has more
// to send, and what both ends have counted.
func (c cell) goodput(t testing.TB, seed uint64, d time.Duration) (mbits float64, st Stats) {
	opt := Options{SendBuffer: 8 << 20, RecvBuffer: 6 << 20, RTOMin: 300 * time.Millisecond}
	w, a, b := pair(t, Config{Options: opt}, Config{Options: opt})
	w.quiet = true
	links := map[bool]*badLink{}
	for _, out := range []bool{false, true} {
		s := seed * 2
		if out {
			s++
		}
		links[out] = &badLink{w: w, rng: newSeededRand(s), loss: c.loss, delay: c.rtt / 2,
			jitter: c.jitter, queue: 12 * time.Millisecond}
	}
	w.Fate = func(d Datagram) []time.Duration { return links[d.Src == addrA].fate(d) }
	octets := 0
	b.onMsg = func(m *Message) { octets += m.Len() }
	src := &filler{}
	end := w.Now.Add(d)
	for w.Now.Before(end) {
		for n := a.last.MaxPayload(); a.last.Room() >= n; {
			src.n = n
			if _, err := a.last.Send(w.Now, SendOptions{Unordered: true}, src); err != nil {
				t.Fatal(err)
			}
		}
		a.pump()
		a.events, a.sent, b.events, b.sent = a.events[:0], a.sent[:0], b.events[:0], b.sent[:0]
		w.Step(end)
		if a.last.State() != StateEstablished {
			t.Fatalf("%v: %v", c, a.last.State())
		}
	}
	return float64(octets) * 8 / d.Seconds() / 1e6, a.e.Stats()
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
//	go test ./netstack/sctp -run Goodput -v -goodput-table
func TestGoodput(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		cell
		d     time.Duration
		least float64
	}{
		{cell{0, ms / 10, ms / 5}, ms * 60, 600},
		{cell{0, ms * 10, ms / 5}, ms * 250, 300},
		{cell{0, ms * 10, ms * 5}, ms * 400, 150},
		{cell{0, ms * 50, ms * 5}, ms * 1000, 60},
		{cell{0, ms / 10, ms * 5}, ms * 400, 100},
		{cell{0.01, ms / 10, 0}, ms * 60, 500},
		{cell{0.05, ms / 10, 0}, ms * 60, 250},
		{cell{0.2, ms / 10, 0}, ms * 300, 10},
	}
	if *goodputTable {
		tests = tests[:0]
		for _, jitter := range []time.Duration{0, ms / 5, ms * 5} {
			for _, rtt := range []time.Duration{ms / 10, ms * 10, ms * 50} {
				for _, loss := range []float64{0, 0.001, 0.01, 0.05, 0.2} {
					c := cell{loss, rtt, jitter}
					d := 4 * time.Second
					if loss > 0 && rtt > ms || loss >= 0.05 {
						d = 10 * time.Second
					}
					tests = append(tests, struct {
						cell
						d     time.Duration
						least float64
					}{c, d, 0})
				}
			}
		}
	}
	for _, tt := range tests {
		g, st := tt.goodput(t, 1, tt.d)
		t.Logf("%-34v %6.1f Mbit/s; resent %d, spurious %d, undone %d, probes %d, timeouts %d",
			tt.cell, g, st.Retransmits, st.Spurious, st.Undone, st.TailProbes, st.Timeouts)
		if g < tt.least {
			t.Errorf("%v: %.1f Mbit/s, at least %v are there", tt.cell, g, tt.least)
		}
	}
}
