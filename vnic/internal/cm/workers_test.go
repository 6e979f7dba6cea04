package cm

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What is started runs, all at the same time if need be; some goroutines that are done wait for
// more, and end with the user.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c workers
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
		c.close()
		done := make(chan struct{})
		go func() { c.wg.Wait(); close(done) }()
		if c.start(func() { t.Error("started in workers that are closed") }) {
			t.Error("workers that are closed take something to do")
		}
		synctest.Wait()
		select {
		case <-done:
			t.Error("done before what is under way")
		default:
		}
		close(hold)
		<-done // with all its goroutines
	})
}
