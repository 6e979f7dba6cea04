package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
)

// Go runs f on a goroutine that counts as the session's: its place in the quotas is free only when
// f has returned. f must end soon after Done is closed, unless a copy of mode 0 memory hangs.
// It may be called until Handler.Close returns.
func (s *Session) Go(f func()) {
	s.extra.Add(1)
	go func() {
		defer s.extra.Done()
		f()
	}()
}

// errands are what the client can have take for ever, since it has a hand in it: to write to a pipe
// that it reads, to give back memory that it can write to, to close what it has sent.
type errands struct {
	mu   sync.Mutex
	wait []func() // +checklocks:mu
	busy bool     // a goroutine does them; +checklocks:mu
}

// Later has f run on the session's goroutine for errands, behind those that are there: however many
// hang, the client has one thread of the daemon's. It does not block, and may be called with locks
// held, as long as Go may.
func (s *Session) Later(f func()) {
	e := &s.errands
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wait = append(e.wait, f)
	if !e.busy {
		e.busy = true
		s.Go(e.run)
	}
}

func (e *errands) run() {
	for {
		e.mu.Lock()
		if len(e.wait) == 0 {
			e.wait, e.busy = nil, false
			e.mu.Unlock()
			return
		}
		f := e.wait[0]
		e.wait[0] = nil
		e.wait = e.wait[1:]
		e.mu.Unlock()
		f()
	}
}

// settle waits for the errands that there are: what a client has given back it can have again. If
// that takes too long the session ends. It is for the control goroutine.
func (s *Session) settle() {
	s.errands.mu.Lock()
	busy := s.errands.busy
	s.errands.mu.Unlock()
	if busy {
		s.foreign(func() func() { return nil })
	}
}

// foreignTime is what the kernel may take for an errand.
const foreignTime = 5 * time.Second

// foreign runs f as an errand and waits for it. It is for what is done with a descriptor that may
// be of any file: to look at one of a network file system, or to close a socket that has something
// left to send, can take for ever. If it takes too long the session ends, and foreign returns
// false; undo, if f returns one, is called when f is back.
func (s *Session) foreign(f func() (undo func())) bool {
	const running, back, left = 0, 1, 2
	var state atomic.Int32
	done, late := make(chan struct{}), make(chan struct{})
	stop := s.srv.cfg.AfterFunc(foreignTime, func() { close(late) })
	defer stop()
	s.Later(func() {
		defer close(done)
		if undo := f(); !state.CompareAndSwap(running, back) && undo != nil {
			undo()
		}
	})
	select {
	case <-done:
		return true
	case <-late:
	}
	if !state.CompareAndSwap(running, left) {
		<-done
		return true
	}
	s.Fail(errForeign)
	return false
}

var errForeign = abi.Violation("descriptor of a file that does not answer")

// discard closes a descriptor that a client sent against the rules. The session is about to end.
func (s *Session) discard(fd int) { s.Go(func() { osmem.CloseFD(fd) }) }
