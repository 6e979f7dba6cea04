package porttest

import (
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

// A Schedule says what becomes of the frames of a path.
type Schedule = impair.Schedule

// Path joins two switches in memory by a bad network: frames cross it as s says, by the time of
// clock. It is cut when the test ends.
func Path(tb testing.TB, a, b *ethswitch.Switch, clock *Clock, s Schedule) {
	tb.Helper()
	join(tb, a, b, &wireEnd{carry: carrier(clock, s.Link(1))},
		&wireEnd{carry: carrier(clock, s.Link(2))})
}

// carrier carries the frames of one direction.
func carrier(clock *Clock, link *impair.Link) func(octets []byte, deliver func()) {
	var mu sync.Mutex
	return func(octets []byte, deliver func()) {
		mu.Lock()
		now := clock.Elapsed()
		f := link.Carry(now, len(octets))
		mu.Unlock()
		for _, at := range f.At[:f.Copies] {
			clock.AfterFunc(at-now, func() {
				clock.happened()
				deliver()
			})
		}
	}
}
