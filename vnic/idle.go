package vnic

import (
	"sync"
	"time"
)

// Idle connections hold what they were given for nothing: RFC 5042, section 6.4.2. Messages are
// counted anyway, so a connection is idle if nothing was counted between two looks; no message pays
// for it with a look at the clock.

// An idleness is what the last look at a QP has found.
type idleness struct {
	mu    sync.Mutex
	moved uint64    // guarded by mu: what was counted by then
	since time.Time // guarded by mu: when that was first seen
}

// idle is for how long qp's connection has been seen to do nothing, at least.
func (qp *QP) idle(p *linkInfo, now time.Time) time.Duration {
	moved := qp.counted().Moved()
	i := &qp.idleness
	i.mu.Lock()
	defer i.mu.Unlock()
	if moved != i.moved || i.since.Before(p.since) {
		i.moved, i.since = moved, now
	}
	return now.Sub(i.since)
}

// Reap disconnects, gracefully and without waiting, what has been idle for d and longer, and says
// how many connections that were. Idleness begins with the first look: Reap, or QP.Info.
func (d *Device) Reap(idle time.Duration) (n int) {
	now := time.Now()
	for _, c := range d.contextList() {
		for _, qp := range c.qpList() {
			p := qp.peek.Load()
			if p == nil || qp.idle(p, now) < idle {
				continue
			}
			qp.log("idle", "for", idle)
			qp.callAsync(qp.disconnect)
			n++
		}
	}
	d.mu.Lock()
	d.reaped += uint64(n)
	d.mu.Unlock()
	return n
}

// watchIdle reaps now and then, if the device is to.
func (d *Device) watchIdle() {
	idle := d.cfg.Timeouts.Idle
	if idle <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.reaper = time.AfterFunc(max(idle/4, time.Millisecond), func() {
		d.Reap(idle)
		d.watchIdle()
	})
}
