package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
	"github.com/vrnic/vrnic/internal/needtest"
)

// The keys of a row are a contract of the command line.
var (
	rowKeys = []string{
		"path", "op", "size", "depth", "seconds", "messages", "gbit_s", "lat_us", "cpu_ns_per_byte",
		"cpu_us_per_msg", "allocs_per_msg",
		"msg_s", "qps", "processes", "pattern", "wait", "transport", "bidirectional", "verified",
	}
	// in order of their values
	latKeys     = []string{"min", "p50", "p90", "p99", "p999", "p9999", "max"}
	compareKeys = []string{"baseline", "ratio", "ratio_min", "ratio_max"}
)

// decode reads rows of JSON.
func decode(t *testing.T, b []byte) (rows []map[string]any) {
	t.Helper()
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	return rows
}

// checkRows checks the JSON in b, and that it has n rows, whose keys are rowKeys and more.
func checkRows(t *testing.T, b []byte, n int, more ...string) (rows []map[string]any) {
	t.Helper()
	if rows = decode(t, b); len(rows) != n {
		t.Errorf("%d rows, want %d", len(rows), n)
	}
	for i, row := range rows {
		checkRow(t, fmt.Sprintf("row %d", i), row, more...)
	}
	return rows
}

func checkRow(t *testing.T, what string, row map[string]any, more ...string) {
	t.Helper()
	wantKeys(t, what, row, append(more, rowKeys...))
	lat, _ := row["lat_us"].(map[string]any)
	wantKeys(t, "lat_us of "+what, lat, append([]string{"mean"}, latKeys...))
	for _, key := range []string{"seconds", "messages", "gbit_s", "size", "depth", "msg_s",
		"cpu_us_per_msg", "cpu_ns_per_byte"} {
		if v, ok := row[key].(float64); !ok || v <= 0 {
			t.Errorf("%s: %s is %v", what, key, row[key])
		}
	}
	last := 0.0
	for _, key := range latKeys {
		v, ok := lat[key].(float64)
		if !ok || v <= 0 || v < last {
			t.Errorf("%s: lat_us %v", what, lat)
		}
		last = v
	}
}

func wantKeys(t *testing.T, what string, m map[string]any, want []string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(m))
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s has keys %q, want %q", what, got, want)
	}
}

// rowsOf measures and returns the rows.
func rowsOf(t *testing.T, n int, args ...string) []map[string]any {
	t.Helper()
	status, stdout, stderr := call(t, append(args, "--json", "-")...)
	if status != 0 {
		t.Fatalf("%q: exit %d: %s", args, status, stderr)
	}
	return checkRows(t, []byte(stdout), n)
}

// Every operation there is, on each path in this process, in both patterns, both ways, with each
// way to wait.
func TestEachOpOnEmbeddedPaths(t *testing.T) {
	for _, more := range [][]string{
		nil, {"--depth", "4"}, {"--pattern", "stream", "--depth", "1"}, {"--bidir"},
		{"--bidir", "--depth", "4", "--qps", "3"}, {"--wait", "poll"},
		{"--wait", "event", "--depth", "4"}, {"--qps", "4"}, {"--no-crc"}, {"--no-verify"},
	} {
		for _, path := range []string{"loop", "pair"} {
			t.Run(strings.Join(append(more, path), " "), func(t *testing.T) {
				args := append([]string{"--path", path, "--op", "all", "--size", "64,64k", "--messages", "40"},
					more...)
				rows := rowsOf(t, 10, args...)
				seen := map[string]bool{}
				for _, row := range rows {
					seen[fmt.Sprint(row["path"], row["op"], row["size"])] = true
					want := 40.0
					if row["bidirectional"] == true {
						want = 80
					}
					if row["messages"] != want {
						t.Errorf("%v messages, want %v", row["messages"], want)
					}
					if row["verified"] != !slices.Contains(more, "--no-verify") {
						t.Errorf("verified %v", row["verified"])
					}
				}
				if len(seen) != 10 {
					t.Errorf("%d different rows: %v", len(seen), seen)
				}
			})
		}
	}
}

