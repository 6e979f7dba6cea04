package tcp_test

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// TestBadPath: checked octets go both ways over a path that loses, doubles and reorders frames.
func TestBadPath(t *testing.T) {
	for seed := range uint64(3) {
		s := porttest.Schedule{Seed: seed, Loss: 0.02, Duplicate: 0.01, Reorder: 0.05,
			Delay: 10 * time.Millisecond, Late: 30 * time.Millisecond}
		t.Run(s.String(), func(t *testing.T) {
			clock := porttest.NewClock(t)
			sw := [2]*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
			porttest.Path(t, sw[0], sw[1], clock, s)
			var stacks [2]*netstack.Stack
			for i := range stacks {
				stacks[i] = netstacktest.NewStackOf(t, sw[i], i+1, netstack.Config{Clock: clock})
			}
			a, b := netstacktest.Connect(t, stacks[0], stacks[1], seed%2 == 1)
			netstacktest.Exchange(t, a, b, 256<<10)
			a.Close()
			b.Close()
			t.Logf("%v have passed", clock.Elapsed())
		})
	}
}
