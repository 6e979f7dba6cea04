package ring

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Litmus tests of what the rings and the direct path ask of the order of memory, with the
// operations that they do it by: docs/abi.md#waking. verbs/ringtest has those of the C library, and
// says what they cannot show where arm64 is emulated.

const litmusTimes = 100000

// both runs two threads that begin at once. Each lets others run now and then: there may be one
// processor.
func both(first, second func(i uint32)) {
	var ready atomic.Uint32
	var wg sync.WaitGroup
	for _, step := range []func(uint32){first, second} {
		wg.Go(func() {
			for ready.Add(1); ready.Load() < 2; {
				runtime.Gosched()
			}
			for i := uint32(1); i <= litmusTimes; i++ {
				if step(i); i%1024 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
}

// What was written before a stamp is there behind it.
func TestLitmusMessagePassing(t *testing.T) {
	var stamp atomic.Uint32
	data := make([]uint32, litmusTimes+1)
	both(func(i uint32) {
		data[i] = i
		stamp.Store(i)
	}, func(uint32) {
		if n := stamp.Load(); data[n] != n {
			t.Errorf("behind stamp %d there is %d", n, data[n])
		}
	})
}

// Of two that store and then look, one sees the other: a program that posts and a daemon that goes
// to sleep.
func TestLitmusStoreBuffering(t *testing.T) {
	var x, y atomic.Uint32
	var saw [2][]uint32
	for i := range saw {
		saw[i] = make([]uint32, litmusTimes+2)
	}
	both(func(i uint32) {
		x.Store(i)
		saw[0][i] = y.Load()
	}, func(i uint32) {
		y.Store(i)
		saw[1][i] = x.Load()
	})
	for i := uint32(1); i <= litmusTimes; i++ {
		if other := saw[0][i] + 1; other <= litmusTimes && saw[1][other] < i {
			t.Fatalf("step %d saw %d, and step %d saw %d", i, other-1, other, saw[1][other])
		}
	}
}

// Who closes a direction and finds that nobody is at it, or waits until he has gone on, has what it
// gives: docs/direct.md#owner.
func TestLitmusHandOver(t *testing.T) {
	var open, seq, given atomic.Uint32
	both(func(i uint32) {
		seq.Swap(2*i - 1)
		if open.Load() != 0 {
			given.Store(i)
		}
		seq.Store(2 * i)
	}, func(i uint32) {
		open.Store(1)
		for range i % 32 {
			open.Load()
		}
		open.Swap(0)
		for was := seq.Load(); was&1 != 0 && seq.Load() == was; {
			runtime.Gosched()
		}
		was := given.Load()
		for range 16 {
			if now := given.Load(); now != was {
				t.Errorf("closed at %d, and %d came", was, now)
			}
		}
	})
}
