package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

// bench runs the program and returns what it printed.
func bench(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	status = run(ctx, append([]string{"vrnic-bench"}, args...), strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

func TestWrongUse(t *testing.T) {
	for _, args := range []string{
		"nonsense",
		"--nonsense",
		"--path nowhere",
		"--op atomic",
		"--size 0",
		"--size 12",
		"--size x",
		"--size 1G",
		"--size 128M",
		"--size -8",
		"--depth 0",
		"--depth 100000",
		"--depth 1024 --size 64M",
		"--time 0s",
		"--time soon",
		"--messages -1",
		"compare --rounds 0",
		"compare --time -1s",
		"compare --path nowhere",
		"compare --depth 0",
		"compare now",
		"compare --nonsense",
		"raw-peer --tap t --addr nonsense",
	} {
		status, stdout, stderr := bench(t, strings.Fields(args)...)
		if status != exitUsage {
			t.Errorf("%q: exit %d, want %d", args, status, exitUsage)
		}
		if stdout != "" {
			t.Errorf("%q prints %q", args, stdout)
		}
		if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "vrnic-bench: ") {
			t.Errorf("%q: stderr %q, want one line", args, stderr)
		}
	}
}

func TestFailure(t *testing.T) {
	for _, args := range [][]string{
		{"--path", "ring", "--vrnic", "/nonexistent/vrnic"},
		{"--path", "loop", "--messages", "2", "--size", "64", "--json", filepath.Join(t.TempDir(), "no", "dir")},
		{"--cpuprofile", filepath.Join(t.TempDir(), "no", "dir")},
	} {
		status, _, stderr := bench(t, args...)
		if status != exitFailed || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q", args, status, stderr)
		}
	}
}

// The keys of a row are a contract of the command line.
var rowKeys = []string{"path", "op", "size", "depth", "seconds", "messages", "gbit_s", "lat_us", "cpu_ns_per_byte", "cpu_us_per_msg", "allocs_per_msg"}
var latKeys = []string{"p50", "p90", "p99", "p999", "max"}

// checkRows checks the JSON in b, and that it has n rows, whose keys are rowKeys and more.
func checkRows(t *testing.T, b []byte, n int, more ...string) (rows []map[string]any) {
	t.Helper()
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	if len(rows) != n {
		t.Errorf("%d rows, want %d", len(rows), n)
	}
	for i, row := range rows {
		wantKeys(t, fmt.Sprintf("row %d", i), row, append(more, rowKeys...))
		lat, _ := row["lat_us"].(map[string]any)
		wantKeys(t, fmt.Sprintf("lat_us of row %d", i), lat, latKeys)
		for _, key := range []string{"seconds", "messages", "gbit_s", "size", "depth"} {
			if v, ok := row[key].(float64); !ok || v <= 0 {
				t.Errorf("row %d: %s is %v", i, key, row[key])
			}
		}
		last := 0.0
		for _, key := range latKeys {
			v, ok := lat[key].(float64)
			if !ok || v <= 0 || v < last {
				t.Errorf("row %d: lat_us %v", i, lat)
			}
			last = v
		}
	}
	return rows
}

func wantKeys(t *testing.T, what string, m map[string]any, want []string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(m))
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s has keys %q, want %q", what, got, want)
	}
}

func TestEachOpOnEmbeddedPaths(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.json")
	status, stdout, stderr := bench(t, "--messages", "40", "--json", file)
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rows := checkRows(t, b, 18)
	seen := map[string]bool{}
	for _, row := range rows {
		seen[fmt.Sprint(row["path"], row["op"], row["size"])] = true
		if row["messages"] != 40.0 {
			t.Errorf("%v messages, want 40", row["messages"])
		}
	}
	if len(seen) != 18 {
		t.Errorf("%d different rows: %v", len(seen), seen)
	}
	if lines := strings.Count(stdout, "\n"); lines != 19 {
		t.Errorf("%d lines, want a heading and 18:\n%s", lines, stdout)
	}
}

func TestJSONOnStandardOutput(t *testing.T) {
	status, stdout, stderr := bench(t, "--path", "loop", "--op", "send", "--size", "1k", "--depth", "3", "--messages", "40", "--json", "-", "--no-crc")
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	row := checkRows(t, []byte(stdout), 1)[0]
	if row["path"] != "loop" || row["op"] != "send" || row["size"] != 1024.0 || row["depth"] != 3.0 {
		t.Errorf("%v", row)
	}
}

func TestCompareLoop(t *testing.T) {
	status, stdout, stderr := bench(t, "compare", "--path", "loop", "--rounds", "3", "--time", "20ms", "--json", "-")
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	row := checkRows(t, []byte(stdout), 1, "baseline", "ratio")[0]
	if row["baseline"] != "memcpy" || row["ratio"].(float64) <= 0 {
		t.Errorf("%v", row)
	}
	status, stdout, _ = bench(t, "compare", "--path", "loop", "--rounds", "1", "--time", "20ms")
	if status != 0 || !strings.Contains(stdout, "memcpy") || !strings.Contains(stdout, "ratio ") || strings.Count(stdout, "\n") != 2 {
		t.Errorf("exit %d:\n%s", status, stdout)
	}
}

// vrnicProgram builds the daemon's program.
func vrnicProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vrnic")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/vrnic/vrnic/cmd/vrnic").CombinedOutput(); err != nil {
		t.Fatalf("build vrnic: %v\n%s", err, out)
	}
	return path
}

func TestRing(t *testing.T) {
	status, stdout, stderr := bench(t, "--path", "ring", "--vrnic", vrnicProgram(t), "--messages", "40", "--json", "-")
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	checkRows(t, []byte(stdout), 9)
}

func TestTap(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces and TAPs need root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TAPs here: %v", err)
	}
	vrnic := vrnicProgram(t)
	status, stdout, stderr := bench(t, "--path", "tap", "--vrnic", vrnic, "--messages", "40", "--json", "-")
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	checkRows(t, []byte(stdout), 9)

	status, stdout, stderr = bench(t, "compare", "--path", "tap", "--vrnic", vrnic, "--rounds", "1", "--time", "50ms", "--json", "-")
	if status != 0 {
		t.Fatalf("compare: exit %d: %s", status, stderr)
	}
	for i, row := range checkRows(t, []byte(stdout), 4, "baseline", "ratio") {
		if want := []string{"netstack-tcp", "netstack-tcp", "kernel-tcp", "kernel-tcp"}[i]; row["baseline"] != want {
			t.Errorf("row %d is beside %v, want %s", i, row["baseline"], want)
		}
	}
}

// TestMain is also the raw peer that compare starts: this program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "raw-peer" {
		os.Exit(run(context.Background(), os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int{"8": 8, "64k": 65536, "1M": 1 << 20, "64M": 64 << 20} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "k", "-1", "65M", "1kk", "9999999999999999999999", "1.5k"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d", in, got)
		}
	}
}

func TestUnknownPathNamesThoseThereAre(t *testing.T) {
	if _, err := paths.Open("nowhere", paths.Options{}); err == nil || !strings.Contains(err.Error(), "loop") {
		t.Errorf("%v", err)
	}
}
