package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
)

// Numbers tell of which requests the packets of a capture are, of all queue pairs of its devices.
type Numbers struct {
	table *capture.Table
	of    map[queuePair]*numbered
}

type queuePair struct {
	dev string
	num uint32
}

// numbered is one queue pair's, and what the last packet was found to be of.
type numbered struct {
	*Tracer
	found []uint64
}

// maxNumbered bounds the queue pairs that are known: behind it all begin anew.
const maxNumbered = 1 << 12

// NewNumbers is of what table knows.
func NewNumbers(table *capture.Table) *Numbers {
	return &Numbers{table: table, of: make(map[queuePair]*numbered)}
}

// Event takes what has happened to a request.
func (n *Numbers) Event(p *capture.Packet) error {
	q := queuePair{p.Event.Dev, p.Event.QPN}
	t := n.of[q]
	if t == nil {
		if len(n.of) == maxNumbered {
			clear(n.of)
		}
		t = new(numbered)
		t.Tracer = New(q.dev, q.num, n.table, func(l *Line) error {
			if l.WRID != nil && (l.Event == Out || l.Event == In) &&
				!slices.Contains(t.found, *l.WRID) {
				t.found = append(t.found, *l.WRID)
			}
			return nil
		})
		n.of[q] = t
	}
	return t.Take(p)
}

// Packet says of which requests of which queue pairs a packet is that was seen at a device: as far
// as it is known. It goes from and to those.
func (n *Numbers) Packet(p *capture.Packet, from, to *capture.QP) (words []string, err error) {
	here := []*capture.QP{from}
	switch within := from != nil && to != nil && from.Dev == to.Dev; {
	case within:
		here = append(here, to)
	case p.In:
		here = []*capture.QP{to}
	}
	for _, q := range here {
		if q == nil {
			continue
		}
		t := n.of[queuePair{q.Dev, q.Num}]
		if t == nil {
			continue
		}
		t.found = t.found[:0]
		if err := t.Take(p); err != nil {
			return nil, err
		}
		if len(t.found) > 0 {
			words = append(words, fmt.Sprintf("wr %s of QP %d of %s",
				strings.Trim(fmt.Sprint(t.found), "[]"), q.Num, q.Dev))
		}
	}
	return words, nil
}
