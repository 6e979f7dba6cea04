package sim

import (
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"time"
)

// A trace is what has happened in a run: a number that stands for all of it, and the last lines.
type trace struct {
	mu    sync.Mutex // guards all; frames are sent by whoever runs
	hash  uint64
	start time.Time
	lines []line // a ring
	n     int
	count [kinds]uint64
	each  func(line string) // is told each line at once; nil: nobody is
}

type kind uint8

const (
	kindCall kind = iota // a verbs call
	kindFrame
	kindTimer
	kindCompletion
	kindEvent
	kinds
)

var kindNames = [kinds]string{"calls", "frames", "timers", "completions", "events"}

// A line is formatted when somebody wants to read it.
type line struct {
	at     time.Duration
	step   uint64
	format string
	args   [6]any
	n      int
}

const keptLines = 400

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newTrace(verbose bool) *trace {
	t := &trace{start: time.Now(), hash: 0x9e3779b97f4a7c15}
	if verbose {
		t.lines = make([]line, keptLines)
	}
	return t
}

// mix puts numbers into the hash.
func (t *trace) mix(xs ...uint64) {
	t.mu.Lock()
	t.mixLocked(xs...)
	t.mu.Unlock()
}

func (t *trace) mixLocked(xs ...uint64) {
	h := t.hash
	for _, x := range xs {
		h = (h ^ x) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	t.hash = h
}

// step counts something that happens, now.
func (t *trace) step(k kind, xs ...uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count[k]++
	t.mixLocked(uint64(k), uint64(time.Since(t.start)))
	t.mixLocked(xs...)
}

// octets gives the number for octets that step takes.
func octets(b []byte) uint64 {
	return uint64(len(b))<<32 | uint64(crc32.Checksum(b, castagnoli))
}

// steps is how many there were.
func (t *trace) steps() (n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stepsLocked()
}

func (t *trace) stepsLocked() (n uint64) {
	for _, c := range t.count {
		n += c
	}
	return n
}

// say keeps a line, if lines are kept.
func (t *trace) say(format string, args ...any) {
	if t.lines == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lines[t.n%len(t.lines)]
	t.n++
	*l = line{at: time.Since(t.start), step: t.stepsLocked(), format: format, n: len(args)}
	copy(l.args[:], args)
	if t.each != nil {
		t.each(l.String())
	}
}

func (l *line) String() string {
	return fmt.Sprintf("%8d %14v  %s", l.step, l.at, fmt.Sprintf(l.format, l.args[:l.n]...))
}

// last gives the lines that are kept.
func (t *trace) last() string {
	var b strings.Builder
	for i := max(0, t.n-len(t.lines)); i < t.n; i++ {
		b.WriteString(t.lines[i%len(t.lines)].String())
		b.WriteByte('\n')
	}
	return b.String()
}

// describe says how many steps of each kind there were.
func describe(count [kinds]uint64) string {
	var parts []string
	for k, n := range count {
		parts = append(parts, fmt.Sprintf("%d %s", n, kindNames[k]))
	}
	return strings.Join(parts, ", ")
}
