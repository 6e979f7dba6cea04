package dcqcn_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/dcqcn"
)

var epoch = time.Unix(1000, 0)

// ROCE-227, 228: without a CNP there is no limit, and with one the rate is cut once an interval and
// comes back in the three ways.
func TestLimiter(t *testing.T) {
	cfg := Default()
	l := NewLimiter(&cfg)
	now := epoch
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > want/1e6 {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	l.Sent(now, 1<<30)
	if ok, _ := l.Ready(now); !ok || l.Limited() || l.Rate() != cfg.Line {
		t.Errorf("without a CNP: %t, limited %t, rate %g", ok, l.Limited(), l.Rate())
	}
	l.CNP(now)
	near("the first CNP", l.Rate(), cfg.Line/2)
	now = now.Add(cfg.Interval - 1)
	l.CNP(now)
	near("another in the interval", l.Rate(), cfg.Line/2)
	now = now.Add(1)
	l.CNP(now)
	near("and behind it", l.Rate(), cfg.Line/4)

	want, target := cfg.Line/4, cfg.Line/2
	for range cfg.Steps {
		now = now.Add(cfg.Timer)
		want = (want + target) / 2
		l.Ready(now)
		near("fast recovery", l.Rate(), want)
	}
	now = now.Add(cfg.Timer)
	target += cfg.Additive
	want = (want + target) / 2
	l.Ready(now)
	near("additive increase", l.Rate(), want)
	for range cfg.Steps {
		l.Sent(now, cfg.Octets)
		target += cfg.Additive
		want = (want + target) / 2
		near("by octets", l.Rate(), want)
	}
	for i := range 3 {
		// The sixth step by octets is as many as there were by time.
		if i > 0 {
			now = now.Add(cfg.Timer)
			target += cfg.Hyper * float64(i)
			want = (want + target) / 2
			l.Ready(now)
			near("hyper increase by time", l.Rate(), want)
		}
		l.Sent(now, cfg.Octets)
		target += cfg.Hyper * float64(i+1)
		want = (want + target) / 2
		near("hyper increase by octets", l.Rate(), want)
	}
	l.Ready(now.Add(time.Hour))
	if l.Limited() {
		t.Errorf("an hour later: rate %g", l.Rate())
	}
	l.CNP(now.Add(time.Hour))
	near("a CNP after all was over", l.Rate(), cfg.Line/2)
	for i := range 1000 {
		l.CNP(now.Add(time.Hour + time.Duration(i)*cfg.Interval))
	}
	near("CNPs without end", l.Rate(), cfg.Min)
}

// The packets of a flow go out at its rate, whoever wakes late, and a pause saves no more than a
// burst.
func TestPace(t *testing.T) {
	cfg := Default()
	cfg.Timer, cfg.Octets = time.Hour, 1<<40 // the rate stays
	l := NewLimiter(&cfg)
	now := epoch
	for i := range 6 {
		l.CNP(now.Add(time.Duration(i) * cfg.Interval))
	}
	sent := 0
	start := now.Add(time.Second)
	for now = start; now.Sub(start) < time.Second; {
		ok, at := l.Ready(now)
		if !ok {
			now = at.Add(20 * time.Microsecond)
			continue
		}
		l.Sent(now, 1000)
		sent += 1000
	}
	want := l.Rate()
	if got := float64(sent); got < want*0.999 || got > want*1.001+l.Rate()*cfg.Burst.Seconds() {
		t.Errorf("%g octets in a second, the rate is %g", got, want)
	}
}

// ROCE-226: one CNP an interval.
func TestNotifier(t *testing.T) {
	cfg := Default()
	var n Notifier
	told := 0
	for i := range 1000 { // in 10 ms
		if n.Marked(&cfg, epoch.Add(time.Duration(i)*10*time.Microsecond)) {
			told++
		}
	}
	if told != 200 {
		t.Errorf("%d CNPs in 10 ms, want one each 50 us: 200", told)
	}
}

// A flow sends all it may through the bottleneck.
type flow struct {
	l        Limiter
	n        Notifier
	from     time.Time // begins then
	wake     time.Time
	notified []time.Time
}

// A bottleneck is a switch's queue of so many octets a second, that marks packets, the likelier the
// longer it is, and drops what does not fit.
type bottleneck struct {
	rate           float64
	low, high, max float64 // octets of the queue: none are marked, all are, none are taken
	queue          float64
	at             time.Time
	dropped        int
}

func (b *bottleneck) pass(now time.Time) {
	b.queue = max(0, b.queue-b.rate*now.Sub(b.at).Seconds())
	b.at = now
}

// ROCE-228: flows that come one behind the other through a bottleneck share it, which is in use all
// the time, and whose queue has no room for long; when one goes the other has it all.
func TestSharing(t *testing.T) {
	for _, rate := range []float64{125e6, 1.25e9} { // 1 and 10 Gbit/s
		cfg := Default()
		r := rand.New(rand.NewPCG(1, 2))
		const size, rtt = 1024, 20 * time.Microsecond
		flows := []*flow{{l: NewLimiter(&cfg), from: epoch},
			{l: NewLimiter(&cfg), from: epoch.Add(200 * time.Millisecond)}}
		b := &bottleneck{rate: rate, low: 30e3, high: 300e3, max: 4e6, at: epoch}
		end := epoch.Add(2 * time.Second)
		gone := epoch.Add(time.Second)
		for _, f := range flows {
			f.wake = f.from
		}
		type span struct{ from, to time.Time }
		both := span{epoch.Add(600 * time.Millisecond), gone}
		alone := span{epoch.Add(1500 * time.Millisecond), end}
		var shared [2]float64
		var only, longest float64
		for {
			f := flows[0]
			which := 0
			if flows[1].wake.Before(f.wake) {
				f, which = flows[1], 1
			}
			now := f.wake
			if !now.Before(end) {
				break
			}
			if which == 1 && !now.Before(gone) {
				f.wake = end
				continue
			}
			for len(f.notified) > 0 && !f.notified[0].After(now) {
				f.l.CNP(f.notified[0])
				f.notified = f.notified[1:]
			}
			ok, at := f.l.Ready(now)
			if !ok {
				f.wake = at
				if len(f.notified) > 0 && f.notified[0].Before(at) {
					f.wake = f.notified[0]
				}
				continue
			}
			f.l.Sent(now, size)
			f.wake = now.Add(time.Duration(size / cfg.Line * 1e9)) // its own link
			b.pass(now)
			if b.queue+size > b.max {
				b.dropped++
				continue
			}
			b.queue += size
			if now.After(both.from) {
				longest = max(longest, b.queue)
			}
			if p := (b.queue - b.low) / (b.high - b.low); p > 0 && (p >= 1 || r.Float64() < p/10) {
				when := now.Add(rtt + time.Duration(b.queue/b.rate*1e9))
				if f.n.Marked(&cfg, when) {
					f.notified = append(f.notified, when)
				}
			}
			if !now.Before(both.from) && now.Before(both.to) {
				shared[which] += size / both.to.Sub(both.from).Seconds()
			}
			if !now.Before(alone.from) {
				only += size / alone.to.Sub(alone.from).Seconds()
			}
		}
		sum := shared[0] + shared[1]
		t.Logf("%g octets/s: %.3f and %.3f of it, then %.3f; queue up to %.0f; %d dropped", rate,
			shared[0]/rate, shared[1]/rate, only/rate, longest, b.dropped)
		if sum < 0.9*rate || min(shared[0], shared[1]) < 0.4*sum {
			t.Errorf("of %g octets a second they have %g and %g", rate, shared[0], shared[1])
		}
		if only < 0.9*rate {
			t.Errorf("alone it has %g of %g octets a second", only, rate)
		}
		if longest > b.max/2 {
			t.Errorf("%g octets wait in the bottleneck", longest)
		}
	}
}
