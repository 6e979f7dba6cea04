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

// busy is the median of what the machine's processors did meanwhile, in percent of all they can.
func (r *badRun) busy() string {
	var vs []float64
	for _, g := range r.Goodputs {
		vs = append(vs, 100*(1-g.Idle))
	}
	if len(vs) == 0 {
		return noShare
	}
	return fmt.Sprintf("%.0f%%", spreadOf(vs).median)
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
	s := fmt.Sprintf("%6s %5s %6s %6s %8s %5s", "loss %", "burst", "RTT", "jitter", "kernel", "busy")
	for _, kind := range p.only {
		s += fmt.Sprintf(" %8s %5s %-18s", kind, "busy", "by kernel")
	}
	return s
}

func (r *badResult) line(p badPlan) string {
	s := fmt.Sprintf("%6v %5v %6s %6s %8.1f %5s", r.Loss, r.Burst, short(r.RTT), short(r.Jitter),
		r.Kernel.median(), r.Kernel.busy())
	for _, kind := range p.only {
		s += fmt.Sprintf(" %8.1f %5s %-18s", r.run(kind).median(), r.run(kind).busy(),
			r.ratio(kind).of(2))
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

// badMatrix is the results in the form of the pages of documentation: goodputs in Mbit/s, and for
// each transport its share of the kernel's, by loss and path.
func badMatrix(results []badResult, p badPlan) (lines []string) {
	head, rule := "| loss, burst | RTT + jitter, ms | Linux |", "|---|---|--:|"
	for _, kind := range p.only {
		head += " " + strings.ToUpper(kind) + " |"
		rule += "--:|"
	}
	lines = append(lines, "", head, rule)
	for i := range results {
		r := &results[i]
		line := fmt.Sprintf("| %s | %s | %s |", r.network(), r.path(), mbits(r.Kernel.median()))
		for _, kind := range p.only {
			line += " " + mbits(r.run(kind).median())
			if share := r.share(kind); share != noShare {
				line += " (" + share + ")"
			}
			line += " |"
		}
		lines = append(lines, line)
	}
	for _, kind := range p.only {
		lines = append(lines, "")
		lines = append(lines, badShares(results, kind)...)
	}
	return lines
}

// badShares is the table of one transport.
func badShares(results []badResult, kind string) []string {
	var paths, networks []string
	cells := make(map[[2]string]string)
	for i := range results {
		r := &results[i]
		if !slices.Contains(paths, r.path()) {
			paths = append(paths, r.path())
		}
		if !slices.Contains(networks, r.network()) {
			networks = append(networks, r.network())
		}
		cells[[2]string{r.network(), r.path()}] = r.share(kind)
	}
	lines := []string{
		"| " + strings.ToUpper(kind) + " | " + strings.Join(paths, " | ") + " |",
		"|---|" + strings.Repeat("--:|", len(paths)),
	}
	for _, network := range networks {
		line := "| " + network + " |"
		for _, path := range paths {
			line += " " + cells[[2]string{network, path}] + " |"
		}
		lines = append(lines, line)
	}
	return lines
}

// network is what r's frames suffer, and path the way, as tables name them.
func (r *badResult) network() string {
	if r.Burst > 1 {
		return fmt.Sprintf("%v %%, %v", r.Loss, r.Burst)
	}
	return fmt.Sprintf("%v %%", r.Loss)
}

func (r *badResult) path() string {
	s := fmt.Sprint(r.RTT.Seconds() * 1e3)
	if r.Jitter > 0 {
		s += fmt.Sprintf(" + %v", r.Jitter.Seconds()*1e3)
	}
	return s
}

// noShare is what there is of next to nothing.
const noShare = "-"

// share is vrnic's by the kernel's, as tables have it.
func (r *badResult) share(kind string) string {
	const leastKernel = 0.1 // Mbit/s
	switch v := r.ratio(kind).median; {
	case r.Kernel.median() < leastKernel || v == 0:
		return noShare
	case v < 1.05:
		return fmt.Sprintf("%.2f", v)
	case v < 9.95:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// mbits is a goodput as tables have it.
func mbits(v float64) string {
	if v < 19.95 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