func TestOverSCTP(t *testing.T) {
	for _, row := range rowsOf(t, 10, "--sctp", "--op", "all", "--size", "64,64k",
		"--messages", "40") {
		if row["transport"] != "sctp" || row["path"] != "pair" {
			t.Errorf("%v", row)
		}
	}
}

// What RoCE is measured with is what iWARP is.
func TestOverRoCE(t *testing.T) {
	for _, more := range [][]string{nil, {"--mtu", "9000", "--depth", "4", "--bidir", "--qps", "3"},
		{"--path", "ring", "--vrnic", vrnicProgram(t)}} {
		for _, row := range rowsOf(t, 10, append([]string{"--roce", "--op", "all", "--size", "64,64k",
			"--messages", "40"}, more...)...) {
			if row["transport"] != "roce" {
				t.Errorf("%v", row)
			}
		}
	}
}

func TestMTU(t *testing.T) {
	rowsOf(t, 1, "--mtu", "9000", "--op", "write", "--size", "64k", "--messages", "20")
}

// A standard set for a very short time: a table for people, and a file.
func TestStandardSet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.json")
	status, stdout, stderr := call(t, "--time", "2ms", "--warmup", "1ms", "--json", file)
	if status != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, b, 18)
	if lines := strings.Count(stdout, "\n"); lines != 19 {
		t.Errorf("%d lines, want a heading and 18:\n%s", lines, stdout)
	}
}

func TestJSONOnStandardOutput(t *testing.T) {
	row := rowsOf(t, 1, "--path", "loop", "--op", "send", "--size", "1k", "--depth", "3",
		"--messages", "40")[0]
	for key, want := range map[string]any{
		"path": "loop", "op": "send", "size": 1024.0, "depth": 3.0, "qps": 1.0, "processes": 0.0,
		"pattern": "stream", "wait": "adaptive",
		"transport": "none", "bidirectional": false, "verified": true,
	} {
		if row[key] != want {
			t.Errorf("%s is %v, want %v", key, row[key], want)
		}
	}
}

// What nobody has asked for by name, and cannot be, is left out, and that is said.
func TestLeftOut(t *testing.T) {
	status, stdout, stderr := call(t, "--path", "loop", "--wait", "event", "--size", "64",
		"--messages", "10")
	if status != 0 || strings.Count(stdout, "\n") != 3 || !strings.HasPrefix(stderr,
		"vrnic-bench: left out: wait event: ") {
		t.Errorf("exit %d, stderr %q:\n%s", status, stderr, stdout)
	}
}

