package server

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
)

// A message of the network usually has an answer, and the answer another message. A thread that
// waits on another processor takes 23 us to wake here, and 11 of those that woke it. So who has
// brought a program a message looks for the program's bells, and for what the network brings next,
// for a moment before it sleeps: then in a ping-pong nobody has to wake anybody.

const (
	// for what comes next: longer than a round trip between two that linger
	lingerTime  = 60 * time.Microsecond
	lingerLooks = 4 // between two looks at the clock
	lingerBells = 8 // rung at most: who brings has others to bring something to
	lingerFails = 6 // in a row, and it is done for one of 1<<lingerFails only
)

// A linger is what a session's Linger knows.
type linger struct {
	collected atomic.Bool // bells, since the doorbell's thread looked
	busy      atomic.Bool // somebody lingers

	mu       sync.Mutex // held while somebody lingers
	over     bool       // guarded by mu, like the rest
	hasBells bool       // the bells, from a thread that sleeps
	bells    int        // rung since then
	// rung by another goroutine at the same time, or left over by their fair share
	leftOver  []*bellObj
	forAnswer trial // of looking at all
	forMore   trial // of looking for more behind an answer
}

// A trial is done each time while it succeeds, and more and more seldom while it does not.
type trial struct {
	fails int // in a row
	skip  int // so many times it is not done
}

// due says whether to do it this time.
func (t *trial) due() bool {
	if t.skip > 0 {
		t.skip--
		return false
	}
	return true
}

// done notes how it went.
func (t *trial) done(well bool) {
	if well {
		*t = trial{}
		return
	}
	t.fails = min(t.fails+1, lingerFails)
	t.skip = 1<<t.fails - 1
}

// stop waits for who lingers; nobody does after it.
func (l *linger) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

// Expect is for a thread that is about to bring the program something, which completes in one of
// cqs. If it returns true, Linger has to follow; the thread has the bells from now on, if the
// doorbell's thread sleeps. It is not for a program that waits for an event there: its answer takes
// long, and many small messages both ways are slower so.
//
// +checklocksignore: Linger gives the lock back.
func (s *Session) Expect(cqs ...*ring.CQProducer) bool {
	for _, c := range cqs {
		if c.Armed() {
			return false
		}
	}
	l := &s.linger
	if !l.mu.TryLock() {
		return false
	}
	if l.over || s.ended() || !l.forAnswer.due() {
		l.mu.Unlock()
		return false
	}
	l.busy.Store(true)
	l.hasBells, l.bells = s.page.TakeOver(), 0
	return true
}

// Linger looks for bells, and deals with them, for as long as that seems worthwhile; it ends when
// more, if not nil, says that the caller has more to bring, and soon in any case: a program that
// rings again and again is dealt with elsewhere.
//
// +checklocksignore: Expect took the lock; lingerOn may have to give it back.
func (s *Session) Linger(more func() bool) {
	l := &s.linger
	s.await(more)
	l.busy.Store(false)
	for l.hasBells && len(l.leftOver) == 0 && l.bells < lingerBells {
		s.giveBack()
	}
	if l.hasBells || len(l.leftOver) > 0 {
		s.Go(s.lingerOn)
		return
	}
	l.mu.Unlock()
}

// giveBack has the doorbell's thread woken again for bells. Those that were rung too early for that
// it deals with.
func (s *Session) giveBack() {
	l := &s.linger
	if l.hasBells = !s.page.Sleep() && s.page.TakeOver(); l.hasBells {
		s.collectHere()
	}
}

// lingerOn ends a Linger, on a goroutine of its own.
//
// +checklocksignore: Expect took the lock.
func (s *Session) lingerOn() {
	l := &s.linger
	defer l.mu.Unlock()
	for {
		for _, b := range l.leftOver {
			for !s.ended() && b.ring(nil) {
				runtime.Gosched()
			}
		}
		clear(l.leftOver)
		l.leftOver, l.bells = l.leftOver[:0], 0
		if !l.hasBells || s.ended() {
			return
		}
		s.giveBack()
		runtime.Gosched()
	}
}

// await is what Linger does while it has the bells. The doorbell's thread may be awake, or fall
// asleep now: then they are taken over. Neither an answer nor something to bring is expected at
// once, so others run first.
func (s *Session) await(more func() bool) {
	l := &s.linger
	what := &l.forAnswer
	start := time.Now()
	for n := 0; ; n++ {
		if s.page.TakeOver() {
			l.hasBells = true
		}
		if s.page.Rung() {
			s.collectHere()
			what.done(true)
			if l.bells >= lingerBells || len(l.leftOver) > 0 || more == nil || !l.forMore.due() {
				return
			}
			what = &l.forMore
			start = time.Now()
		} else if n > 0 && more != nil && more() {
			what.done(true)
			return
		} else if n%lingerLooks == lingerLooks-1 && (time.Since(start) > lingerTime || s.ended()) {
			what.done(false)
			return
		}
		osmem.YieldQuietly()
	}
}

// collectHere rings bells on the caller's goroutine, no more than lingerBells.
func (s *Session) collectHere() {
	l := &s.linger
	n := s.page.CollectSome(lingerBells-l.bells, s.ringHere)
	if l.bells += n; n > 0 {
		l.collected.Store(true)
	}
}

// alwaysWaiting: who has brought something has others to bring something to.
func alwaysWaiting() bool { return true }

// ringHere rings a bell, if nobody else does.
func (s *Session) ringHere(bell uint32) {
	b := s.bellOf(bell)
	if b == nil {
		return
	}
	if more, rung := b.tryRing(alwaysWaiting); more || !rung {
		s.linger.leftOver = append(s.linger.leftOver, b)
	}
}
