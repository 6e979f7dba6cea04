package porttest

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
)

// cross sends n frames over a path, one each millisecond, and returns their numbers as they come.
func cross(t *testing.T, s Schedule, n int) (arrived []int) {
	t.Helper()
	clock := NewClock(t)
	sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
	Path(t, sw1, sw2, clock, s)
	in, out := NewPort(t, sw1, "in", false), NewPort(t, sw2, "out", false)
	done := make(chan struct{})
	var send func(i int)
	send = func(i int) {
		if i == n {
			clock.AfterFunc(s.Delay+s.Late+time.Second, func() { close(done) })
			return
		}
		b := frametest.Ethernet(frametest.Broadcast, frametest.MAC(1), 0)
		binary.BigEndian.PutUint32(b[14:], uint32(i))
		if err := in.Send(b, frame.Offload{}); err != nil {
			t.Error(err)
		}
		clock.AfterFunc(time.Millisecond, func() { send(i + 1) })
	}
	clock.AfterFunc(0, func() { send(0) })
	<-done
	for len(out.Frames) > 0 {
		arrived = append(arrived, int(binary.BigEndian.Uint32((<-out.Frames).Octets[14:])))
	}
	return arrived
}

// TestPathSeed: the same seed does the same to the same frames, another one something else.
func TestPathSeed(t *testing.T) {
	s := Schedule{Seed: 7, Loss: 0.1, Duplicate: 0.1, Reorder: 0.2,
		Delay: 5 * time.Millisecond, Late: 20 * time.Millisecond}
	const n = 300
	first := cross(t, s, n)
	if again := cross(t, s, n); !slices.Equal(first, again) {
		t.Errorf("%v: the second time %v came, the first time %v", s, again, first)
	}
	lost, twice := n, len(first)
	for i := range n {
		if slices.Contains(first, i) {
			lost--
			twice--
		}
	}
	if lost < n/20 || lost > n/5 || twice < n/20 || twice > n/5 || slices.IsSorted(first) {
		t.Errorf("%v: of %d frames %d were lost, %d came twice; in order: %v",
			s, n, lost, twice, slices.IsSorted(first))
	}
	s.Seed++
	if other := cross(t, s, n); slices.Equal(first, other) {
		t.Errorf("%v: the same as with the seed before", s)
	}
}

// TestPathGood: a path that does nothing keeps every frame, in order.
func TestPathGood(t *testing.T) {
	got := cross(t, Schedule{Seed: 1, Delay: time.Millisecond}, 100)
	for i, n := range got {
		if i != n {
			t.Fatalf("frame %d came as the %dth", n, i)
		}
	}
	if len(got) != 100 {
		t.Errorf("%d frames of 100", len(got))
	}
}

// TestClock: waiting takes no time, timers run in the order of their times, and a timer that is
// stopped does not run.
func TestClock(t *testing.T) {
	c := NewClock(t)
	var ran []int
	done := make(chan struct{})
	c.AfterFunc(2*time.Hour, func() { ran = append(ran, 2); close(done) })
	c.AfterFunc(time.Hour, func() { ran = append(ran, 1) })
	stopped := c.AfterFunc(30*time.Minute, func() { ran = append(ran, 0) })
	if !stopped.Stop() || stopped.Stop() {
		t.Error("a timer can be stopped once")
	}
	<-done
	if !slices.Equal(ran, []int{1, 2}) || c.Elapsed() != 2*time.Hour {
		t.Errorf("timers %v ran, %v have passed", ran, c.Elapsed())
	}
}
