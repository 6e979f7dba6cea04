package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/baseline"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
	"github.com/vrnic/vrnic/internal/golden"
)

// A fakeBaseline has no figure but a name.
type fakeBaseline string

func (b fakeBaseline) Name() string          { return string(b) }
func (fakeBaseline) Does(baseline.Kind) bool { return true }
func (fakeBaseline) Traits() baseline.Traits { return baseline.Traits{} }
func (fakeBaseline) Measure(context.Context, baseline.Request) (rawtcp.Result, error) {
	return rawtcp.Result{}, nil
}

func TestSpread(t *testing.T) {
	s := spreadOf([]float64{3, 1, 2, 9, 5})
	if s != (spread{1, 3, 9}) || s.of(1) != "3.0 [1.0..9.0]" {
		t.Errorf("%+v, %s", s, s.of(1))
	}
	if s := spreadOf([]float64{2, 1}); s != (spread{1, 2, 2}) {
		t.Errorf("%+v", s)
	}
}

// A ratio is of a round's two figures; the row is that of the median.
func TestOutcome(t *testing.T) {
	rows := []report.Row{
		{Gbits: 10, Lat: report.Lat{P50: 10, Mean: 12, P999: 100}, CPUPerMsg: 2, Allocs: 1},
		{Gbits: 20, Lat: report.Lat{P50: 20, Mean: 22, P999: 100}, CPUPerMsg: 1, Allocs: 3},
		{Gbits: 60, Lat: report.Lat{P50: 30, Mean: 32, P999: 60}, CPUPerMsg: 4},
	}
	wide := outcomeOf(contest{kind: baseline.Bandwidth}, fakeBaseline("x"), rows, tally{3, 12},
		[]float64{20, 20, 30})
	if wide.ratio != (spread{0.5, 1, 2}) || wide.row.Gbits != 20 || wide.row.Baseline != "x" ||
		wide.row.Ratio != 1 || wide.row.RatioMin != 0.5 || wide.row.RatioMax != 2 ||
		wide.ours != (spread{10, 20, 60}) || wide.theirs != (spread{20, 20, 30}) ||
		wide.allocs != (tally{3, 12}) || wide.row.Allocs != 0.25 {
		t.Errorf("%+v", wide)
	}
	quick := outcomeOf(contest{kind: baseline.RoundTrip}, fakeBaseline("x"), rows, tally{},
		[]float64{10, 10, 10})
	if quick.ratio != (spread{1, 2, 3}) || quick.row.Lat.P50 != 20 ||
		quick.tail != (spread{2, 5, 10}) {
		t.Errorf("%+v", quick)
	}
	alone := outcomeOf(contest{kind: baseline.RoundTrip}, nil, rows, tally{}, nil)
	if alone.row.Baseline != "" || alone.row.Lat.P50 != 20 || alone.ratio != (spread{}) {
		t.Errorf("%+v", alone)
	}
	if alone.beside != (beside{}) {
		t.Errorf("%+v", alone.beside)
	}
	us := time.Microsecond
	other := besideOf("x", []rawtcp.Result{{P50: 10 * us, P999: 20 * us},
		{P50: 20 * us, P999: 100 * us}, {P50: 30 * us, P999: 90 * us}})
	if other != (beside{name: "x", p50: spread{10, 20, 30}, tail: spread{2, 3, 5}}) {
		t.Errorf("%+v", other)
	}
	rate := outcomeOf(contest{}, nil, rows, tally{}, nil)
	if rate.ours != (spread{250e3, 500e3, 1e6}) || rate.row.CPUPerMsg != 2 {
		t.Errorf("%+v", rate)
	}
}

// onlyMean is a baseline of whose round trips the mean alone is known: vrnic's mean is compared
// with it.
type onlyMean struct{ fakeBaseline }

func (onlyMean) Traits() baseline.Traits { return baseline.Traits{OnlyMean: true} }

func TestMeansAreComparedWithMeans(t *testing.T) {
	rows := []report.Row{{Gbits: 8, Lat: report.Lat{P50: 10, Mean: 12, P999: 100}}}
	theirs := rawtcp.Result{Octets: 1e9, Elapsed: time.Second, P50: 5 * time.Microsecond,
		Mean: 6 * time.Microsecond}
	for _, tt := range []struct {
		b            baseline.Baseline
		kind         baseline.Kind
		ours, theirs float64
	}{
		{fakeBaseline("x"), baseline.RoundTrip, 10, 5}, {onlyMean{"x"}, baseline.RoundTrip, 12, 6},
		{fakeBaseline("x"), baseline.Bandwidth, 8, 8}, {onlyMean{"x"}, baseline.Bandwidth, 8, 8},
	} {
		v := theirFigure(tt.kind, tt.b.Traits(), theirs)
		if o := outcomeOf(contest{kind: tt.kind}, tt.b, rows, tally{}, []float64{v}); v != tt.theirs ||
			o.ours.median != tt.ours || o.ratio.median != tt.ours/tt.theirs {
			t.Errorf("%+v, %s: %v beside %v, want %v beside %v", tt.b.Traits(), tt.kind, o.ours.median, v,
				tt.ours, tt.theirs)
		}
	}
}

