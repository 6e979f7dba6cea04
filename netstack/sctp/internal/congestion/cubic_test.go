package congestion

import (
	"math"
	"testing"
	"time"
)

const segment = 1000

// run acknowledges window after window for d and returns the last.
func run(c *Cubic, now *time.Duration, rtt, d time.Duration, window int) int {
	for end := *now + d; *now < end; {
		*now += rtt
		for left := window; left > 0; left -= 2 * segment {
			window = c.Grow(*now, rtt, window, min(left, 2*segment), segment)
		}
	}
	return window
}

// After a loss the window is flat around what it was, reached after K seconds, and grows faster and
// faster beyond: RFC 9438, section 4.2.
func TestCubic(t *testing.T) {
	var c Cubic
	const rtt = 100 * time.Millisecond
	now := time.Duration(0)
	w := c.Shrink(1000*segment, segment, 4*segment)
	if w != 700*segment {
		t.Fatalf("%d of 1000", w/segment)
	}
	k := time.Duration(math.Cbrt(1000*0.3/0.4) * float64(time.Second))
	if w = run(&c, &now, rtt, k, w); w < 990*segment || w > 1010*segment {
		t.Errorf("%d after %v", w/segment, k)
	}
	if w = run(&c, &now, rtt, k, w); w < 1250*segment || w > 1350*segment {
		t.Errorf("%d after %v", w/segment, 2*k)
	}
	// A second loss before the first window is reached gives others more.
	c = Cubic{}
	c.Shrink(1000*segment, segment, 0)
	c.Shrink(700*segment, segment, 0)
	if c.max != 700*0.85 {
		t.Errorf("W_max %v", c.max)
	}
	if w := c.Shrink(5*segment, segment, 4*segment); w != 4*segment {
		t.Errorf("%d", w)
	}
}

// On a short path it grows as Reno would: about half a segment a round trip, a whole one once the
// window is what it was. Section 4.3.
func TestRenoFriendly(t *testing.T) {
	var c Cubic
	const rtt = time.Millisecond
	now := time.Duration(0)
	w := c.Shrink(20*segment, segment, 4*segment)
	w = run(&c, &now, rtt, 10*rtt, w)
	if w < 18*segment || w > 21*segment {
		t.Errorf("%d after 10 round trips", w)
	}
	was := run(&c, &now, rtt, 5*rtt, w)
	if w = run(&c, &now, rtt, 10*rtt, was); w < was+7*segment || w > was+11*segment {
		t.Errorf("%d, was %d 10 round trips ago", w, was)
	}
	// A pause is not time in which the window might have grown.
	now += time.Hour
	c.Pause()
	if got := c.Grow(now, rtt, w, segment, segment); got > w+segment {
		t.Errorf("%d, was %d", got, w)
	}
}
