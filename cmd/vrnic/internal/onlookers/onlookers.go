// Package onlookers keeps count of those who look at a daemon while it runs, each over a socket of
// their own.
package onlookers

import (
	"fmt"
	"sync"
)

// maxAtOnce bounds a Set.
const maxAtOnce = 8

// A Set is those of a daemon; the zero value has none.
type Set struct {
	mu      sync.Mutex
	closed  bool                   // +checklocks:mu
	running map[*onlooker]struct{} // +checklocks:mu
	wg      sync.WaitGroup
}

type onlooker struct{ end func() }

// Begin has what open gives run until it returns. end is called, by Close, to have it do so.
func (s *Set) Begin(open func() (run, end func(), err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.running) >= maxAtOnce {
		return fmt.Errorf("no more than %d may look at once", maxAtOnce)
	}
	run, end, err := open()
	if err != nil {
		return err
	}
	if s.running == nil {
		s.running = make(map[*onlooker]struct{})
	}
	o := &onlooker{end}
	s.running[o] = struct{}{}
	s.wg.Go(func() {
		run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, o)
	})
	return nil
}

// Close ends all, and waits until they have.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	for o := range s.running {
		o.end()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
