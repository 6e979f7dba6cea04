package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWrongUseOfScale(t *testing.T) {
	for args, why := range map[string]string{
		"--qps 0": "1 to 10000", "--qps 10001": "1 to 10000", "--mrs -1": "0 to", "--mrs 3000000": "0 to",
		"--time 0s": "more than 0", "--idle 0s": "more than 0", "now": "unexpected",
		"--path nowhere": "loop, pair", "--depth 3": "--help",
	} {
		status, stdout, stderr := call(t, append([]string{"scale"}, strings.Fields(args)...)...)
		if status != exitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 ||
			!strings.Contains(stderr, why) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q, want %q", args, status, stdout, stderr, why)
		}
	}
	if status, _, _ := call(t, "scale", "--json", filepath.Join(t.TempDir(), "no", "f")); status !=
		exitFailed {
		t.Errorf("exit %d", status)
	}
}

// All figures of a small run: those of the table are those of the file.
func TestScale(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	status, stdout, stderr := call(t, "scale", "--path", "loop,pair,ring", "--vrnic", vrnicProgram(t),
		"--qps", "12", "--mrs", "100", "--time", "2ms", "--idle", "20ms", "--json", file)
	if status != 0 {
		t.Fatalf("exit %d: %s", status, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var figures []figure
	if err := json.Unmarshal(b, &figures); err != nil {
		t.Fatal(err)
	}
	targets := 0
	var names []string
	for _, f := range figures {
		// Memory may come from what was there, and idle processes use nothing.
		if f.Value < 0 || f.Value == 0 && !strings.HasPrefix(f.Name, "memory") && !strings.HasPrefix(
			f.Name, "processor") && !strings.HasPrefix(f.Name, "work") {
			if !strings.HasPrefix(f.Name, "memory of") {
				t.Errorf("%+v", f)
			}
		}
		if !strings.Contains(stdout, f.line()+"\n") {
			t.Errorf("no line %q in\n%s", f.line(), stdout)
		}
		if f.Target != 0 {
			targets++
		}
		if f.Path == "ring" {
			names = append(names, f.Name)
		}
	}
	want := []string{
		"100 registrations", "memory of a registration", "12 connections",
		"making and connecting two QPs", "memory of a connection, both ends",
		"work behind the last message", "processor when idle, 12 QPs", "memory with all of it",
	}
	for _, kind := range []string{"64 B Send, turns", "64 B Send, all", "64 B Write, all"} {
		for _, n := range []int{1, 10, 12} {
			want = append(want, fmt.Sprintf("%s, %d QPs", kind, n))
		}
		if kind == "64 B Send, turns" {
			want = append(want, kind+": dearest / cheapest")
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("got  %q\nwant %q", names, want)
	}
	if targets != 3*4 {
		t.Errorf("%d targets", targets)
	}
	status, stdout, _ = call(t, "scale", "--path", "loop", "--qps", "1", "--mrs", "0", "--time", "1ms",
		"--idle", "2ms", "--json", "-")
	if err := json.Unmarshal([]byte(stdout), &figures); status != 0 || err != nil {
		t.Errorf("exit %d, %v:\n%s", status, err, stdout)
	}
}

// The same is measured of RoCE.
func TestScaleOfRoCE(t *testing.T) {
	status, stdout, stderr := call(t, "scale", "--roce", "--vrnic", vrnicProgram(t), "--qps", "12",
		"--mrs", "100", "--time", "2ms", "--idle", "20ms")
	if status != 0 || strings.Count(stdout, "64 B Write, all, 12 QPs") != len(figurePaths) {
		t.Errorf("exit %d, stderr %q:\n%s", status, stderr, stdout)
	}
}

func TestFigure(t *testing.T) {
	for want, f := range map[string]figure{
		"loop  connections                                          2500 a second       target >= 2000 reached": {"loop", "connections", 2500, "a second", 2000, true},
		"loop  connections                                          1500 a second       target >= 2000 MISSED":  {"loop", "connections", 1500, "a second", 2000, true},
		"ring  memory                                               3.50 GiB            target <= 4 reached":    {"ring", "memory", 3.5, "GiB", 4, false},
		"ring  memory                                               4.50 GiB            target <= 4 MISSED":     {"ring", "memory", 4.5, "GiB", 4, false},
		"pair  64 B Write                                           0.25 us of CPU":                             {"pair", "64 B Write", 0.25, "us of CPU", 0, false},
	} {
		if got := f.line(); got != want {
			t.Errorf("%q\nwant\n%q", got, want)
		}
	}
}

// An interrupted run ends, wherever it is.
func TestScaleInterrupted(t *testing.T) {
	ctx, cancel := interruptedSoon(t)
	defer cancel()
	var out, errs strings.Builder
	if status := run(ctx, []string{"vrnic-bench", "scale", "--path", "loop"}, strings.NewReader(""),
		&out, &errs); status != exitFailed {
		t.Errorf("exit %d:\n%s%s", status, out.String(), errs.String())
	}
}
