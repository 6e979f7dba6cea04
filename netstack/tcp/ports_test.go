package tcp_test

import (
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// Ports of connections that a stack makes stay out of the range from which listeners are given
// theirs.
func TestConnectPorts(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	a, b := netstacktest.NewStack(t, sw, 1, 1500), netstacktest.NewStack(t, sw, 2, 1500)
	for range 50 {
		from, to := netstacktest.Connect(t, a, b, false)
		if p := from.LocalAddr().Port(); p < 16384 || p >= 32768 {
			t.Fatalf("a connection comes from port %d", p)
		}
		from.Abort()
		to.Abort()
	}
}
