package netstack_test

import (
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// A stack that is closed while segments come leaves none of them behind: each memory of gVisor's is
// counted, and the test's process ends with an error if one is not let go of (netstacktest.Main).
func TestCloseUnderSegments(t *testing.T) {
	for range 30 {
		sw := ethswitch.New(ethswitch.Config{})
		a, b := netstacktest.NewStack(t, sw, 1, 1500), netstacktest.NewStack(t, sw, 2, 1500)
		var wg sync.WaitGroup
		begun := make(chan struct{}, 64)
		for range 8 {
			x, y := netstacktest.Connect(t, a, b, false)
			to, from := netstacktest.NewBell(x), netstacktest.NewBell(y)
			wg.Go(func() {
				begun <- struct{}{}
				_ = netstacktest.Write(x, to, 1<<40) // until it is reset
			})
			wg.Go(func() { _ = netstacktest.Read(y, from, 1<<40) })
		}
		for range 8 {
			<-begun
		}
		b.Close()
		a.Close()
		wg.Wait()
	}
}
