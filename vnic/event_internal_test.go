package vnic

import (
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// When a network is lost all QPs have an event each, and their last WQE: all wait to be taken.
func TestEventsOfAll(t *testing.T) {
	c := newBare(t)
	n := 2 * DefaultLimits().QP
	for i := range n {
		c.event(rdma.EventQPFatal, uint32(i/2), nil)
	}
	c.async.mu.Lock()
	defer c.async.mu.Unlock()
	if waits := len(c.async.evs); waits != n {
		t.Errorf("%d events of %d wait", waits, n)
	}
}