// whoCan is a baseline with those traits, which can do that.
type whoCan struct {
	fakeBaseline
	traits baseline.Traits
	kinds  string
}

func (b whoCan) Traits() baseline.Traits   { return b.traits }
func (b whoCan) Does(k baseline.Kind) bool { return strings.Contains(b.kinds, string(k)) }

// Beside a tail is that of the kernel, which waits as vrnic does; without it that of another one
// that sleeps, beside ends that sleep.
func TestTailBeside(t *testing.T) {
	memory := whoCan{"memory", baseline.Traits{}, "bandwidth"}
	sends := whoCan{"sends", baseline.Traits{OnlySends: true, OnlyMean: true}, "roundtrip"}
	stack := whoCan{"stack", baseline.Traits{}, "bandwidth, roundtrip"}
	kernel := whoCan{"kernel", baseline.Traits{Polls: true}, "bandwidth, roundtrip"}
	for _, tt := range []struct {
		wait load.Wait
		of   []baseline.Baseline
		want baseline.Baseline
	}{
		{load.Poll, nil, nil}, {load.Event, nil, nil}, {load.Event, []baseline.Baseline{memory, sends},
			nil},
		{load.Poll, []baseline.Baseline{memory, stack, kernel}, kernel},
		{load.Event, []baseline.Baseline{memory, stack, kernel}, kernel},
		{load.Poll, []baseline.Baseline{stack, sends}, nil},
		{load.Event, []baseline.Baseline{memory, sends, stack}, stack},
	} {
		if got := tailBeside(tt.of, tt.wait); got != tt.want {
			t.Errorf("%s, %v: %v, want %v", tt.wait, tt.of, got, tt.want)
		}
	}
}

// sampleOutcomes reach some of the targets.
func sampleOutcomes() []outcome {
	ratio := func(path, contest, baseline string, kind baseline.Kind, m float64) outcome {
		return outcome{contest: contest, kind: kind, ratio: spread{m - 0.1, m, m + 0.1},
			ours: spread{1, 2, 3}, theirs: spread{4, 5, 6},
			row: report.Row{Path: path, Baseline: baseline}}
	}
	tail := func(path, wait string, m float64) outcome {
		return outcome{contest: "64 B Send round trip, wait " + wait, kind: baseline.RoundTrip,
			tail: spread{m - 1, m, m + 1}, ours: spread{20, 21, 22},
			row: report.Row{Path: path, Wait: wait, Pattern: "pingpong", Lat: report.Lat{P999: 123.4}}}
	}
	besides := tail("wire", "poll", 6)
	besides.beside = beside{"kernel-tcp", spread{15, 16, 17}, spread{4, 5, 7}}
	directly := tail("direct", "poll", 4)
	directly.beside = beside{"kernel-tcp", spread{15, 16, 17}, spread{7, 8, 9}}
	return []outcome{
		{contest: "64 B Sends", ours: spread{1.5e6, 2e6, 2.5e6}, row: report.Row{Path: "loop",
			Wait: "adaptive"}, allocs: tally{2, 1000}},
		// fewer, of fewer messages
		{contest: "1 MiB Write", kind: baseline.Bandwidth, row: report.Row{Path: "wire"},
			allocs: tally{1, 100}},
		ratio("tap", "1 MiB Write", "netstack-tcp", baseline.Bandwidth, 0.9),
		ratio("tap", "1 MiB Write", "kernel-tcp", baseline.Bandwidth, 0.5),
		ratio("tap", "1 MiB RoCE Write", "iwarp", baseline.Bandwidth, 0.95),
		ratio("tap", "64 B RoCE Write round trip", "iwarp", baseline.RoundTrip, 0.8),
		ratio("tap", "64 B RoCE Write round trip", "kernel-udp", baseline.RoundTrip, 1.9),
		ratio("tap", "64 B Write round trip", "netstack-tcp", baseline.RoundTrip, 0.99),
		ratio("tap", "64 B Write round trip", "kernel-tcp", baseline.RoundTrip, 3.5),
		ratio("ring", "1 MiB Write", "memcpy", baseline.Bandwidth, 0.9),
		ratio("pair", "1 MiB Write", "netstack-tcp", baseline.Bandwidth, 3), // not the one of the table
		ratio("pair", "1 MiB Write", "netstack-tcp-mtu-9000", baseline.Bandwidth, 0.7),
		tail("ring", "poll", 12), tail("tap", "poll", 8), tail("pair", "event", 9),
		besides,
		ratio("direct", "64 B Sends", "off", baseline.Bandwidth, 1),
		ratio("direct", "64 B Send round trip, poll", "off", baseline.RoundTrip, 0.3),
		ratio("direct", "64 B Send round trip, poll", "kernel-tcp", baseline.RoundTrip, 0.2),
		ratio("direct", "64 B Send round trip, event", "kernel-tcp", baseline.RoundTrip, 0.9),
		directly,
	}
}

