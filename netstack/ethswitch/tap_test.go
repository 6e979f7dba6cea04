package ethswitch_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
)

// A watcher notes what it sees.
type watcher struct {
	mu  sync.Mutex
	log []string
}

func (w *watcher) See(f *frame.Frame, in bool) {
	dst, src := f.Addresses()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%v %d to %d", in, src[5], dst[5]))
}

func (w *watcher) want(t *testing.T, why string, log ...string) {
	t.Helper()
	if got := strings.Join(w.log, ", "); got != strings.Join(log, ", ") {
		t.Errorf("%s: seen is %q, want %q", why, got, log)
	}
	w.log = nil
}

// A tap sees what goes through its port, both ways, until it is taken away; what another port has
// it does not see, nor what the Switch refuses.
func TestTap(t *testing.T) {
	l := newLab(t, 3)
	var w, second watcher
	remove, err := l.sw.Tap("p1", &w)
	if err != nil {
		t.Fatal(err)
	}
	l.want("flooded", 0, frametest.MAC(1), frametest.MAC(0), 1, 2)
	l.want("an answer", 1, frametest.MAC(0), frametest.MAC(1), 0)
	l.want("past it", 2, frametest.MAC(0), frametest.MAC(2), 0)
	l.want("refused", 1, frametest.MAC(0), frametest.Broadcast)
	w.want(t, "one tap", "false 0 to 1", "true 1 to 0")

	also, err := l.sw.Tap("p1", &second)
	if err != nil {
		t.Fatal(err)
	}
	l.want("to both", 0, frametest.MAC(1), frametest.MAC(0), 1)
	w.want(t, "the first of two", "false 0 to 1")
	second.want(t, "the second", "false 0 to 1")
	remove()
	remove()
	l.want("to the second", 0, frametest.MAC(1), frametest.MAC(0), 1)
	also()
	l.want("to none", 0, frametest.MAC(1), frametest.MAC(0), 1)
	w.want(t, "taken away")
	second.want(t, "left, and then taken away, too", "false 0 to 1")

	if _, err := l.sw.Tap("p9", &w); err == nil {
		t.Error("there is a tap on a port that there is not")
	}
}
