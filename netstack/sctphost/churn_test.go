package sctphost_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
)

// Associations come and go, ended by either side and by aborts, and nothing is left of them.
func TestSCTPChurn(t *testing.T) {
	n := 10_000
	if netstacktest.RaceEnabled {
		n = 2_000
	}
	a, b := netstacktest.Pair(t, 1500)
	connect := connector(t, a, b)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var before int64
	var goroutines int
	const warm = 500
	for i := range n {
		if i == warm {
			before, goroutines = heap(), runtime.NumGoroutine()
		}
		from, to := connect()
		from.conn.Send(sctp.SendOptions{PPID: 16, Unordered: true}, bytes.NewReader([]byte("hello")),
			false)
		if got := <-from.got; string(got) != "hello" {
			t.Fatalf("association %d: got %q", i, got)
		}
		switch i % 3 {
		case 0:
			from.conn.Shutdown()
		case 1:
			to.conn.Shutdown()
		default:
			to.conn.Abort("enough")
		}
		<-from.down
		<-to.down
	}
	for name, s := range map[string]*sctphost.Host{"dialler": a.SCTP(), "listener": b.SCTP()} {
		if left := s.Associations(); left != 0 {
			t.Errorf("%s: %d associations are left", name, left)
		}
	}
	// What stays for a minute is the tag of each, so that its cookie is not taken again.
	const each = 256
	if grown := heap() - before; grown > int64(n-warm)*each {
		t.Errorf("the heap has grown by %d octets in %d associations", grown, n-warm)
	} else {
		t.Logf("the heap has grown by %d octets in %d associations", grown, n-warm)
	}
	needtest.Eventually(t, "the goroutines of the last associations have ended", func() bool {
		return runtime.NumGoroutine() <= goroutines+4 // the runtime's own come and go
	})
}