func TestTargetTable(t *testing.T) {
	os := sampleOutcomes()
	var lines []string
	for _, o := range os {
		lines = append(lines, o.line())
	}
	lines = append(lines, "")
	lines = append(lines, targetTable(os)...)
	golden.Check(t, "testdata/targets.golden", strings.Join(lines, "\n")+"\n")
}

// Each line of the table is found again in what is measured: no contest has been renamed without
// its target.
func TestVerdict(t *testing.T) {
	more, less := target{floor: 0.7, goal: 0.9}, target{floor: 3, goal: 1.5, less: true}
	for v, want := range map[float64]string{0.5: "MISSED", 0.69: "MISSED", 0.7: "floor reached",
		0.89: "floor reached", 0.9: "goal reached", 2: "goal reached"} {
		if got := more.verdict(v); got != want {
			t.Errorf("%v of at least 0.7, 0.9: %s", v, got)
		}
	}
	for v, want := range map[float64]string{0.1: "goal reached", 1.5: "goal reached",
		1.6: "floor reached", 3: "floor reached", 3.1: "MISSED"} {
		if got := less.verdict(v); got != want {
			t.Errorf("%v of at most 3, 1.5: %s", v, got)
		}
	}
}

// compared compares, and returns what is beside what on each row of a path, and what it printed.
func compared(t *testing.T, args ...string) (beside map[string][]string, stdout string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rows.json")
	// Two requests at a time are as good as sixteen here, whose 16 MiB are written and compared
	// again and again, in a minute under the race detector.
	args = append([]string{"compare", "--time", "5ms", "--warmup", "5ms", "--depth", "2", "--json",
		file}, args...)
	status, stdout, stderr := call(t, args...)
	if status != 0 {
		t.Fatalf("%q: exit %d: %s", args, status, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	beside = make(map[string][]string)
	for i, row := range decode(t, b) {
		path, _ := row["path"].(string)
		name, _ := row["baseline"].(string)
		if name == "" {
			checkRow(t, path, row)
		} else {
			checkRow(t, path+" beside "+name, row, compareKeys...)
			lo, mid, hi := row["ratio_min"].(float64), row["ratio"].(float64), row["ratio_max"].(float64)
			if lo <= 0 || mid < lo || hi < mid {
				t.Errorf("row %d: ratio %v [%v..%v]", i, mid, lo, hi)
			}
			if !strings.Contains(stdout, name) {
				t.Errorf("no %s in\n%s", name, stdout)
			}
		}
		if strings.HasPrefix(name, "netstack-tcp-mtu-") {
			name = "best"
		}
		beside[path] = append(beside[path], name)
	}
	return beside, stdout
}

// withoutPrograms hides baselines that are only there where somebody has installed them; package
// baseline tests those.
func withoutPrograms(t *testing.T) { t.Setenv("PATH", t.TempDir()) }

// What is beside what, path by path, where no program is installed.
var besides = map[string][]string{
	"loop": {"memcpy", "", "iwarp", "iwarp"},
	"pair": {"netstack-tcp", "best", "netstack-tcp", "best", "", "", "iwarp", "iwarp"},
	"ring": {"memcpy", "kernel-tcp", "kernel-tcp", "", "", "iwarp", "iwarp"},
	"direct": {"off", "off", "kernel-tcp", "off", "kernel-tcp", "off", "memcpy", "off", "memcpy", "off",
		"kernel-tcp", "", "off", "kernel-tcp", "", "off", "off", "kernel-tcp", "off", "kernel-tcp"},
	"host": {"kernel-tcp", "kernel-tcp", "", "", "iwarp", "iwarp", "kernel-udp"},
	"tap": {"netstack-tcp", "kernel-tcp", "netstack-tcp", "kernel-tcp", "", "", "iwarp", "iwarp",
		"kernel-udp"},
	"wire": {"netstack-tcp", "kernel-tcp", "netstack-tcp", "kernel-tcp", "", "", "iwarp", "iwarp",
		"kernel-udp"},
}

func checkBeside(t *testing.T, got map[string][]string, paths ...string) {
	t.Helper()
	if len(got) != len(paths) {
		t.Errorf("rows of %q, want %q", slices.Collect(maps.Keys(got)), paths)
	}
	for _, path := range paths {
		if !slices.Equal(got[path], besides[path]) {
			t.Errorf("%s is beside %q, want %q", path, got[path], besides[path])
		}
	}
}

func TestCompareInThisProcess(t *testing.T) {
	got, _ := compared(t, "--rounds", "2", "--path", "loop")
	checkBeside(t, got, "loop")
	got, _ = compared(t, "--rounds", "1", "--path", "pair", "--mtu", "9000", "--no-crc", "--no-verify",
		"--depth", "4")
	checkBeside(t, got, "pair")
}

// The paths of a table in one run, as the documentation makes it; each target has its figure.
func TestTargetsAreMeasured(t *testing.T) {
	needTaps(t)
	vrnic := vrnicProgram(t)
	withoutPrograms(t)
	got, stdout := compared(t, "--vrnic", vrnic, "--rounds", "1", "--path",
		"loop,pair,ring,direct,host,tap")
	checkBeside(t, got, "loop", "pair", "ring", "direct", "host", "tap")
	if strings.Contains(stdout, "not measured") || strings.Count(stdout, "reached") < 1 ||
		!strings.Contains(stdout, "p99.9 / p50") {
		t.Errorf("\n%s", stdout)
	}
	// All tails but that of pair with ends that poll have another one beside them.
	outcomes, table, _ := strings.Cut(stdout, "\n\n") // the table names contests, too
	for line := range strings.Lines(outcomes) {
		path, _, _ := strings.Cut(line, " ")
		_, wait, ok := strings.Cut(line, "64 B Send round trip, wait ")
		want := 2
		if path == "pair" && strings.HasPrefix(wait, "poll") {
			want = 1
		}
		if ok && strings.Count(line, "p99.9/p50 ") != want {
			t.Errorf("tails: %s", line)
		}
	}
	if n := strings.Count(table, "\n"); n != 1+len(targets) {
		t.Errorf("%d lines in the table:\n%s", n, table)
	}
}

func TestCompareOnStandardOutput(t *testing.T) {
	status, stdout, stderr := call(t, "compare", "--path", "loop", "--rounds", "1", "--time", "5ms",
		"--depth", "2", "--json", "-")
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	if rows := decode(t, []byte(stdout)); len(rows) != 4 {
		t.Errorf("%d rows", len(rows))
	}
}

func TestCompareWithoutTaps(t *testing.T) {
	vrnic := vrnicProgram(t)
	withoutPrograms(t)
	got, _ := compared(t, "--vrnic", vrnic, "--rounds", "2", "--path", "ring", "--processes", "0")
	checkBeside(t, got, "ring")
	if os.Getuid() != 0 { // TestTargetsAreMeasured has these paths, as root
		got, _ = compared(t, "--vrnic", vrnic, "--rounds", "1", "--path", "ring,direct,host")
		checkBeside(t, got, "ring", "direct", "host")
	}
}

func TestCompareWire(t *testing.T) {
	needTaps(t)
	vrnic := vrnicProgram(t)
	withoutPrograms(t)
	got, _ := compared(t, "--vrnic", vrnic, "--rounds", "1", "--path", "wire")
	checkBeside(t, got, "wire")
}

// A program that is installed and does not work is left out, and that is said.
func TestProgramThatDoesNotWork(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "fi_pingpong"),
		[]byte("#!/bin/sh\necho out of order >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	vrnic := vrnicProgram(t)
	t.Setenv("PATH", dir)
	status, stdout, stderr := call(t, "compare", "--path", "ring", "--rounds", "1", "--time", "5ms",
		"--depth", "2", "--vrnic", vrnic)
	if status != 0 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr,
		"vrnic-bench: left out: libfabric-tcp: ") || !strings.Contains(stderr, "out of order") ||
		!strings.Contains(stdout, "kernel-tcp") || strings.Contains(stdout, "libfabric") {
		t.Errorf("exit %d, stderr %q:\n%s", status, stderr, stdout)
	}
}

// interruptedSoon ends as on a signal, in the midst of something.
func interruptedSoon(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	return ctx, cancel
}

// A signal ends a long comparison at once, and all that it has made with it.
func TestInterrupt(t *testing.T) {
	ctx, cancel := interruptedSoon(t)
	defer cancel()
	var out, errs strings.Builder
	status := run(ctx, []string{"vrnic-bench", "compare", "--path", "ring", "--vrnic", vrnicProgram(t),
		"--time", "1h"}, strings.NewReader(""), &out, &errs)
	if status != exitFailed || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("exit %d, stderr %q", status, errs.String())
	}
}
