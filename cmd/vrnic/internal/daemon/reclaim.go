package daemon

import (
	"runtime/debug"
	"sync"
	"time"
)

// What sessions had is garbage when they have ended, but Go's runtime keeps the memory for some
// minutes, and a daemon that has nothing to do does not even look for garbage. To look costs a
// moment of a processor in proportion to what is alive, so it is done once for sessions that end
// together, and only if they had much.
const (
	reclaimObjects = 4096              // of sessions that have ended, some hundreds of octets each
	reclaimDelay   = time.Second       // from the last session's end
	reclaimMost    = 10 * reclaimDelay // from when it was due, if sessions end all the time
)

// A reclaimer gives the memory of sessions that have ended back to the operating system.
type reclaimer struct {
	free func() // nil: debug.FreeOSMemory

	mu    sync.Mutex
	ended int         // objects that have ended since the last time; +checklocks:mu
	due   time.Time   // when they were reclaimObjects; +checklocks:mu
	timer *time.Timer // +checklocks:mu
}

// sessionEnded counts the objects of a session that has ended.
func (r *reclaimer) sessionEnded(objects int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := r.ended >= reclaimObjects
	if r.ended += objects; r.ended < reclaimObjects {
		return
	}
	if !waits {
		r.due = time.Now()
	}
	switch {
	case r.timer == nil:
		r.timer = time.AfterFunc(reclaimDelay, r.reclaim)
	case time.Since(r.due) < reclaimMost:
		r.timer.Reset(reclaimDelay)
	}
}

func (r *reclaimer) reclaim() {
	r.mu.Lock()
	r.ended = 0
	r.mu.Unlock()
	if r.free != nil {
		r.free()
		return
	}
	debug.FreeOSMemory()
}

// Close ends it.
func (r *reclaimer) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	return nil
}
