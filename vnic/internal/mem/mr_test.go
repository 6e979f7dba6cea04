package mem

import (
	"runtime"
	"sync"
	"testing"
)

// Closing a region while others try to use it: whoever comes too late is refused, and Close
// returns when the last one is out.
func TestPinRace(t *testing.T) {
	for range 300 {
		m := &MR{}
		var inside, after sync.WaitGroup
		closed := false // written once nobody may be inside
		for range 4 {
			inside.Add(1)
			after.Go(func() {
				inside.Done()
				for m.Pin() {
					_ = closed // the race detector compares it with the write below
					m.Unpin()
					runtime.Gosched()
				}
			})
		}
		inside.Wait()
		m.revoke()
		m.wait()
		closed = true
		after.Wait()
	}
}
