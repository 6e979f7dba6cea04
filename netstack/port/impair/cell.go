package impair

import (
	"fmt"
	"time"
)

// The bottleneck of Cells, the same in both directions.
const (
	Rate = 1e9 // bits a second, unless the cell has another
	// Queue is 1000 frames of 1514 octets, netem's default: 12 ms.
	Queue = 1000 * 1514
)

// A Cell is one kind of bad network for goodput to be measured on. Both directions are as bad.
type Cell struct {
	Loss   float64       `json:"loss_percent"`
	Burst  float64       `json:"burst"` // frames that are lost in a row, in the mean; 1: by chance
	RTT    time.Duration `json:"rtt_ns"`
	Jitter time.Duration `json:"jitter_ns"`            // each frame takes up to that much longer
	Rate   float64       `json:"rate_bit_s,omitempty"` // of the bottleneck; 0: the constant's
}

// String names it in a message.
func (c Cell) String() string {
	return fmt.Sprintf("loss %v %%, burst %v, RTT %v, jitter %v", c.Loss, c.Burst, c.RTT, c.Jitter)
}

// Schedule is what such a network does to frames.
func (c Cell) Schedule(seed uint64) Schedule {
	s := Schedule{Seed: seed, Loss: c.Loss / 100, Burst: c.Burst, Delay: c.RTT / 2,
		Late: c.Jitter, Rate: c.rate(), Queue: Queue}
	if c.Jitter > 0 {
		s.Reorder = 1
	}
	return s
}

// rate is the bottleneck's.
func (c Cell) rate() float64 {
	if c.Rate == 0 {
		return Rate
	}
	return c.Rate
}

// WarmUp is how long a connection has to find out about the path before it is measured.
func (c Cell) WarmUp() time.Duration { return max(200*time.Millisecond, 15*(c.RTT+c.Jitter)) }

// Length is how long it is measured: at least that long, and longer where a round trip is.
func (c Cell) Length(least time.Duration) time.Duration {
	return max(least, 30*c.RTT, 3*c.WarmUp()/2)
}

// Cells are all that the table of goodputs has.
func Cells() (cs []Cell) {
	for _, loss := range []float64{0, 0.1, 1, 5, 20} {
		for _, burst := range []float64{1, 8} {
			if loss == 0 && burst > 1 {
				continue
			}
			for _, rtt := range []time.Duration{100 * time.Microsecond, 10 * time.Millisecond,
				50 * time.Millisecond} {
				for _, jitter := range []time.Duration{0, 200 * time.Microsecond, 5 * time.Millisecond} {
					cs = append(cs, Cell{Loss: loss, Burst: burst, RTT: rtt, Jitter: jitter})
				}
			}
		}
	}
	return cs
}

// Gather is when a frame that is due at a time arrives where frames that are due near each other
// arrive together: machines look at their links at times, the more seldom the longer a path is.
func (c Cell) Gather(due time.Duration) time.Duration {
	grain := min(c.RTT/200, 100*time.Microsecond)
	if grain < 20*time.Microsecond {
		return due
	}
	return (due + grain - 1) / grain * grain
}
