package verbs

import (
	"strings"
	"testing"
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
