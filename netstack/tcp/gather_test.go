package tcp_test

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// TestGatheredReset: octets that are brought together with the RST behind them are there to be
// read, as they are where each comes for itself.
func TestGatheredReset(t *testing.T) {
	r := newRig(t, badWire{rate: 1e10, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
	r.connect(t)
	r.send(t, 1<<10, time.Minute)
	r.b.SetPrompt(func(func() bool) {})
	var frames [][]byte
	r.dirs[0].locked(func() {
		r.dirs[0].drop = func(b []byte) bool {
			frames = append(frames, b)
			return true
		}
	})
	const octets = 100
	if n, err := r.a.WriteFrom(netstacktest.NewSource(octets)); n != octets || err != nil {
		t.Fatal(n, err)
	}
	r.a.Abort()
	for range 20 {
		if len(frames) < 2 {
			r.step()
		}
	}
	if len(frames) != 2 {
		t.Fatalf("%d frames, and not octets and a RST", len(frames))
	}
	courier := ethswitch.NewCourier(r.dirs[0].to)
	for _, b := range frames {
		courier.Gather(frame.New(b, frame.Offload{}))
	}
	courier.BringAll()
	r.b.Settle()
	sink := netstacktest.NewSink(octets)
	if n, err := r.b.ReadInto(sink); n != octets || err != nil {
		t.Errorf("%d octets are read: %v", n, err)
	}
	if _, err := r.b.ReadInto(sink); err == nil {
		t.Error("the connection is there still")
	}
}
