package vnic

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What is started runs, all at the same time if need be; some goroutines that are done wait for more, and end with the context.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := New(Config{Name: "vnic0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Open(ContextConfig{})
		if err != nil {
			t.Fatal(err)
		}
		idle := func() int {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.idle)
		}
		const many = maxIdle + 8
		for range 3 {
			var all sync.WaitGroup
			all.Add(many)
			for range many {
				if !c.start(func() { all.Done(); all.Wait() }) {
					t.Fatal("not started")
				}
			}
			if n := idle(); n != maxIdle {
				t.Errorf("%d wait, want %d", n, maxIdle)
			}
		}
		// One after the other takes one of them.
		for range 100 {
			c.start(func() {})
			if n := idle(); n != maxIdle {
				t.Fatalf("%d wait, want %d", n, maxIdle)
			}
		}
		time.Sleep(idleTime) // what was started last was within that
		if n := idle(); n != maxIdle {
			t.Errorf("%d wait, want %d", n, maxIdle)
		}
		time.Sleep(idleTime)
		if n := idle(); n != 0 {
			t.Errorf("%d wait with nothing to do", n)
		}
		c.start(func() {})
		if n := idle(); n != 1 {
			t.Errorf("%d wait, want 1", n)
		}
		hold, held := make(chan struct{}), make(chan struct{})
		c.start(func() { close(held); <-hold })
		<-held
		c.Shutdown()
		if c.start(func() { t.Error("started in a context that is closed") }) {
			t.Error("a context that is closed takes something to do")
		}
		synctest.Wait()
		select {
		case <-c.Done():
			t.Error("done before what is under way")
		default:
		}
		close(hold)
		<-c.Done() // with all its goroutines
		d.Close()
	})
}
