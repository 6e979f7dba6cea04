package badnet

import (
	"fmt"
	"time"

	"github.com/vrnic/vrnic/netstack/port/impair"
)

// The bottleneck, the same in both directions.
const (
	Rate = 1e9 // bits a second
	// Queue is 1000 frames of 1514 octets, netem's default: 12 ms.
	Queue = 1000 * 1514
)

// A Cell is one kind of bad network. Both directions are as bad.
type Cell struct {
	Loss   float64       `json:"loss_percent"`
	Burst  float64       `json:"burst"` // frames that are lost in a row, in the mean; 1: by chance
	RTT    time.Duration `json:"rtt_ns"`
	Jitter time.Duration `json:"jitter_ns"` // each frame takes up to that much longer
}

// String names it in a message.
func (c Cell) String() string {
	return fmt.Sprintf("loss %v %%, burst %v, RTT %v, jitter %v", c.Loss, c.Burst, c.RTT, c.Jitter)
}

// Schedule is what the bridge does to frames.
func (c Cell) Schedule(seed uint64) impair.Schedule {
	s := impair.Schedule{Seed: seed, Loss: c.Loss / 100, Burst: c.Burst, Delay: c.RTT / 2,
		Late: c.Jitter, Rate: Rate, Queue: Queue}
	if c.Jitter > 0 {
		s.Reorder = 1
	}
	return s
}

// WarmUp is how long a connection has to find out about the path before it is measured.
func (c Cell) WarmUp() time.Duration { return max(200*time.Millisecond, 15*(c.RTT+c.Jitter)) }

// Length is how long it is measured: at least that long, and longer where a round trip is.
func (c Cell) Length(least time.Duration) time.Duration {
	return max(least, 30*c.RTT, 3*c.WarmUp()/2)
}
