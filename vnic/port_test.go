package vnic_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// TestSetPort: each user of the device is told once of each change of its network, and of nothing
// that has been so before.
func TestSetPort(t *testing.T) {
	dev, err := vnic.New(vnic.Config{Name: "vrnic0",
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.2/24")}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var users []*vnic.Context
	for range 2 {
		c, err := dev.Open(vnic.ContextConfig{})
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, c)
	}
	for _, active := range []bool{true, false, false, true, true} {
		dev.SetPort(active)
		if dev.PortActive() != active {
			t.Errorf("the port is active: %v, set to %v", !active, active)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for i, c := range users {
		for _, want := range []rdma.AsyncEventType{rdma.EventPortErr, rdma.EventPortActive} {
			if ev, err := c.NextAsyncEvent(t.Context()); err != nil || ev.Type != want {
				t.Errorf("user %d: %v, %v, want %v", i, ev.Type, err, want)
			}
		}
		if ev, err := c.NextAsyncEvent(over); err == nil {
			t.Errorf("user %d: one more, %v", i, ev.Type)
		}
	}
}
