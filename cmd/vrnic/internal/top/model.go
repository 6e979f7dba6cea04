// Package top shows which queue pairs and programs move most: a model of what a daemon's counters
// say from one look to the next, and a screen for it.
package top

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Look is what a daemon says at one time: its rows of LIST qp and of STAT.
type Look struct {
	At        time.Time
	QPs, Stat []json.RawMessage
}

// View says what has a line each.
type View int

// Views.
const (
	QPs View = iota
	Programs
)

// Order says what comes first.
type Order int

// Orders.
const (
	ByOut Order = iota
	ByIn
	ByMessages
)

var orders = [...]string{ByOut: "out", ByIn: "in", ByMessages: "messages"}

// Orders are the names of orders.
func Orders() []string { return orders[:] }

// ParseOrder finds an order by its name.
func ParseOrder(s string) (Order, error) {
	if i := slices.Index(orders[:], s); i >= 0 {
		return Order(i), nil
	}
	return 0, fmt.Errorf("%q is none of %s", s, strings.Join(orders[:], ", "))
}

// A Line is a queue pair, or a program with all of its queue pairs.
type Line struct {
	Dev     string // of a program: of its first
	QPN     uint32
	Count   int // queue pairs
	PID     int
	Comm    string
	State   string
	Peer    string
	Out, In float64 // octets of payload a second
	Rate    float64 // messages a second, both ways
	Errors  uint64  // so far
}

// Totals are of all devices.
type Totals struct {
	Devices, QPs, Programs int
	Out, In, Rate          float64
}

// key names a queue pair from one look to the next.
type key struct {
	dev string
	qpn uint32
	pid int
}

type count struct{ out, in, messages, errors uint64 }

// A Model knows the rates between the last two looks.
type Model struct {
	at     time.Time
	counts map[key]count
	lines  []Line
	totals Totals
}

// row is what is used of a row of a queue pair, of either list.
type row struct {
	Kind   string
	Dev    string
	QPN    uint32
	PID    int
	Comm   string
	State  string
	Type   string
	Remote *string
	Dest   *uint32 `json:"dest_qpn"`

	Sends, Writes, Reads, Atomics, Immediates uint64
	Receives                                  uint64
	InWrites                                  uint64 `json:"in_writes"`
	InReads                                   uint64 `json:"in_reads"`
	InAtomics                                 uint64 `json:"in_atomics"`
	Sent                                      uint64 `json:"sent_octets"`
	Read                                      uint64 `json:"read_octets"`
	Received                                  uint64 `json:"received_octets"`
	Served                                    uint64 `json:"served_octets"`
	Errors                                    uint64
}

func (r *row) key() key { return key{r.Dev, r.QPN, r.PID} }

func (r *row) count() count {
	return count{out: r.Sent + r.Served, in: r.Received + r.Read, errors: r.Errors,
		messages: r.Sends + r.Writes + r.Reads + r.Atomics + r.Receives + r.InWrites + r.InReads +
			r.InAtomics}
}

// peer is who is at the other end, if there is one.
func (r *row) peer() string {
	switch {
	case r.Remote == nil:
		return "-"
	case r.Dest != nil:
		return fmt.Sprintf("%s qp %d", *r.Remote, *r.Dest)
	}
	return *r.Remote
}

// Add takes a look. What a queue pair did before the first one is no rate.
func (m *Model) Add(l Look) error {
	known := make(map[key]row, len(l.QPs))
	for _, raw := range l.QPs {
		var r row
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		known[r.key()] = r
	}
	since := l.At.Sub(m.at).Seconds()
	before := m.counts
	m.at, m.counts, m.lines, m.totals = l.At, make(map[key]count, len(known)), nil, Totals{}
	programs := make(map[int]bool)
	for _, raw := range l.Stat {
		var r row
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		if r.Kind == "dev" {
			m.totals.Devices++
		}
		if r.Kind != "qp" {
			continue
		}
		now := r.count()
		k := r.key()
		line := Line{Dev: r.Dev, QPN: r.QPN, Count: 1, PID: r.PID, State: "?", Peer: "-",
			Errors: now.errors}
		if q, ok := known[k]; ok { // it was there a moment before
			line.Comm, line.State, line.Peer = q.Comm, q.State, q.peer()
		}
		m.counts[k] = now
		if was, ok := before[k]; ok && since > 0 && now.messages >= was.messages {
			line.Out = float64(now.out-was.out) / since
			line.In = float64(now.in-was.in) / since
			line.Rate = float64(now.messages-was.messages) / since
		}
		m.lines = append(m.lines, line)
		m.totals.QPs++
		m.totals.Out += line.Out
		m.totals.In += line.In
		m.totals.Rate += line.Rate
		programs[r.PID] = true
	}
	m.totals.Programs = len(programs)
	return nil
}

// Totals are those of the last look.
func (m *Model) Totals() Totals { return m.totals }

// Lines are what a view has, that with most first.
func (m *Model) Lines(v View, by Order) []Line {
	lines := slices.Clone(m.lines)
	if v == Programs {
		lines = lines[:0]
		at := make(map[int]int)
		for _, l := range m.lines {
			i, ok := at[l.PID]
			if !ok {
				at[l.PID] = len(lines)
				lines = append(lines, l)
				continue
			}
			p := &lines[i]
			p.Count++
			p.Out, p.In, p.Rate = p.Out+l.Out, p.In+l.In, p.Rate+l.Rate
			p.Errors += l.Errors
		}
	}
	of := func(l *Line) float64 {
		switch by {
		case ByIn:
			return l.In
		case ByMessages:
			return l.Rate
		default:
			return l.Out
		}
	}
	slices.SortStableFunc(lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(of(&b), of(&a)), cmp.Compare(b.Rate, a.Rate),
			cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.QPN, b.QPN))
	})
	return lines
}

// amount is n in four digits at most, with a prefix of thousands.
func amount(n float64) string {
	const prefixes = "kMGTPE"
	if n < 999.5 {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	i := 0
	for n /= 1000; n >= 999.5 && i < len(prefixes)-1; n /= 1000 {
		i++
	}
	digits := 0
	if n < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + prefixes[i:i+1]
}
