package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/badnet"
	"github.com/vrnic/vrnic/internal/golden"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

func TestWrongUseOfBadnet(t *testing.T) {
	for args, why := range map[string]string{
		"--loss 91": "0 to 90", "--loss x": "0 to 90", "--burst 0": "1 to 1000", "--rtt 5": "0 to 10",
		"--rtt 11s": "0 to 10", "--jitter -1ms": "0 to 10", "--seeds 0": "more than 0",
		"--rate 0":  "1 to 100000",
		"--time 0s": "more than 0", "--only udp": "tcp or sctp", "now": "unexpected",
		"--depth 3": "--help",
	} {
		status, stdout, stderr := call(t, append([]string{"badnet"}, strings.Fields(args)...)...)
		if status != exitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 ||
			!strings.Contains(stderr, why) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q, want %q", args, status, stdout, stderr, why)
		}
	}
}

// One network, for as short as can be: everyone connects over it and sends. A machine that has
// other things to do may leave no time for more.
func TestBadnet(t *testing.T) {
	needtest.Root(t)
	file := filepath.Join(t.TempDir(), "f")
	status, stdout, stderr := call(t, "badnet", "--vrnic", vrnicProgram(t), "--loss", "1", "--burst",
		"1", "--rtt", "1ms", "--jitter", "200us", "--seeds", "1", "--time", "10ms", "--json", file)
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rs []badResult
	if err := json.Unmarshal(b, &rs); err != nil || len(rs) != 1 {
		t.Fatalf("%d results, %v:\n%s", len(rs), err, b)
	}
	arrived := 0.0
	for kind, run := range map[string]badRun{"kernel": rs[0].Kernel, "tcp": rs[0].TCP,
		"sctp": rs[0].SCTP} {
		if len(run.Goodputs) != 1 || len(run.Failures) > 0 || run.Goodputs[0].Bridge.Frames == 0 ||
			run.Goodputs[0].Bridge.Failed > 0 {
			t.Errorf("%s: %+v", kind, run)
			continue
		}
		arrived += run.Goodputs[0].Mbits
	}
	if arrived == 0 {
		t.Error("nothing arrived of anybody's")
	}
	if !strings.Contains(stdout, "\n     1     1    1ms  0.2ms ") ||
		!strings.Contains(stdout, "\n| 1 % | 1 + 0.2 | ") {
		t.Errorf("the table:\n%s", stdout)
	}
}

// TestBadnetTable: medians and ratios of the same seeds, what is to know of a row, and the
// documentation's tables.
func TestBadnetTable(t *testing.T) {
	run := func(mbits ...float64) (r badRun) {
		for _, m := range mbits {
			r.Goodputs = append(r.Goodputs, badnet.Goodput{Mbits: m, Idle: 0.5})
		}
		return r
	}
	cell := impair.Cell{Burst: 1, RTT: 100 * time.Microsecond}
	good := badResult{Cell: cell, Kernel: run(800, 900, 1000), TCP: run(400, 900, 600),
		SCTP: run(800, 900, 2000)}
	cell.Loss, cell.Burst, cell.Jitter = 5, 8, 5*time.Millisecond
	bad := badResult{Cell: cell, Kernel: run(10, 20), TCP: run(5), SCTP: run(20, 20)}
	bad.TCP.add(badnet.Goodput{Mbits: 3}, os.ErrDeadlineExceeded)
	bad.Kernel.Goodputs[1].Missed = 1
	cell = impair.Cell{Loss: 20, Burst: 1, RTT: 50 * time.Millisecond}
	none := badResult{Cell: cell, Kernel: run(0.05), TCP: run(0.4), SCTP: run(600)}
	p := badPlan{only: []string{"tcp", "sctp"}}
	lines := append([]string{badHeading(p), good.line(p), bad.line(p), none.line(p)},
		badMatrix([]badResult{good, bad, none}, p)...)
	golden.Check(t, "testdata/badnet-table.golden", strings.Join(lines, "\n")+"\n")
}
