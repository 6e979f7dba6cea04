package impair

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Plan is a Schedule that changes with time.
type Plan struct {
	Schedule         // where no Phase is
	Phases   []Phase // of those that hold at a time the last one counts
}

// A Phase holds from a time of the Plan on, For so long; 0: until the end.
type Phase struct {
	At, For time.Duration
	Schedule
}

// maxPhases bounds those of a Plan.
const maxPhases = 1000

// ParsePlan reads a Plan: lines with the words of tc-netem(8), those of its options that there are,
// and of them behind "at TIME [for TIME]", which are read over those of the lines without. Behind #
// there is a comment.
func ParsePlan(text string, seed uint64) (p Plan, err error) {
	p.Seed = seed
	var later [][]string
	var numbers []int
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "at":
			later, numbers = append(later, words), append(numbers, n)
		default:
			if err := p.add(words); err != nil {
				return Plan{}, fmt.Errorf("line %d: %w", n, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Plan{}, err
	}
	if len(later) > maxPhases {
		return Plan{}, fmt.Errorf("%d lines with at; %d are the most", len(later), maxPhases)
	}
	if err := p.finish(); err != nil {
		return Plan{}, err
	}
	impairs := p.Impairs()
	for i, words := range later {
		ph, err := p.phase(words)
		if err != nil {
			return Plan{}, fmt.Errorf("line %d: %w", numbers[i], err)
		}
		p.Phases = append(p.Phases, ph)
		impairs = impairs || ph.Impairs()
	}
	if !impairs {
		return Plan{}, errors.New(
			"what is to be done? Say delay, loss, duplicate, corrupt, reorder or rate")
	}
	return p, nil
}

// phase reads a line that begins with at.
func (p *Plan) phase(words []string) (ph Phase, err error) {
	ph.Schedule = p.Schedule
	w := list{words[1:]}
	if ph.At, err = w.duration("at"); err != nil {
		return ph, err
	}
	if w.take("for") {
		if ph.For, err = w.duration("for"); err != nil {
			return ph, err
		}
		if ph.For == 0 {
			return ph, fmt.Errorf("for 0s is no time")
		}
	}
	if err = ph.Schedule.add(w.words); err != nil {
		return ph, err
	}
	// What the lines without a time say of frames that are lost or delayed means none of those of this
	// phase if it has none.
	if p.ECN && !ph.lossy() {
		ph.ECN = false
	}
	if p.Early > 0 && ph.Delay == 0 {
		ph.Early, ph.Gap, ph.Correlation.Reorder = 0, 0, 0
	}
	return ph, ph.Schedule.finish()
}

// A Lane is one direction of a path with a Plan. One goroutine at a time may use it.
type Lane struct {
	plan  *Plan
	base  *Link
	links []*Link // of the phases
}

// Lane is one direction; another number is another direction.
func (p *Plan) Lane(direction uint64) *Lane {
	l := &Lane{plan: p, base: p.Schedule.Link(direction)}
	for i, ph := range p.Phases {
		l.links = append(l.links, ph.Schedule.Link(direction+2*uint64(i+1)))
	}
	return l
}

// Link is what holds at a time since the Plan began.
func (l *Lane) Link(now time.Duration) *Link {
	for i := len(l.links) - 1; i >= 0; i-- {
		ph := &l.plan.Phases[i]
		if now >= ph.At && (ph.For == 0 || now < ph.At+ph.For) {
			return l.links[i]
		}
	}
	return l.base
}

// Stats are those of all that has held.
func (l *Lane) Stats() (all Stats) {
	all = l.base.Stats
	for _, k := range l.links {
		all.Add(&k.Stats)
	}
	return all
}

// Add adds what o has counted.
func (s *Stats) Add(o *Stats) {
	s.Frames += o.Frames
	s.Lost += o.Lost
	s.Overflow += o.Overflow
	s.Doubled += o.Doubled
	s.Corrupted += o.Corrupted
	s.Early += o.Early
	s.Marked += o.Marked
}
