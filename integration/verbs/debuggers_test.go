package verbs

import (
	"testing"
	"time"
)

// toolJobs are a program under tools that look into it. valgrind has no suppressions.
var toolJobs = []job{
	{name: "gdb", server: "rping -s -a ADDR -p PORT -C 3",
		client: "gdb -batch -ex run --args rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"^ping data: rdma-ping-2", `^\[Inferior 1 .* exited normally\]`,
			"!mismatch"}, limit: 2 * time.Minute},
	{name: "strace", server: "rping -s -a ADDR -p PORT -C 3",
		client:    "strace -f -o /dev/null rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"^ping data: rdma-ping-2", "!mismatch"}, limit: 2 * time.Minute},
	{name: "valgrind", server: "rping -s -a ADDR -p PORT -C 3",
		client:    "valgrind -q --error-exitcode=9 rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"^ping data: rdma-ping-2", "!mismatch", "!^==[0-9]+=="},
		limit:     2 * time.Minute},
}

// otherRuns are programs that look the same on both kinds of device.
func otherRuns() []roceRun {
	runs := append(iserRuns(), roceRun{words: qemuWords, do: migrate})
	for i := range madePrograms {
		m := &madePrograms[i]
		runs = append(runs, roceRun{words: m.words, built: true, alone: true, do: m.run})
	}
	for i := range toolJobs {
		j := &toolJobs[i]
		runs = append(runs, roceRun{words: j.client,
			do: func(t *testing.T, top *topology) { top.run(t, j, 0) }})
	}
	return runs
}

func TestOthers(t *testing.T) { runOn(t, onIWARP, iwarpTopologies[:3], otherRuns()) }

func TestRoCEOthers(t *testing.T) { runRoCE(t, otherRuns()) }
