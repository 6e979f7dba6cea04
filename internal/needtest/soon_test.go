package needtest

import (
	"testing"
	"time"
)

// A try that the machine has held up is had again; one that was late of itself is an error.
func TestSoon(t *testing.T) {
	const limit = time.Second
	type try struct{ took, held time.Duration } // in tenths of a second
	for name, tt := range map[string]struct {
		tries []try
		bad   bool
	}{
		"in time":                    {tries: []try{{1, 0}}},
		"just so":                    {tries: []try{{10, 0}}},
		"late of itself":             {tries: []try{{20, 0}}, bad: true},
		"and held up a little":       {tries: []try{{20, 5}}, bad: true},
		"held up":                    {tries: []try{{20, 20}, {30, 25}, {1, 1}}},
		"held up, but for the limit": {tries: []try{{20, 10}, {1, 0}}},
		"held up all the time": {tries: []try{{20, 20}, {20, 20}, {20, 20}, {20, 20}, {20, 20}},
			bad: true},
		"held up, then late of itself":  {tries: []try{{20, 20}, {20, 0}}, bad: true},
		"of many processors":            {tries: []try{{20, 60}, {1, 0}}},
		"late as no machine is":         {tries: []try{{101, 101}}, bad: true},
		"held up, then late as none is": {tries: []try{{20, 20}, {300, 300}}, bad: true},
	} {
		n := 0
		err := soon(limit, func() (took, held time.Duration) {
			n++
			const tenth = 100 * time.Millisecond
			return tt.tries[n-1].took * tenth, tt.tries[n-1].held * tenth
		})
		if (err != nil) != tt.bad || n != len(tt.tries) {
			t.Errorf("%s: %v after %d tries", name, err, n)
		}
	}
}

// What Soon measures only grows, and by no more than there was time.
func TestSoonMeasures(t *testing.T) {
	before := stalled()
	stop := oversleep()
	begin := time.Now()
	for time.Since(begin) < 50*time.Millisecond {
		time.Sleep(time.Millisecond) // a bit at a time
	}
	if took := time.Since(begin); stop() > took {
		t.Error("it overslept longer than it could")
	}
	if after := stalled(); after < before {
		t.Errorf("stalled for %v, then %v", before, after)
	}
	if err := Soon(time.Hour, func() time.Duration { return time.Minute }); err != nil {
		t.Error(err)
	}
}
