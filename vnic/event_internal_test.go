package vnic

import (
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// When a network is lost all QPs have an event each, and their last WQE: all wait to be taken.
func TestEventsOfAll(t *testing.T) {
	d, err := New(Config{Name: "vnic0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := d.Open(ContextConfig{})
	if err != nil {
		t.Fatal(err)
	}
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
