package tcp_test

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/impair"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// Abort resets the connection at once, whatever is queued and under way: behind it there is one
// RST, no other segment of its own accord, and the peer knows before a round trip is over, also if
// it has not got all that was sent before. Closing would send all of it first, for half a minute
// here.
func TestAbortDropsWhatIsQueued(t *testing.T) {
	for _, loss := range []float64{0, 0.1} {
		overBoth(t, fmt.Sprintf("loss=%v", loss), func(t *testing.T, v6 bool) {
			clock := porttest.NewClock(t)
			sw := [2]*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
			s := impair.Schedule{Seed: 3, Loss: loss, Delay: 5 * time.Millisecond, Rate: 1e6,
				Queue: 64 << 10}
			var mu sync.Mutex
			var aborted bool
			var resets, data int // sent by a, data after its Abort
			links := [2]*impair.Link{s.Link(1), s.Link(2)}
			var dialer uint16 // a's port
			porttest.Bend(t, sw[0], sw[1], func(octets []byte, deliver func()) {
				mu.Lock()
				now := clock.Elapsed()
				fate := impair.Fate{Copies: 1, At: [2]time.Duration{now}}
				switch seg := segment(octets); {
				case seg == nil:
				case dialer == 0: // the SYN
					dialer = seg.SourcePort()
				case seg.SourcePort() != dialer:
					fate = links[1].Carry(now, len(octets))
				case seg.Flags().Contains(header.TCPFlagRst):
					resets++
					fate.At[0] += s.Delay
				default:
					fate = links[0].Carry(now, len(octets))
					if aborted && len(octets) > 100 {
						data++
					}
				}
				mu.Unlock()
				for _, at := range fate.At[:fate.Copies] {
					clock.AfterFunc(at-now, deliver)
				}
			})
			var stacks [2]*netstack.Stack
			for i := range stacks {
				stacks[i] = netstacktest.NewStackOf(t, sw[i], i+1, netstack.Config{Clock: clock})
			}
			a, b := netstacktest.Connect(t, stacks[0], stacks[1], v6)
			defer b.Close()
			bell := netstacktest.NewBell(b)
			const size = 4 << 20
			if n, err := a.WriteFrom(netstacktest.NewSource(size)); n != size || err != nil {
				t.Fatal(n, err)
			}
			sink := netstacktest.NewSink(size)
			var begun time.Duration
			for {
				n, err := b.ReadInto(sink)
				if err != nil {
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("it ended with %v", err)
					}
					break
				}
				if n == 0 {
					<-bell
				}
				if sink.Len() > 100_000 && begun == 0 {
					begun = clock.Elapsed()
					a.Abort()
					mu.Lock()
					aborted = true
					mu.Unlock()
				}
			}
			took := clock.Elapsed() - begun
			mu.Lock()
			defer mu.Unlock()
			if took > time.Second || resets == 0 || data > 0 || sink.Len() > 1<<20 {
				t.Errorf("reset after %v by %d RST; %d segments with data were sent after the Abort, the peer "+
					"got %d octets", took, resets, data, sink.Len())
			}
		})
	}
}
