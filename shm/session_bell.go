package shm

import (
	"runtime"
	"time"
)

// Waiting rules of the doorbell thread (verbs-abi.md, sections 5 and 6.8).
const (
	spinTime     = 5 * time.Microsecond // before blocking, if no program is blocked
	barrenWakes  = 64                   // wakes in a row without a bell
	barrenPause  = time.Millisecond     // before each read after so many
	maxArmedLook = 64                   // CQs looked at to guess whether a program is blocked
)

func (s *Session) startBell() {
	s.belled = make(chan struct{})
	go s.bellLoop()
}

// bellLoop calls Bell for each QP whose bell was rung. It runs on a thread of its own, which blocks
// in a raw read: that wakes faster than the netpoller, and does not keep another goroutine waiting.
func (s *Session) bellLoop() {
	runtime.LockOSThread() // never unlocked: the thread's scheduling is changed, and it ends here
	shortSlice()
	defer close(s.belled)
	defer s.bell.finish()

	var due []*qpObj // rung, or left over by their fair share
	ring := func(bell uint32) {
		// A forged or stale bell costs a look.
		if int(bell) < len(s.bellTab) {
			if q := s.bellTab[bell].Load(); q != nil && !q.due {
				q.due = true
				due = append(due, q)
			}
		}
	}
	barren := 0
	for !s.ended() {
		if s.page.Collect(ring) {
			barren = 0
		}
		if len(due) > 0 {
			left := due[:0]
			for _, q := range due {
				if q.ring() {
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
				if err != errStopped {
					s.end(err)
				}
				return
			}
			barren++
		}
		s.page.Awake()
	}
}

// ring calls the handler's Bell, unless the QP is being destroyed.
func (q *qpObj) ring() (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.dead && q.h.Bell()
}

// spin looks for bells for a short while. The processor is offered to others all the time.
func (s *Session) spin() bool {
	for end := time.Now().Add(spinTime); ; {
		if s.page.Rung() {
			return true
		}
		if time.Now().After(end) || s.ended() {
			return false
		}
		yield()
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
