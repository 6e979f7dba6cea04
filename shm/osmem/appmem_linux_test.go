package osmem

import (
	"errors"
	"syscall"
	"testing"
)

// At most 8 copies are under way at once, also if all hang; the end of the session frees who waits.
func TestAppMemoryConcurrency(t *testing.T) {
	over := make(chan struct{})
	a := &AppMem{fd: -1, slots: make(chan struct{}, maxAppCopies), over: over}
	a.refs.Store(1)
	for range 8 {
		a.Begin() // eight that hang
	}
	got := make(chan error)
	go func() { got <- a.copy(make([]byte, 1), 65536, copyOut) }()
	select {
	case err := <-got:
		t.Fatalf("a ninth copy went on: %v", err)
	default:
	}
	close(over)
	if err := <-got; !errors.Is(err, syscall.EFAULT) {
		t.Errorf("after the end: %v", err)
	}
}
