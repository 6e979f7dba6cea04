package ethswitch

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/frame"
)

// TestMadeUpAddresses: a port that makes addresses up keeps others from the table, or has it looked
// through, once a second at most.
func TestMadeUpAddresses(t *testing.T) {
	now := time.Unix(1, 0)
	const ageing = sweepEvery / 2
	tab := &table{now: func() time.Time { return now }, ageing: ageing,
		entries: map[frame.MAC]*entry{}}
	made := func(i int) frame.MAC { return frame.MAC{2, 1, 0, byte(i >> 16), byte(i >> 8), byte(i)} }
	other, liar := &Attachment{}, &Attachment{}
	own, host := frame.MAC{2, 2}, frame.MAC{2, 3}
	tab.pin(own, other)
	tab.learn(host, other)
	for i := range maxLearned + 1 { // the last one has no room, and what is old is looked for
		tab.learn(made(i), liar)
	}
	if liar.behind.learned != maxLearned || !liar.behind.swept.Equal(now) {
		t.Fatalf("%d addresses, swept at %v", liar.behind.learned, liar.behind.swept)
	}
	now = now.Add(sweepEvery - 1) // and all is old
	done := make(chan struct{})
	tab.mu.RLock() // somebody sends
	go func() {
		for i := range 1000 {
			if !tab.learn(made(1<<16+i), liar) {
				t.Error("its frames are dropped")
			}
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it waits for those who look into the table")
	}
	tab.mu.RUnlock()
	if liar.behind.learned != maxLearned {
		t.Errorf("%d addresses: the table was looked through again", liar.behind.learned)
	}
	if tab.learn(own, liar) {
		t.Error("another port's own address")
	}
	now = now.Add(1)
	tab.learn(made(1<<20), liar)
	if liar.behind.learned != 1 || tab.lookup(made(1<<20)) != liar {
		t.Errorf("%d addresses when a second is over", liar.behind.learned)
	}
	// Nothing of the other port was looked at, and the books are right.
	if n := len(tab.behind(other)); len(other.behind.entries) != 2 || n != 1 || len(tab.entries) != 3 {
		t.Errorf("%d and %d addresses behind the other port, %d in all", len(other.behind.entries), n,
			len(tab.entries))
	}
	tab.learn(host, liar) // it has moved
	tab.forget(other)
	if tab.lookup(own) != nil || tab.lookup(host) != liar || len(other.behind.entries) != 0 {
		t.Error("what a port had is not forgotten with it")
	}
	tab.forget(liar)
	if len(tab.entries) != 0 || liar.behind.learned != 0 || other.behind.learned != 0 {
		t.Errorf("%d entries are left", len(tab.entries))
	}
}
