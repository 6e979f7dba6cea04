package needtest

import (
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that is to fail.
type failing struct {
	*testing.T
	text string
}

func (f *failing) Fatalf(string, ...any) { f.text = "failed" }

// It looks again for a minute, and not at once: who brings it about has the processor.
func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, looks := time.Now(), 0
		Eventually(t, "the third look", func() bool { looks++; return looks == 3 })
		if took := time.Since(begin); looks != 3 || took == 0 || took > 20*time.Millisecond {
			t.Errorf("%d looks in %v", looks, took)
		}
		begin = time.Now()
		f := &failing{T: t}
		Eventually(f, "nothing", func() bool { return false })
		if took := time.Since(begin); f.text == "" || took < patience || took > 2*patience {
			t.Errorf("after %v: %q", took, f.text)
		}
	})
}
