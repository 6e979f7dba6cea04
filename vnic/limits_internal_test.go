package vnic

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/vnic/internal/cm"
)

// The defaults that docs/limits.md names are those of the code.
func TestLimitsAsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Name: "vnic0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := d.Config()
	l, to := c.Limits, c.Timeouts
	for name, values := range map[string]string{
		"`Limits.PD`, `MR`, `CQ`, `QP`, `SRQ`, `CMID`": fmt.Sprintf("%d, %d, %d, %d, %d, %d", l.PD, l.MR,
			l.CQ, l.QP, l.SRQ, l.CMID),
		"`Limits.Depth`, `CQDepth`, `SGE`, `Inline`": fmt.Sprintf("%d, %d, %d, %d", l.Depth, l.CQDepth,
			l.SGE, l.Inline),
		"`Limits.IRD`, `ORD`": fmt.Sprint(l.IRD),
		"`Limits.MRLen`, `MRTotal`": fmt.Sprintf("%d TiB, %d TiB", l.MRLen>>40,
			l.MRTotal>>40),
		"`Limits.Pending`": fmt.Sprint(l.Pending),
		"`Config.MaxHalfOpenPerPeer`, `MaxHalfOpen`": fmt.Sprintf("%d, %d", c.MaxHalfOpenPerPeer,
			c.MaxHalfOpen),
		"`Config.MaxPendingPerPeer`, `MaxPending`": fmt.Sprintf("%d, %d", c.MaxPendingPerPeer,
			c.MaxPending),
		"the backlog of a listener": fmt.Sprint(cm.DefaultBacklog),
		"`Config.MaxConnsPerPeer`":  fmt.Sprint(c.MaxConnsPerPeer),
		"`Timeouts.MPARequest`":     fmt.Sprintf("%.0f s", to.MPARequest.Seconds()),
		"`Timeouts.ReceiveHold`":    fmt.Sprintf("%.0f s", to.ReceiveHold.Seconds()),
		"`Timeouts.Idle`":           map[bool]string{true: "off", false: "on"}[to.Idle <= 0],
	} {
		if row := fmt.Sprintf("\n| %s | %s |", name, values); !strings.Contains(string(b), row) {
			t.Errorf("docs/limits.md has no row%s", row)
		}
	}
}

// What waits for queue pairs is bounded for a user, however many contexts are his.
func TestInboxesByUser(t *testing.T) {
	x := newInboxes()
	a, b, c := x.join(1), x.join(1), x.join(2)
	if a != b || a == c {
		t.Error("contexts of one user have a bound each, or those of two have one together")
	}
	if one, other := x.join(nil), x.join(nil); one == other {
		t.Error("contexts of nobody's have a bound together")
	}
	x.leave(1)
	if x.join(1) != a {
		t.Error("a context has gone, and another one has a bound of its own")
	}
	x.leave(nil)
	for _, user := range []int{1, 1, 2} {
		x.leave(user)
	}
	if len(x.of) != 0 {
		t.Errorf("%d users are left", len(x.of))
	}
}
