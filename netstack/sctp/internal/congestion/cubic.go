// Package congestion is how a congestion window grows and shrinks: CUBIC (RFC 9438) in octets, as
// SCTP counts. It knows no chunks and has no clock; times are durations since an instant of the
// caller's choice.
package congestion

import (
	"math"
	"time"
)

const (
	cubicC = 0.4 // section 4.2, in segments a second^3
	beta   = 0.7 // section 4.6
	// friendly is what Reno's window grows by in a round trip, for as much after losses: 4.3.
	friendly = 3 * (1 - beta) / (1 + beta)
)

// Cubic is the state of congestion avoidance of one path. The zero value is that of a path that has
// had no loss.
type Cubic struct {
	max   float64       // W_max, segments
	began bool          // an epoch has
	epoch time.Duration // since when
	k     float64       // seconds from then until the window is max again
	reno  float64       // W_est
	prior float64       // cwnd_prior: the window before the last loss
	part  float64       // octets of growth that are less than one
}

// Grow gives the window after the acknowledgement of acked octets in congestion avoidance. segment
// is how long a full packet is. Section 4.2 to 4.5.
func (c *Cubic) Grow(now, rtt time.Duration, window, acked, segment int) int {
	w := float64(window) / float64(segment)
	if !c.began {
		c.began, c.epoch, c.reno, c.k = true, now, w, 0
		if w < c.max {
			c.k = math.Cbrt((c.max - w) / cubicC)
		} else {
			c.max = w
		}
	}
	segments := float64(acked) / float64(segment)
	t := (now - c.epoch).Seconds()
	rate := friendly
	if c.reno >= c.prior {
		rate = 1
	}
	c.reno += rate * segments / w
	target := min(max(c.at(t+rtt.Seconds()), w), 1.5*w)
	next := w + (target-w)/w*segments
	if c.at(t) < c.reno {
		next = max(next, c.reno)
	}
	// A window never grows by more than what has arrived, as in slow start.
	grown := min((next-w)*float64(segment), float64(acked)) + c.part
	whole := math.Floor(grown)
	c.part = grown - whole
	return window + int(whole)
}

// at is W_cubic(t).
func (c *Cubic) at(t float64) float64 { return cubicC*math.Pow(t-c.k, 3) + c.max }

// Shrink gives the window, and slow start's threshold, after a loss: section 4.6 and 4.7. least is
// what it does not go below.
func (c *Cubic) Shrink(window, segment, least int) int {
	w := float64(window) / float64(segment)
	c.prior = w
	if w < c.max {
		w *= (1 + beta) / 2 // others want more room: fast convergence
	}
	c.max, c.began, c.part = w, false, 0
	return max(int(beta*float64(window)), least)
}

// Pause says that nothing was sent for a while: what time has passed says nothing then. Section
// 5.8.
func (c *Cubic) Pause() { c.began = false }