// All files at once.
func TestOutputs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	read := func(name string) []byte {
		b, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const rows = 2 * 2 * 3
	status, stdout, stderr := call(t, "--path", "loop", "--op", "read,send", "--size", "64,128",
		"--count", "3", "--messages", "100", "--benchstat", "-",
		"--json", at("r.json"), "--csv", at("r.csv"), "--percentiles", at("r.hgrm"), "--plot",
		at("r.svg"))
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	checkRows(t, read("r.json"), rows)
	lines, err := csv.NewReader(strings.NewReader(string(read("r.csv")))).ReadAll()
	if err != nil || len(lines) != 1+rows || lines[0][0] != "path" || lines[1][0] != "loop" {
		t.Errorf("%v: %v", err, lines)
	}
	benchmark := regexp.MustCompile(`(?m)^BenchmarkVrnic/\S+\t100(\t[0-9.e+-]+ \S+)+$`)
	if n := len(benchmark.FindAllString(stdout, -1)); n != rows ||
		strings.Count(stdout, "\n") != rows+3 {
		t.Errorf("%d benchmarks in\n%s", n, stdout)
	}
	if n := strings.Count(string(read("r.hgrm")), "Percentile"); n < rows {
		t.Errorf("%d distributions, want %d", n, rows)
	}
	for _, name := range []string{"r-latency.svg", "r-bandwidth.svg"} {
		if b := string(read(name)); !strings.Contains(b, "</svg>") || !strings.Contains(b, "loop send") {
			t.Errorf("%s: %.200s", name, b)
		}
	}
	status, _, stderr = call(t, "--path", "loop", "--op", "read", "--size", "64", "--messages", "100",
		"--plot", at("r.png"))
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	for _, name := range []string{"r-latency.png", "r-bandwidth.png"} {
		f, err := os.Open(at(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if img, err := png.Decode(f); err != nil || img.Bounds().Dx() < 500 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCPUProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.out")
	if status, _, stderr := call(t, "--path", "loop", "--op", "write", "--size", "64", "--messages",
		"100", "--cpuprofile", file); status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	if st, err := os.Stat(file); err != nil || st.Size() == 0 {
		t.Errorf("%v, %v", st, err)
	}
}

// In the steady state nothing is allocated for a message.
func TestAllocationsOfARun(t *testing.T) {
	const messages = 20000
	for _, op := range load.Ops {
		row := rowsOf(t, 1, "--path", "loop", "--op", string(op), "--size", "8", "--depth", "8",
			"--messages", fmt.Sprint(messages), "--warmup", "5ms")[0]
		if allocs := row["allocs_per_msg"].(float64); allocs > 0.02 {
			t.Errorf("%s: %v allocations a message", op, allocs)
		}
	}
}

// Client processes of a daemon, both ends in this process, and several.
func TestRing(t *testing.T) {
	vrnic := vrnicProgram(t)
	for _, more := range [][]string{
		{"--op", "all"}, {"--op", "all", "--processes", "0"}, {"--op", "all", "--depth", "4", "--bidir",
			"--processes", "2", "--qps", "2"},
		{"--op", "send,write-imm,read", "--wait", "event"}, {"--op", "all", "--wait", "poll"},
	} {
		t.Run(strings.Join(more, " "), func(t *testing.T) {
			args := append([]string{"--path", "ring", "--vrnic", vrnic, "--size", "64,64k", "--messages",
				"40"}, more...)
			n := 10
			if !slices.Contains(more, "all") {
				n = 6
			}
			processes, sent := 1.0, 40.0
			if i := slices.Index(more, "--processes"); i >= 0 {
				processes = float64(more[i+1][0] - '0')
			}
			if slices.Contains(more, "--bidir") {
				sent *= 2
			}
			for _, row := range rowsOf(t, n, args...) {
				if row["processes"] != processes || row["messages"] != sent*max(processes, 1) {
					t.Errorf("%v", row)
				}
			}
		})
	}
}

func TestSyscalls(t *testing.T) {
	if s, err := meter.CountSyscalls([]int{os.Getpid()}); err != nil {
		needtest.Lacking(t, "perf", err)
	} else {
		s.Close()
	}
	status, stdout, stderr := call(t, "--path", "ring", "--vrnic", vrnicProgram(t), "--op", "send",
		"--size", "64", "--messages", "100", "--syscalls", "--json", "-")
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	row := checkRows(t, []byte(stdout), 1, "syscalls_per_msg")[0]
	if row["syscalls_per_msg"].(float64) <= 0 {
		t.Errorf("%v", row)
	}
}

func needTaps(t *testing.T) {
	t.Helper()
	needtest.Root(t) // network namespaces and TAPs
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		needtest.Lacking(t, "root", err)
	}
}

func TestTapAndWire(t *testing.T) {
	needTaps(t)
	vrnic := vrnicProgram(t)
	rowsOf(t, 20, "--path", "tap,wire", "--vrnic", vrnic, "--op", "all", "--size", "64,64k",
		"--messages", "40")
	rowsOf(t, 2, "--path", "tap,wire", "--vrnic", vrnic, "--op", "send", "--size", "64k", "--sctp",
		"--messages", "20")
	rowsOf(t, 4, "--path", "tap,wire", "--vrnic", vrnic, "--op", "write,read", "--size", "64k",
		"--roce", "--mtu", "9000", "--messages", "20")
}
