package needtest

import (
	"testing"
	"time"
)

// A try that the machine has held up is had again; one that was late of itself counts.
func TestSoon(t *testing.T) {
	const limit = time.Second
	type try struct{ took, held time.Duration } // in tenths of a second
	for name, tt := range map[string]struct {
		untold bool
		tries  []try
		bad    bool
	}{
		"in time":                           {tries: []try{{1, 0}}},
		"just so":                           {tries: []try{{10, 0}}},
		"late of itself each time":          {tries: []try{{20, 0}, {20, 0}}, bad: true},
		"and held up a little":              {tries: []try{{20, 5}, {20, 9}}, bad: true},
		"late by chance":                    {tries: []try{{20, 0}, {1, 0}, {1, 0}, {1, 0}}},
		"late in every other try":           {tries: []try{{20, 0}, {1, 0}, {20, 0}}, bad: true},
		"held up":                           {tries: []try{{20, 20}, {30, 25}, {1, 1}}},
		"held up all the time":              {tries: []try{{20, 20}, {20, 20}, {20, 20}, {20, 20}, {20, 20}}, bad: true},
		"held up, then late of itself":      {tries: []try{{20, 20}, {20, 0}, {1, 0}, {20, 20}, {1, 0}, {1, 0}}},
		"of many processors":                {tries: []try{{20, 60}, {1, 0}}},
		"where nobody tells":                {untold: true, tries: []try{{20, 0}, {20, 0}, {1, 0}}},
		"late each time where nobody tells": {untold: true, tries: []try{{20, 0}, {20, 0}, {20, 0}, {20, 0}, {20, 0}}, bad: true},
	} {
		n := 0
		var held time.Duration
		err := soon(limit, func() time.Duration {
			n++
			held += tt.tries[n-1].held * 100 * time.Millisecond
			return tt.tries[n-1].took * 100 * time.Millisecond
		}, func() (time.Duration, bool) { return held, !tt.untold })
		if (err != nil) != tt.bad || n != len(tt.tries) {
			t.Errorf("%s: %v after %d tries", name, err, n)
		}
	}
	if a, ok := heldUp(); ok {
		if b, ok := heldUp(); !ok || b < a {
			t.Errorf("held up for %v, then %v", a, b)
		}
	}
}
