package onlookers_test

import (
	"errors"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/onlookers"
)

// So many may look at once, and no more; one that has ended makes room, one that could not begin
// takes none; Close ends the others, waits for them, and lets nobody begin.
func TestSet(t *testing.T) {
	var s onlookers.Set
	var ends []func()
	ended := make(chan struct{}, 100)
	begin := func() error {
		return s.Begin(func() (run, end func(), err error) {
			stop := make(chan struct{})
			ends = append(ends, func() { close(stop) })
			return func() { <-stop; ended <- struct{}{} }, func() { close(stop) }, nil
		})
	}
	wrong := errors.New("wrong")
	if err := s.Begin(func() (_, _ func(), err error) { return nil, nil, wrong }); err != wrong {
		t.Errorf("what could not begin: %v", err)
	}
	for i := range 8 {
		if err := begin(); err != nil {
			t.Fatalf("onlooker %d: %v", i, err)
		}
	}
	if err := begin(); err == nil || len(ends) != 8 {
		t.Fatalf("a ninth: %v", err)
	}
	ends[3]()
	<-ended
	for begin() != nil { // it has said so, and is not counted off yet
		continue
	}
	ends[3] = nil
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(ended) != 8 {
		t.Errorf("%d have ended, want 8", len(ended))
	}
	if err := begin(); err == nil {
		t.Error("one begins behind the end")
	}
}
