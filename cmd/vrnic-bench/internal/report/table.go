package report

import (
	"fmt"
	"strings"
)

// Heading heads lines of Row.Line.
const Heading = "path  op             size depth   QPs   messages      msg/s    Gbit/s  us:  p50 " +
	"     p90      p99    p99.9   p99.99  cpu ns/B  us/msg  allocs/msg"

// SyscallHeading is what comes behind it where system calls are counted.
const SyscallHeading = "  syscalls/msg"

// Line is r for people.
func (r Row) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %-9s %9s %5d %5d %10d %10.0f %9.3f %9.1f %8.1f %8.1f %8.1f %8.1f  %8.3f "+
		"%7.2f %11.3f",
		r.Path, r.Op, Octets(r.Size), r.Depth, r.allQPs(), r.Messages, r.Rate, r.Gbits,
		r.Lat.P50, r.Lat.P90, r.Lat.P99, r.Lat.P999, r.Lat.P9999, r.CPUPerByte, r.CPUPerMsg, r.Allocs)
	if r.Syscalls != nil {
		fmt.Fprintf(&b, " %13.3f", *r.Syscalls)
	}
	var notes []string
	for _, n := range []struct {
		is   bool
		text string
	}{
		{r.Pattern == "pingpong", "ping-pong"}, {r.Bidir, "both ways"}, {r.Transport == "sctp", "SCTP"},
		{r.Transport == "roce", "RoCE"},
		{r.Wait != "adaptive", r.Wait}, {r.Processes > 1, fmt.Sprintf("%d processes", r.Processes)},
		{!r.Verified, "not verified"},
	} {
		if n.is {
			notes = append(notes, n.text)
		}
	}
	if len(notes) > 0 {
		fmt.Fprintf(&b, "  %s", strings.Join(notes, ", "))
	}
	return b.String()
}

// allQPs is the number of connections.
func (r Row) allQPs() int { return r.QPs * max(r.Processes, 1) }
