package main

import (
	"fmt"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
)

// A target is one line of the table that vrnic is to reach: the floor, and the goal, which is
// harder.
type target struct {
	name        string
	floor, goal float64
	less        bool // less is better
	decimals    int
	// of finds the figure among the outcomes; ok is false if it was not measured.
	of func([]outcome) (s spread, ok bool)
	// note, if not nil, says what a figure that was measured once stands for.
	note func([]outcome) string
}

// ratioOf finds the ratio of a contest on a path with the baseline whose name begins so.
func ratioOf(path, contest, baseline string) func([]outcome) (spread, bool) {
	return func(os []outcome) (spread, bool) {
		for _, o := range os {
			if o.row.Path == path && o.contest == contest && baseline != "" &&
				strings.HasPrefix(o.row.Baseline, baseline) {
				return o.ratio, true
			}
		}
		return spread{}, false
	}
}

// tailOf finds the worst tail among the paths' round trips with that way to wait.
func tailOf(wait string) func([]outcome) (spread, bool) {
	return func(os []outcome) (worst spread, ok bool) {
		for _, o := range os {
			if o.row.Wait == wait && o.row.Pattern == "pingpong" && o.tail.median >= worst.median {
				worst, ok = o.tail, true
			}
		}
		return worst, ok
	}
}

// tailRatio finds the tail of a path's round trip with that way to wait, divided by that of who was
// measured beside it: of all rounds' medians.
func tailRatio(path, wait string) func([]outcome) (spread, bool) {
	return func(os []outcome) (spread, bool) {
		for _, o := range os {
			if o.row.Path == path && o.row.Wait == wait && o.beside.name != "" {
				v := o.tail.median / o.beside.tail.median
				return spread{v, v, v}, true
			}
		}
		return spread{}, false
	}
}

// worstAllocs finds the outcome with the most allocations a message.
func worstAllocs(os []outcome) (worst outcome, ok bool) {
	for _, o := range os {
		if !ok || o.allocs.each() > worst.allocs.each() {
			worst, ok = o, true
		}
	}
	return worst, ok
}

