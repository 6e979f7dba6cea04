package server

import (
	"runtime"
	"sync"
	"time"

	"github.com/vrnic/vrnic/shm/osmem"
)

// Waiting rules of the doorbell thread: docs/abi.md#waiting and #threat-model.
const (
	spinTime     = 5 * time.Microsecond // before blocking, if no program is blocked
	barrenWakes  = 64                   // wakes in a row without a bell
	barrenPause  = time.Millisecond     // before each read after so many
	maxArmedLook = 64                   // CQs looked at to guess whether a program is blocked
)

// A bellObj is the bell of a QP or of an SRQ.
type bellObj struct {
	number uint32
	f      func(waiting func() bool) (more bool)
	due    bool // the doorbell thread's

	mu   sync.Mutex // held while f runs
	dead bool       // +checklocks:mu
}

// addBell gives f a bell. There are as many as the session may have QPs and SRQs.
func (s *Session) addBell(f func(waiting func() bool) (more bool)) *bellObj {
	for i := s.freeBell; int(i) < len(s.bellObjs); i++ {
		if s.bellObjs[i].Load() == nil {
			b := &bellObj{number: i, f: f}
			s.bellObjs[i].Store(b)
			s.page.Use(i)
			s.freeBell = i + 1
			return b
		}
	}
	panic("shm: more QPs and SRQs than bells")
}

// endBell takes the bell back if end succeeds, which f does not overlap.
func (s *Session) endBell(b *bellObj, end func() error) error {
	b.mu.Lock() // waits for an f under way
	b.dead = true
	b.mu.Unlock()
	if err := end(); err != nil {
		b.mu.Lock()
		b.dead = false
		b.mu.Unlock()
		return err
	}
	s.bellObjs[b.number].Store(nil)
	s.freeBell = min(s.freeBell, b.number)
	return nil
}

// ring calls f, unless its object is being destroyed.
func (b *bellObj) ring(waiting func() bool) (more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.dead && b.f(waiting)
}

// tryRing is ring that does not wait for an f under way.
//
// +checklocksignore: the lock is held behind TryLock.
func (b *bellObj) tryRing(waiting func() bool) (more, rung bool) {
	if !b.mu.TryLock() {
		return false, false
	}
	defer b.mu.Unlock()
	return !b.dead && b.f(waiting), true
}

func (s *Session) startBell() {
	s.bellEnded = make(chan struct{})
	go s.bellLoop()
}

// bellLoop calls Bell for each QP and SRQ whose bell was rung. It runs on a thread of its own,
// which blocks in a raw read: that wakes faster than the netpoller, and does not keep another
// goroutine waiting.
func (s *Session) bellLoop() {
	runtime.LockOSThread() // never unlocked: the thread's scheduling is changed, and it ends here
	osmem.ShortSlice()
	defer close(s.bellEnded)
	defer s.bell.Finish()

	var due []*bellObj // rung, or left over by their fair share
	ring := func(bell uint32) {
		if q := s.bellOf(bell); q != nil && !q.due {
			q.due = true
			due = append(due, q)
		}
	}
	behind := 0 // of due, those that are not rung yet
	waiting := func() bool { return behind > 0 || s.page.Rung() }
	barren := 0
	for !s.ended() {
		if s.page.Collect(ring) || s.linger.collected.Swap(false) {
			barren = 0
		}
		if len(due) > 0 {
			left := due[:0]
			for i, q := range due {
				behind = len(due) - i - 1
				if q.ring(waiting) {
					left = append(left, q)
				} else {
					q.due = false
				}
			}
			clear(due[len(left):])
			due = left
			continue
		}
		if !s.blocked() && s.spin() {
			continue
		}
		if barren >= barrenWakes {
			time.Sleep(barrenPause)
		}
		if s.page.Sleep() {
			if err := s.bell.Wait(); err != nil {
				s.page.Awake()
				if err != osmem.ErrStopped {
					s.end(err)
				}
				return
			}
			barren++
		}
		s.page.Awake()
	}
}

// bellOf is what has a bell, or nil: a forged or stale one costs a look.
func (s *Session) bellOf(bell uint32) *bellObj {
	if int(bell) >= len(s.bellObjs) {
		return nil
	}
	return s.bellObjs[bell].Load()
}

// spin looks for bells for a short while. The processor is offered to others all the time. Who
// lingers looks as well.
func (s *Session) spin() bool {
	for end := time.Now().Add(spinTime); ; {
		if s.page.Rung() {
			return true
		}
		if s.linger.busy.Load() || time.Now().After(end) || s.ended() {
			return false
		}
		osmem.Yield()
	}
}

// blocked guesses whether the program waits for an event: then it does not ring soon. With many CQs
// it says yes without looking.
func (s *Session) blocked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cqs.m) > maxArmedLook {
		return true
	}
	for _, c := range s.cqs.m {
		if c.ring.Armed() {
			return true
		}
	}
	return false
}
