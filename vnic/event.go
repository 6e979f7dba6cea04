package vnic

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// maxAsync bounds the events that wait for NextAsyncEvent; later ones are dropped. A network that
// is lost ends all connections at once: each QP has the fault and its last WQE to tell then.
func (l *Limits) maxAsync() int { return 2*l.QP + 2*l.SRQ + l.CQ }

type asyncQueue struct {
	mu   sync.Mutex
	evs  []rdma.AsyncEvent // +checklocks:mu
	wake chan struct{}     // one slot
}

// event reports something that happened to an object outside of any request.
func (c *Context) event(t rdma.AsyncEventType, object uint32, cause *rdma.TerminateError) {
	ev := rdma.AsyncEvent{Type: t, Object: object, Time: time.Now(), Cause: cause}
	if c.cfg.OnAsync != nil {
		c.cfg.OnAsync(ev)
		return
	}
	q := &c.async
	q.mu.Lock()
	if len(q.evs) < c.limits.maxAsync() {
		q.evs = append(q.evs, ev)
	}
	q.mu.Unlock()
	signal(q.wake)
}

// SetPort says whether the network of d is there; in the beginning it is. A change is an event for
// all that have opened d, PORT_ERR or PORT_ACTIVE, and nothing else: connections live as long as
// their transport is patient.
func (d *Device) SetPort(active bool) { d.changePort(func() { d.portDown = !active }) }

// HoldPort has d look as if its network were gone, whatever SetPort says, until it was called with
// false as often as with true.
func (d *Device) HoldPort(down bool) {
	d.changePort(func() {
		if down {
			d.portHolds++
		} else {
			d.portHolds--
		}
	})
}

// changePort tells of what change, which is called with the device locked, has changed.
func (d *Device) changePort(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock() // so that events have the order of the calls
	was := d.portDown || d.portHolds > 0
	change()
	switch is := d.portDown || d.portHolds > 0; {
	case is && !was:
		d.tellLocked(rdma.EventPortErr)
	case was && !is:
		d.tellLocked(rdma.EventPortActive)
	}
}

// PortActive is what SetPort has said last, unless HoldPort says otherwise.
func (d *Device) PortActive() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.portDown && d.portHolds <= 0
}

// Tell has all that have opened d hear of an event that is about no object.
func (d *Device) Tell(t rdma.AsyncEventType) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tellLocked(t)
}

// tellLocked is Tell with the device locked.
//
// +checklocks:d.mu
func (d *Device) tellLocked(t rdma.AsyncEventType) {
	for c := range d.contexts {
		c.event(t, 0, nil)
	}
}

// Break has d fail as a whole, as a card does whose firmware has: all that have opened it are told,
// and each queue pair goes to Error. What is made later works.
func (d *Device) Break() {
	d.Tell(rdma.EventDeviceFatal)
	for _, qp := range d.qpList() {
		qp.callAsync(func() { qp.toError(errMade) })
	}
}

// Look has each queue pair of d look for work. It does not wait.
func (d *Device) Look() {
	for _, qp := range d.qpList() {
		qp.wake()
	}
}

// BreakCQs has each completion queue of d that a queue pair uses lose a completion.
func (d *Device) BreakCQs() {
	for _, qp := range d.qpList() {
		qp.BreakCQs()
	}
}

// EndKeys ends what the keys of all regions of d give, as if they had been deregistered.
func (d *Device) EndKeys() {
	for _, c := range d.contextList() {
		for _, m := range c.mem.MRs() {
			m.End()
		}
	}
}

// signal puts a token into a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// NextAsyncEvent blocks until there is an event, ctx ends, or c is closed.
func (c *Context) NextAsyncEvent(ctx context.Context) (rdma.AsyncEvent, error) {
	q := &c.async
	for {
		q.mu.Lock()
		if len(q.evs) > 0 {
			ev := q.evs[0]
			q.evs = q.evs[1:]
			more := len(q.evs) > 0
			q.mu.Unlock()
			if more {
				signal(q.wake)
			}
			return ev, nil
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return rdma.AsyncEvent{}, ctx.Err()
		case <-c.stop:
			return rdma.AsyncEvent{}, fmt.Errorf("device %s: %w", c.dev.cfg.Name, rdma.ErrClosed)
		}
	}
}

// termError is the form in which users see a cause.
func termError(code iwarp.TermCode, remote bool) *rdma.TerminateError {
	return &rdma.TerminateError{Remote: remote, Layer: code.Layer, Type: code.Type, Code: code.Code,
		Text: code.Text()}
}