// targets are those of the project, for two processors.
var targets = []target{
	{name: "1 MiB Write over TAPs, MTU 1500 / netstack TCP there", floor: 0.85, goal: 0.95,
		of: ratioOf("tap", "1 MiB Write", "netstack-tcp")},
	{name: "1 MiB Write over TAPs / kernel TCP, veth and same bridge", floor: 0.6, goal: 1,
		of: ratioOf("tap", "1 MiB Write", "kernel-tcp")},
	{name: "64 B Write round trip over TAPs / netstack TCP echo there", floor: 1.2, goal: 1,
		less: true, of: ratioOf("tap", "64 B Write round trip", "netstack-tcp")},
	{name: "64 B Write round trip over TAPs / kernel TCP echo", floor: 3, goal: 1.5, less: true,
		of: ratioOf("tap", "64 B Write round trip", "kernel-tcp")},
	{name: "1 MiB Write on one device (rings) / memcpy", floor: 0.7, goal: 0.9,
		of: ratioOf("ring", "1 MiB Write", "memcpy")},
	{name: "64 B Write round trip through rings / kernel TCP loopback echo", floor: 0.9, goal: 0.3,
		less: true, of: ratioOf("ring", "64 B Write round trip", "kernel-tcp")},
	{name: "64 B Send round trip, --direct=user / polling kernel TCP", floor: 0.5, goal: 0.25,
		less: true, of: ratioOf("direct", "64 B Send round trip, poll", "kernel-tcp")},
	{name: "64 B Send round trip, --direct=user / --direct=off", floor: 0.5, goal: 0.25, less: true,
		of: ratioOf("direct", "64 B Send round trip, poll", "off")},
	{name: "64 B Write round trip, --direct=user / polling kernel TCP", floor: 0.5, goal: 0.25,
		less: true, of: ratioOf("direct", "64 B Write round trip, poll", "kernel-tcp")},
	{name: "64 B Write round trip, --direct=user / --direct=off", floor: 0.5, goal: 0.25, less: true,
		of: ratioOf("direct", "64 B Write round trip, poll", "off")},
	{name: "64 B Read, --direct=user / --direct=off", floor: 0.5, goal: 0.25, less: true,
		of: ratioOf("direct", "64 B Read, poll", "off")},
	{name: "1 MiB Write, --direct=user / memcpy", floor: 0.7, goal: 0.9,
		of: ratioOf("direct", "1 MiB Write", "memcpy")},
	{name: "1 MiB Write, --direct=user / --direct=off", floor: 0.9, goal: 1,
		of: ratioOf("direct", "1 MiB Write", "off")},
	{name: "64 B RoCE Send round trip, --direct=user / polling kernel TCP", floor: 0.5, goal: 0.25,
		less: true, of: ratioOf("direct", "64 B RoCE Send round trip, poll", "kernel-tcp")},
	{name: "64 B RoCE Send round trip, --direct=user / --direct=off", floor: 0.5, goal: 0.25,
		less: true, of: ratioOf("direct", "64 B RoCE Send round trip, poll", "off")},
	{name: "64 B RoCE Write round trip, --direct=user / --direct=off", floor: 0.5, goal: 0.25,
		less: true, of: ratioOf("direct", "64 B RoCE Write round trip, poll", "off")},
	{name: "64 B Sends a second, --direct=user / --direct=off", floor: 1.5, goal: 3,
		of: ratioOf("direct", "64 B Sends", "off")},
	{name: "64 B Send round trip, events, --direct=user / kernel TCP", floor: 1, goal: 0.8,
		less: true, of: ratioOf("direct", "64 B Send round trip, event", "kernel-tcp")},
	{name: "p99.9 / p50 of 64 B Sends, --direct=user / polling kernel TCP's", floor: 2, goal: 1,
		less: true, of: tailRatio("direct", string(load.Poll))},
	{name: "1 MiB Write on addresses of the host / kernel TCP loopback", floor: 0.85, goal: 0.85,
		of: ratioOf("host", "1 MiB Write", "kernel-tcp")},
	{name: "64 B Write round trip there / kernel TCP loopback echo", floor: 1.5, goal: 1.5, less: true,
		of: ratioOf("host", "64 B Write round trip", "kernel-tcp")},
	{name: "1 MiB Write, pair of devices / netstack pair at its best MTU", floor: 0.7, goal: 0.9,
		of: ratioOf("pair", "1 MiB Write", "netstack-tcp-mtu-")},
	{name: "1 MiB Write, pair of devices, MTU 9000: RoCE / iWARP", floor: 0.9, goal: 0.9,
		of: ratioOf("pair", "1 MiB RoCE Write", "iwarp")},
	{name: "1 MiB Write over TAPs, MTU 9000: RoCE / iWARP", floor: 0.9, goal: 0.9,
		of: ratioOf("tap", "1 MiB RoCE Write", "iwarp")},
	{name: "64 B Write round trip, pair of devices: RoCE / iWARP", floor: 0.7, goal: 0.7, less: true,
		of: ratioOf("pair", "64 B RoCE Write round trip", "iwarp")},
	{name: "64 B Write round trip over TAPs: RoCE / iWARP", floor: 0.7, goal: 0.7, less: true,
		of: ratioOf("tap", "64 B RoCE Write round trip", "iwarp")},
	{name: "64 B Write round trip over TAPs: RoCE / kernel UDP echo", floor: 2, goal: 2, less: true,
		of: ratioOf("tap", "64 B RoCE Write round trip", "kernel-udp")},
	{name: "64 B Sends a second of one core, loop", floor: 1e6, goal: 3e6, decimals: -1,
		of: func(os []outcome) (spread, bool) {
			for _, o := range os {
				if o.row.Path == "loop" && o.contest == "64 B Sends" {
					return o.ours, true
				}
			}
			return spread{}, false
		}},
	{name: "allocations a message, the most of any path here", less: true,
		of: func(os []outcome) (s spread, ok bool) {
			o, ok := worstAllocs(os)
			v := o.allocs.each()
			return spread{v, v, v}, ok
		}, note: func(os []outcome) string {
			o, _ := worstAllocs(os)
			return fmt.Sprintf("%s, %s: %d objects in %d messages", o.row.Path, o.contest, o.allocs.objects,
				o.allocs.messages)
		}},
	{name: "64 B Send round trip, polling: p99.9 / p50, worst path", floor: 10, goal: 10, less: true,
		of: tailOf("poll")},
	{name: "64 B Send round trip, events: p99.9 / p50, worst path", floor: 10, goal: 10, less: true,
		of: tailOf("event")},
}

// slack is what a figure that ought to be exactly the target may be beyond it: the table's last
// decimal.
const slack = 0.005

// verdict compares v with the target.
func (t target) verdict(v float64) string {
	reaches := func(limit float64) bool {
		if t.less {
			return v <= limit+slack
		}
		return v >= limit-slack
	}
	switch {
	case reaches(t.goal):
		return "goal reached"
	case reaches(t.floor):
		return "floor reached"
	}
	return "MISSED"
}

// targetTable is the table of targets with what the outcomes have reached.
func targetTable(os []outcome) []string {
	lines := []string{fmt.Sprintf("%-64s %7s %7s  %s", "target", "floor", "goal", "reached")}
	for _, t := range targets {
		reached := "not measured"
		if s, ok := t.of(os); ok {
			figure := t.figure(s)
			if t.note != nil {
				figure = fmt.Sprintf("%.2f (%s)", s.median, t.note(os))
			}
			reached = fmt.Sprintf("%s %s", figure, t.verdict(s.median))
		}
		sign := ">="
		if t.less {
			sign = "<="
		}
		lines = append(lines, fmt.Sprintf("%-64s %s%5s %s%5s  %s", t.name, sign, t.limit(t.floor), sign,
			t.limit(t.goal), reached))
	}
	return lines
}

func (t target) limit(v float64) string {
	if v >= 1e6 {
		return fmt.Sprintf("%gM", v/1e6)
	}
	return fmt.Sprintf("%g", v)
}

func (t target) figure(s spread) string {
	if t.decimals < 0 {
		return spread{s.lo / 1e6, s.median / 1e6, s.hi / 1e6}.of(2) + "M"
	}
	return s.of(2)
}
