package daemon

import (
	"strings"
	"testing"

	"github.com/vrnic/vrnic/vnic"
)

// The table's defaults are those of a device that is told nothing, and each name sets its own.
func TestPeerLimits(t *testing.T) {
	var none PeerLimits
	dev := DefaultDevice()
	d, err := vnic.New(none.config(vnic.Config{Name: dev.Name, Addrs: dev.Addrs}))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := d.Config()
	got := PeerLimits{c.MaxPending, c.MaxPendingPerPeer, c.MaxHalfOpen, c.MaxHalfOpenPerPeer,
		c.MaxConnsPerPeer}
	for i, l := range PeerLimitTable {
		if *l.field(&got) != l.Default {
			t.Errorf("%s: the default is %d, a device has %d", l.Name, l.Default, *l.field(&got))
		}
		var set PeerLimits
		if known, err := set.Set(l.Name + "=7"); !known || err != nil {
			t.Errorf("%s=7: known %t, %v", l.Name, known, err)
		}
		for j, other := range PeerLimitTable {
			if n := *other.field(&set); (n == 7) != (i == j) {
				t.Errorf("%s=7 makes %s %d", l.Name, other.Name, n)
			}
		}
		for _, bad := range []string{"0", "-1", "x", "", "1048577"} {
			if known, err := set.Set(l.Name + "=" + bad); !known || err == nil ||
				!strings.Contains(err.Error(), l.Name) {
				t.Errorf("%s=%s: known %t, %v", l.Name, bad, known, err)
			}
		}
	}
	if known, err := got.Set("qps=7"); known || err != nil {
		t.Errorf("a limit of others: known %t, %v", known, err)
	}
	all := PeerLimits{1, 2, 3, 4, 5}
	if c := all.config(vnic.Config{}); c.MaxPending != 1 || c.MaxPendingPerPeer != 2 ||
		c.MaxHalfOpen != 3 || c.MaxHalfOpenPerPeer != 4 || c.MaxConnsPerPeer != 5 {
		t.Errorf("a device is given %+v", c)
	}
}
