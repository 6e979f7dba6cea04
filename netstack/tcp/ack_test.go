package tcp_test

import (
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// TestDelayedACK: requests and their answers carry each other's ACKs, and the last is acknowledged
// within two milliseconds.
func TestDelayedACK(t *testing.T) {
	clock := faketime.NewManualClock()
	var bare atomic.Int64 // segments without octets
	sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
	porttest.Wire(t, sw1, sw2, true, func(r porttest.Received) bool {
		if f := r.Octets; len(f) == 14+20+20+12 && f[12] == 8 && f[14+9] == 6 {
			bare.Add(1)
		}
		return true
	})
	var stacks [2]*netstack.Stack
	for i, sw := range []*ethswitch.Switch{sw1, sw2} {
		stacks[i] = netstacktest.NewStackOf(t, sw, i+1, netstack.Config{Clock: clock})
	}
	a, b := netstacktest.Connect(t, stacks[0], stacks[1], false)
	defer a.Close()
	defer b.Close()
	bellA, bellB := netstacktest.NewBell(a), netstacktest.NewBell(b)
	const size = 64
	round := func() {
		if n, err := a.WriteFrom(netstacktest.NewSource(size)); n != size || err != nil {
			t.Fatal(n, err)
		}
		readAll(t, b, bellB, size)
		// Who writes has to wait until what came in has been dealt with, its ACK included.
		if n, err := b.WriteFrom(netstacktest.NewSource(size)); n != size || err != nil {
			t.Fatal(n, err)
		}
		readAll(t, a, bellA, size)
	}
	round()
	bare.Store(0)
	made := stacks[1].Stats().TCPSegmentsSent
	for range 100 {
		round()
	}
	if n := bare.Load(); n != 0 {
		t.Errorf("100 requests and answers took %d bare ACKs", n)
	}
	if n := stacks[1].Stats().TCPSegmentsSent - made; n != 100 {
		t.Errorf("100 answers took %d segments, sent or not", n)
	}
	needtest.Eventually(t, "ACK of the last answer", func() bool {
		clock.Advance(time.Millisecond)
		return bare.Load() == 1
	})
	clock.Advance(100 * time.Millisecond)
	if n := bare.Load(); n != 1 {
		t.Errorf("%d bare ACKs of one answer", n)
	}
}
