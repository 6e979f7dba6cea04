package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/badnet"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

// A badRun is what one contestant has come to in a cell, one measurement for each seed.
type badRun struct {
	Goodputs []badnet.Goodput `json:"goodputs,omitempty"`
	Failures []string         `json:"failures,omitempty"` // of those whose goodput is 0
}

func (r *badRun) add(g badnet.Goodput, err error) {
	if err != nil {
		g.Mbits = 0
		r.Failures = append(r.Failures, oneLine(err))
	}
	r.Goodputs = append(r.Goodputs, g)
}

// median is that of the goodputs.
func (r *badRun) median() float64 {
	var vs []float64
	for _, g := range r.Goodputs {
		vs = append(vs, g.Mbits)
	}
	return spreadOf(vs).median
}

// A badResult is a row of the table.
type badResult struct {
	impair.Cell
	Kernel badRun `json:"kernel"`
	TCP    badRun `json:"tcp"`
	SCTP   badRun `json:"sctp"`
}

// run is the one of vrnic over TCP or SCTP.
func (r *badResult) run(kind string) *badRun {
	if kind == "sctp" {
		return &r.SCTP
	}
	return &r.TCP
}

// ratio is of the goodputs with the same seeds.
func (r *badResult) ratio(kind string) spread {
	var vs []float64
	for i, g := range r.run(kind).Goodputs {
		if k := r.Kernel.Goodputs[i].Mbits; k > 0 {
			vs = append(vs, g.Mbits/k)
		}
	}
	if len(vs) == 0 {
		return spread{}
	}
	return spreadOf(vs)
}

func badHeading(p badPlan) string {
	s := fmt.Sprintf("%6s %5s %6s %6s %8s", "loss %", "burst", "RTT", "jitter", "kernel")
	for _, kind := range p.only {
		s += fmt.Sprintf(" %8s %-18s", kind, "by kernel")
	}
	return s
}

func (r *badResult) line(p badPlan) string {
	s := fmt.Sprintf("%6v %5v %6s %6s %8.1f", r.Loss, r.Burst, short(r.RTT), short(r.Jitter),
		r.Kernel.median())
	for _, kind := range p.only {
		s += fmt.Sprintf(" %8.1f %-18s", r.run(kind).median(), r.ratio(kind).of(2))
	}
	return strings.TrimRight(s+r.notes(p), " ")
}

// notes says what is to know of a row.
func (r *badResult) notes(p badPlan) string {
	var notes []string
	add := func(kind string, run *badRun) {
		for _, g := range run.Goodputs {
			if why := g.Limited(r.Cell); why != "" {
				notes = append(notes, kind+": "+why)
				break
			}
		}
		if n := len(run.Failures); n > 0 {
			notes = append(notes, fmt.Sprintf("%d failed, such as %s", n, run.Failures[0]))
		}
	}
	add("kernel", &r.Kernel)
	for _, kind := range p.only {
		add(kind, r.run(kind))
	}
	if len(notes) == 0 {
		return ""
	}
	return " ! " + strings.Join(notes, "; ")
}

// short is a duration without needless zeros: 100us, 5ms.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%time.Millisecond == 0:
		return fmt.Sprintf("%dms", d/time.Millisecond)
	}
	return fmt.Sprintf("%gms", float64(d)/float64(time.Millisecond))
}

// badMatrix is the ratios in the form of a page of documentation.
func badMatrix(results []badResult, p badPlan) (lines []string) {
	type column struct{ rtt, jitter time.Duration }
	type row struct{ loss, burst float64 }
	var columns []column
	var rows []row
	cells := make(map[row]map[column]string)
	for _, r := range results {
		at, of := row{r.Loss, r.Burst}, column{r.RTT, r.Jitter}
		if !slices.Contains(columns, of) {
			columns = append(columns, of)
		}
		if cells[at] == nil {
			rows, cells[at] = append(rows, at), make(map[column]string)
		}
		var parts []string
		for _, kind := range p.only {
			parts = append(parts, fmt.Sprintf("%.2f", r.ratio(kind).median))
		}
		cells[at][of] = strings.Join(parts, " ")
	}
	head, rule := "| loss %, burst |", "|---|"
	for _, c := range columns {
		head += fmt.Sprintf(" %s+%s |", short(c.rtt), short(c.jitter))
		rule += "---|"
	}
	lines = append(lines, "", head, rule)
	for _, at := range rows {
		line := fmt.Sprintf("| %v", at.loss)
		if at.burst > 1 {
			line += fmt.Sprintf(", %v", at.burst)
		}
		line += " |"
		for _, c := range columns {
			line += " " + cells[at][c] + " |"
		}
		lines = append(lines, line)
	}
	return lines
}
