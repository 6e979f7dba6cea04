package proctest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Each occurrence counts once, however the output was cut.
func TestTally(t *testing.T) {
	for _, what := range []string{"a", "aba", "abab", "bb"} {
		for _, out := range []string{"", "b", "aba", "abababa", "aabbaabbab", "bbbbb"} {
			for i := range len(out) + 1 {
				for j := i; j <= len(out); j++ {
					c := tally{what: []byte(what)}
					c.look([]byte(out[:i]))
					c.look([]byte(out[:j]))
					if got, want := c.look([]byte(out)), strings.Count(out, what); got != want {
						t.Errorf("%q in %q, seen at %d and %d: %d times, want %d", what, out, i, j, got, want)
					}
				}
			}
		}
	}
}

// What comes is seen by all who wait for it; what a process said last is heard although it has
// ended; what does not come is an error.
func TestOutput(t *testing.T) {
	var o Output
	ended := make(chan struct{})
	heard := make(chan error)
	for range 3 {
		go func() { heard <- o.Wait("line", 100, ended, time.Minute) }()
	}
	for i := range 100 {
		fmt.Fprintf(&o, "line %d\n", i)
	}
	for range 3 {
		if err := <-heard; err != nil {
			t.Error(err)
		}
	}
	if got := o.String(); strings.Count(got, "\n") != 100 || !strings.HasSuffix(got, "line 99\n") {
		t.Errorf("%q", got)
	}
	if err := o.Wait("never", 1, ended, time.Millisecond); err == nil || !strings.Contains(err.Error(),
		"within 1ms") {
		t.Errorf("what has not come: %v", err)
	}
	go func() { heard <- o.Wait("never", 1, ended, time.Minute) }()
	close(ended)
	if err := <-heard; err == nil || !strings.Contains(err.Error(), "ended without") {
		t.Errorf("what does not come any more: %v", err)
	}
	if err := o.Wait("line 99", 1, ended, 0); err != nil {
		t.Error(err)
	}
}
