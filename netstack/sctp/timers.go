package sctp

import (
	"slices"
	"time"
)

// A timerHeap holds the associations that wait for a time, the earliest first.
type timerHeap []*Association

// set moves a to where its deadline belongs, in or out.
func (h *timerHeap) set(a *Association) {
	d := a.nextDeadline()
	if d.IsZero() {
		h.remove(a)
		return
	}
	a.deadline = d
	if a.heapAt == 0 {
		*h = append(*h, a)
		a.heapAt = len(*h)
	}
	h.fix(a.heapAt - 1)
}

func (h *timerHeap) remove(a *Association) {
	i := a.heapAt - 1
	if i < 0 {
		return
	}
	last := len(*h) - 1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	a.heapAt = 0
	if i < last {
		h.fix(i)
	}
}

// all gives those that there are, in no order.
func (h timerHeap) all() []*Association { return slices.Clone(h) }

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i+1, j+1
}

func (h timerHeap) before(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }

func (h timerHeap) fix(i int) {
	for i > 0 && h.before(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h.before(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// earliest is the earlier of two times of which the zero one means never.
func earliest(t, u time.Time) time.Time {
	if t.IsZero() || !u.IsZero() && u.Before(t) {
		return u
	}
	return t
}

// nextDeadline is when the first timer of a runs out; zero if none runs.
func (a *Association) nextDeadline() time.Time {
	if a.state == StateClosed {
		return time.Time{}
	}
	t := earliest(a.t1, a.t2)
	t = earliest(t, a.t5)
	t = earliest(t, a.sackAt)
	t = earliest(t, a.probeAt)
	t = earliest(t, a.silentAt)
	for _, p := range a.paths {
		t = earliest(t, p.t3)
		t = earliest(t, p.lateAt)
		t = earliest(t, p.tailAt)
		t = earliest(t, p.beatAt)
		t = earliest(t, p.beatLost)
		t = earliest(t, p.prober.at)
	}
	return t
}

// expire runs the timers of a that are due.
func (a *Association) expire(now time.Time) {
	due := func(t *time.Time) bool {
		if t.IsZero() || t.After(now) || a.state == StateClosed {
			return false
		}
		*t = time.Time{}
		return true
	}
	if due(&a.t5) {
		a.abort(CauseUserAbort, nil, ErrTimeout)
	}
	if due(&a.t1) {
		a.setupTimeout(now)
	}
	if due(&a.t2) {
		a.shutdownTimeout(now)
	}
	if due(&a.sackAt) {
		a.sackNow = true
	}
	if due(&a.probeAt) {
		a.probe = true
	}
	if due(&a.silentAt) {
		a.down(ErrTimeout)
	}
	for _, p := range a.paths {
		if due(&p.lateAt) {
			a.findLost(now)
		}
		if due(&p.tailAt) {
			a.probeTail(now, p)
		}
		if due(&p.t3) {
			a.t3Timeout(now, p)
		}
		if due(&p.prober.at) {
			a.probeTimeout(now, p)
		}
		if due(&p.beatLost) {
			a.heartbeatTimeout(now, p)
		}
		if due(&p.beatAt) {
			a.heartbeat(now, p)
		}
	}
	a.mayBurst()
}
