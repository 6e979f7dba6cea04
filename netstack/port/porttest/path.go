package porttest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
)

// A Schedule says what becomes of the frames of a path. What becomes of the n-th frame of a
// direction hangs on Seed, the direction and n only: the same Seed does the same to the same
// frames.
type Schedule struct {
	Seed uint64
	// Loss, Duplicate and Reorder are how many of all frames are lost, come twice, or come late: from
	// 0 to 1.
	Loss, Duplicate, Reorder float64
	Delay                    time.Duration // of every frame
	Late                     time.Duration // a frame that comes late takes up to that much longer
}

// String names a Schedule in a test's name or report.
func (s Schedule) String() string {
	return fmt.Sprintf("seed=%d loss=%v duplicate=%v reorder=%v delay=%v late=%v",
		s.Seed, s.Loss, s.Duplicate, s.Reorder, s.Delay, s.Late)
}

// Path joins two switches in memory by a bad network: frames cross it as s says, by the time of
// clock. It is cut when the test ends.
func Path(tb testing.TB, a, b *ethswitch.Switch, clock *Clock, s Schedule) {
	tb.Helper()
	join(tb, a, b, &wireEnd{carry: s.carrier(clock, 1)}, &wireEnd{carry: s.carrier(clock, 2)})
}

// carrier carries the frames of one direction.
func (s Schedule) carrier(clock *Clock, direction uint64) func(octets []byte, deliver func()) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(s.Seed, direction))
	return func(_ []byte, deliver func()) {
		for _, d := range s.next(&mu, rng) {
			clock.AfterFunc(d, func() {
				clock.happened()
				deliver()
			})
		}
	}
}

// next is when the next frame arrives: once, twice, or not at all.
func (s Schedule) next(mu *sync.Mutex, rng *rand.Rand) []time.Duration {
	mu.Lock()
	defer mu.Unlock()
	// Each frame takes as many numbers, so that what becomes of one says nothing of the next.
	lost, twice := rng.Float64() < s.Loss, rng.Float64() < s.Duplicate
	late, by, again := rng.Float64() < s.Reorder, rng.Float64(), rng.Float64()
	if lost {
		return nil
	}
	first := s.Delay
	if late {
		first += time.Duration(by * float64(s.Late))
	}
	if !twice {
		return []time.Duration{first}
	}
	return []time.Duration{first, s.Delay + time.Duration(again*float64(s.Late))}
}
