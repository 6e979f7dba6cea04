package daemon_test

import (
	"runtime"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// When a program that had thousands of objects has ended the daemon looks for garbage, and gives
// its memory back: such a collection is a forced one.
func TestMemoryGoesBack(t *testing.T) {
	d := daemontest.Start(t)
	forced := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumForcedGC
	}
	c := d.Dial()
	dev := daemontest.Open(t, c, "vrnic0")
	for range 4096 {
		if _, err := dev.AllocPD(); err != nil {
			t.Fatal(err)
		}
	}
	before := forced()
	c.Close()
	if !needtest.Becomes(func() bool { return forced() > before }) {
		t.Error("4096 objects have ended, and nobody has given their memory back")
	}
}
