package vnic_test

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A crowded network has connections of its own on the first ports that are chosen.
type crowded struct {
	vnic.Network
	taken int
}

func (n *crowded) Listen(addr netip.AddrPort, backlog int) (vnic.StreamListener, error) {
	if n.taken > 0 {
		n.taken--
		return nil, fmt.Errorf("listen at %v: %w", addr, syscall.EADDRINUSE)
	}
	return n.Network.Listen(addr, backlog)
}

// A free port is one that the network has free as well; a port that was asked for is not replaced.
func TestListenTakenPort(t *testing.T) {
	n := &crowded{}
	a, _ := vnictest.Pair(t, func(c *vnic.Config) {
		if c.Name == "vnic0" {
			n.Network, c.Network = c.Network, n
		}
	})
	c := vnictest.Open(t, a, vnic.ContextConfig{})
	for _, tt := range []struct {
		taken int
		port  uint16
		works bool
	}{{0, 0, true}, {5, 0, true}, {100, 0, false}, {1, 7, false}, {0, 7, true}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			n.taken = tt.taken
			l, err := c.Listen(addr(c, tt.port), 0)
			if tt.works != (err == nil) || err != nil && !isErr(err, syscall.EADDRINUSE) {
				t.Errorf("Listen: %v", err)
			}
			if l != nil {
				l.Close()
			}
			if tt.port != 0 {
				return
			}
			n.taken = tt.taken
			id, _ := newID(t, c) // one that is not bound
			if err := id.Listen(0); tt.works != (err == nil) || err != nil &&
				!isErr(err, syscall.EADDRINUSE) {
				t.Errorf("CMID.Listen: %v", err)
			} else if err == nil && id.Local().Port() == 0 {
				t.Error("no port")
			}
			id.Close()
		})
	}
	if i := a.DevInfo(); i.CMIDs != 0 {
		t.Errorf("%d CM ids are left", i.CMIDs)
	}
}
