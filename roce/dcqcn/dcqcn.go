package dcqcn

import "time"

// A Config is the parameters of a flow's ends. Rates are in octets a second.
type Config struct {
	Line float64 // the rate that needs no limit
	Min  float64 // the rate that no CNP takes a flow below

	// Gain is how much a CNP counts in the estimate of the congestion, between 0 and 1.
	Gain float64
	// Alpha is after how long without a CNP the estimate goes down.
	Alpha time.Duration
	// Timer and Octets are after how long, and how many octets sent, the rate goes up.
	Timer  time.Duration
	Octets int
	// Steps is how many times the rate goes half of the way back to where it was cut; then what it
	// goes to goes up, too: by Additive, and by Hyper times the number of steps when time and octets
	// have both come so far.
	Steps           int
	Additive, Hyper float64

	// Interval is how often the rate is cut at most, and how often the peer is sent a CNP.
	Interval time.Duration
	// Burst is for how long a flow that could send and has not may send at once.
	Burst time.Duration
}

// Default is the parameters of the paper, but for the timer that raises the rate, which is that of
// adapters, and what is raised by: rates here are lower. The burst is what timers of programs are
// late by.
func Default() Config {
	return Config{
		Line: 5e9, Min: 1e5, Gain: 1. / 256, Alpha: 55 * time.Microsecond,
		Timer: 300 * time.Microsecond, Octets: 10 << 20, Steps: 5, Additive: 1e6, Hyper: 1e7,
		Interval: 50 * time.Microsecond, Burst: time.Millisecond,
	}
}

// A Limiter is the reaction point of a flow: what its sender does about CNPs. It has one owner at a
// time.
type Limiter struct {
	cfg     *Config
	limited bool

	rate, target float64 // present; where it comes from and goes back to
	alpha        float64 // the estimate of the congestion, 0 to 1

	cut      time.Time // when the rate was last cut
	alphaDue time.Time
	timerDue time.Time
	octets   int // sent since the octets last counted as a step
	timers   int // steps by time, since the last cut
	counts   int // and by octets

	next time.Time // when the next packet may go out
}

// NewLimiter makes a Limiter of a new flow. cfg stays as it is.
func NewLimiter(cfg *Config) Limiter { return Limiter{cfg: cfg, alpha: 1} }

// Limited reports whether there is a limit at all. Without one neither Ready nor Sent need be
// called.
func (l *Limiter) Limited() bool { return l.limited }

// Rate is how many octets a second may go out.
func (l *Limiter) Rate() float64 {
	if !l.limited {
		return l.cfg.Line
	}
	return l.rate
}

// CNP takes note of a CNP of the peer.
func (l *Limiter) CNP(now time.Time) {
	if !l.limited {
		*l = Limiter{cfg: l.cfg, limited: true, rate: l.cfg.Line, alpha: 1, next: now}
	} else {
		l.pass(now)
		if !l.limited {
			l.CNP(now)
			return
		}
		if now.Sub(l.cut) < l.cfg.Interval {
			return
		}
	}
	l.target = l.rate
	l.rate = max(l.rate*(1-l.alpha/2), l.cfg.Min)
	l.alpha = (1-l.cfg.Gain)*l.alpha + l.cfg.Gain
	l.cut, l.alphaDue, l.timerDue = now, now.Add(l.cfg.Alpha), now.Add(l.cfg.Timer)
	l.octets, l.timers, l.counts = 0, 0, 0
}

// pass does what was due by now.
func (l *Limiter) pass(now time.Time) {
	for l.limited {
		switch {
		case !l.alphaDue.After(now) && !l.alphaDue.After(l.timerDue):
			l.alpha *= 1 - l.cfg.Gain
			l.alphaDue = l.alphaDue.Add(l.cfg.Alpha)
		case !l.timerDue.After(now):
			l.timers++
			l.timerDue = l.timerDue.Add(l.cfg.Timer)
			l.raise()
		default:
			return
		}
	}
}

// raise raises the rate by a step: fast recovery, then additive, then hyper increase.
func (l *Limiter) raise() {
	steps := l.cfg.Steps
	switch {
	case min(l.timers, l.counts) > steps:
		l.target += float64(min(l.timers, l.counts)-steps) * l.cfg.Hyper
	case max(l.timers, l.counts) > steps:
		l.target += l.cfg.Additive
	}
	l.target = min(l.target, l.cfg.Line)
	l.rate = (l.rate + l.target) / 2
	if l.rate > 0.99*l.cfg.Line { // half of the way, again and again, does not get there
		l.limited = false
	}
}

// Ready reports whether a packet may go out now; at is when one may if not.
func (l *Limiter) Ready(now time.Time) (ok bool, at time.Time) {
	if l.limited {
		l.pass(now)
	}
	return !l.limited || !l.next.After(now), l.next
}

// Sent takes note of a packet of n octets that goes out now.
func (l *Limiter) Sent(now time.Time, n int) {
	if !l.limited {
		return
	}
	// Who wakes a little late has not lost its turn.
	if early := now.Add(-l.cfg.Burst); l.next.Before(early) {
		l.next = early
	}
	l.next = l.next.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	for l.octets += n; l.limited && l.octets >= l.cfg.Octets; l.octets -= l.cfg.Octets {
		l.counts++
		l.raise()
	}
}

// A Notifier is the notification point of a flow. The zero Notifier has not sent a CNP. It has one
// owner at a time.
type Notifier struct{ last time.Time }

// Marked says that a packet of the flow came marked, and reports whether its sender is to be told.
func (n *Notifier) Marked(cfg *Config, now time.Time) bool {
	if !n.last.IsZero() && now.Sub(n.last) < cfg.Interval {
		return false
	}
	n.last = now
	return true
}
