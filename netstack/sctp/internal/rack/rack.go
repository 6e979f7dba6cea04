// Package rack tells lost packets from late ones by time: RFC 8985 with SCTP's TSNs in place of
// TCP's sequence numbers. What was sent before something that has arrived already is lost once it
// is later than that by the reordering window. The window is as wide as lateness has been seen to
// be on this path.
//
// Times are durations since an instant of the caller's choice. There is no clock here.
package rack

import "time"

// A Detector is what is known of the order of arrival on one path. The zero value is ready.
type Detector struct {
	// Of all that has arrived, what was sent last: RACK.segment, RACK.xmit_ts and RACK.rtt.
	any   bool
	order uint32
	rtt   time.Duration

	min       [2]time.Duration // shortest round trips of this span of time and of the one before
	minBegan  time.Duration
	reordered bool          // reordering has been seen
	window    time.Duration // what lateness there has been asks for
	persist   int           // recoveries until window is forgotten: section 6.2, step 4
}

const (
	minSpan    = 10 * time.Second // how long a shortest round trip counts, and at most twice that
	persistFor = 16               // recoveries without a late packet until the window is narrow again
)

// before says whether a transmission was before the last that has arrived.
func (d *Detector) before(order uint32) bool { return d.any && int32(order-d.order) < 0 }

// Delivered says that what was sent for the last time at sent has arrived at now. It was the
// order-th of all transmissions, a number that wraps. resent: it was sent more than once, so that
// it is not certain which one arrived.
func (d *Detector) Delivered(now, sent time.Duration, order uint32, resent bool) {
	rtt := now - sent
	if resent && rtt < d.MinRTT() {
		return // so soon only the first one can have been acknowledged: section 6.2, step 2
	}
	if !resent {
		d.shortest(now, rtt)
		if d.before(order) {
			d.late(rtt - d.rtt)
		}
	}
	if !d.before(order) {
		d.any, d.order, d.rtt = true, order, rtt
	}
}

func (d *Detector) shortest(now, rtt time.Duration) {
	if d.min[0] == 0 || now-d.minBegan > minSpan {
		d.min[1], d.min[0], d.minBegan = d.min[0], rtt, now
	}
	d.min[0] = max(min(d.min[0], rtt), 1)
}

// MinRTT is the shortest round trip of the last seconds; 0: none is known.
func (d *Detector) MinRTT() time.Duration {
	if d.min[1] == 0 {
		return d.min[0]
	}
	return min(d.min[0], d.min[1])
}

// late notes that something arrived by that much behind what was sent after it.
func (d *Detector) late(by time.Duration) {
	d.reordered = true
	by = max(by, 0)
	if by > d.window/2 {
		d.persist = persistFor
	}
	d.window = max(d.window, by+by/4)
}

// Spurious says that what was found lost has arrived after all, after a round trip of rtt.
func (d *Detector) Spurious(rtt time.Duration) { d.late(rtt - d.MinRTT()) }

// Recovered says that a recovery has begun for losses, so that the window is forgotten by and by.
func (d *Detector) Recovered() {
	if d.persist > 0 {
		if d.persist--; d.persist == 0 {
			d.window = 0
		}
	}
}

// Reordered says whether there has been reordering. Where there has not, three later packets that
// have arrived are enough: section 6.2, step 4.
func (d *Detector) Reordered() bool { return d.reordered }

// Window is the reordering window: a quarter of the shortest round trip or what lateness there was,
// but no more than most.
func (d *Detector) Window(most time.Duration) time.Duration {
	return min(max(d.window, d.MinRTT()/4, 1), most)
}

// Lost says until when the order-th transmission, at sent, may still arrive with this reordering
// window. ok is false if nothing that was sent after it has arrived: then nothing is known.
func (d *Detector) Lost(sent time.Duration, order uint32, window time.Duration) (by time.Duration,
	ok bool) {
	if !d.before(order) {
		return 0, false
	}
	return sent + d.rtt + window, true
}

// Forget drops all that is known: packets take another way now.
func (d *Detector) Forget() { *d = Detector{} }
