package recovery

import (
	"math"
	"time"
)

// The constants of RFC 9438, section 4.1 and 4.6.
const (
	cubicC    = 0.4
	cubicBeta = 0.7
)

// A cubic is the state of CUBIC beside the window. Its windows are in segments. Why not Reno:
// docs/decisions.md#N4.
type cubic struct {
	wMax  float64       // the window at the last loss
	wEst  float64       // what Reno would have
	prior float64       // the window before the last loss
	k     float64       // seconds from epoch to wMax
	epoch time.Duration // when congestion avoidance began; 0: it has not since the last loss
}

// lost is told of a loss at window w, and returns what w becomes.
func (c *cubic) lost(w float64) float64 {
	c.epoch, c.prior = 0, w
	if w < c.wMax {
		c.wMax = w * (1 + cubicBeta) / 2 // fast convergence, section 4.7
	} else {
		c.wMax = w
	}
	return w * cubicBeta
}

// acked is what w becomes in congestion avoidance when so many segments are acknowledged.
func (c *cubic) acked(w, segments float64, now, rtt time.Duration) float64 {
	if c.epoch == 0 {
		c.epoch, c.wEst = max(now, 1), w
		c.wMax = max(c.wMax, w)
		c.k = math.Cbrt((c.wMax - w) / cubicC)
	}
	at := func(t time.Duration) float64 {
		d := t.Seconds() - c.k
		return cubicC*d*d*d + c.wMax
	}
	alpha := 3 * (1 - cubicBeta) / (1 + cubicBeta)
	if c.wEst >= c.prior {
		alpha = 1
	}
	c.wEst += alpha * segments / w
	if at(now-c.epoch) < c.wEst {
		return max(w, c.wEst)
	}
	target := min(max(at(now-c.epoch+rtt), w), 1.5*w)
	return w + (target-w)/w*segments
}
