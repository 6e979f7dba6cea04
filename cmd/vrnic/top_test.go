package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// vrnic top prints who moves what, with the program's name and number, where nobody looks at a
// terminal.
func TestTop(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	ping := startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p",
		port, "-C", "100000000", "-S", "4096")
	var row []string
	needtest.Eventually(t, "a rate of the ping's queue pair", func() bool {
		status, stdout, stderr := vrnic("top", "--socket", socket, "-n", "1", "--interval", "100ms",
			"--sort", "messages")
		if status != 0 || !strings.Contains(stdout, "2 devices") {
			t.Fatalf("status %d, %s%s", status, stdout, stderr)
		}
		for line := range strings.Lines(stdout) {
			if row = strings.Fields(line); len(row) == 10 && row[0] == "left" && row[5] != "0" &&
				row[6] != "0" && row[7] != "0" {
				return true
			}
		}
		return false
	})
	if row[2] != fmt.Sprint(ping.cmd.Process.Pid) || row[4] != "RTS" || row[8] != "0" ||
		!strings.HasPrefix(row[9], "10.1.0.2:") {
		t.Errorf("%q", row)
	}
	status, stdout, _ := vrnic("top", "--socket", socket, "-n", "1", "--interval", "10ms",
		"--programs")
	if status != 0 || !strings.Contains(stdout, fmt.Sprintf("\n%7d ", ping.cmd.Process.Pid)) {
		t.Errorf("programs: status %d, %s", status, stdout)
	}
	for _, args := range [][]string{{"--sort", "name"}, {"--interval", "1ms"}, {"-n", "-1"},
		{"more"}} {
		if status, _, stderr := vrnic(append([]string{"top", "--socket", socket}, args...)...); status !=
			exitUsage || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, %s", args, status, stderr)
		}
	}
}

// vrnic stat --histogram prints what requests take while it looks, and says in words what cannot be
// looked at.
func TestStatHistogram(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p", port, "-C",
		"100000000")
	type row struct {
		Dev   string
		QPN   uint32
		Op    string
		Count int
		Max   int `json:"max_ns"`
	}
	var qpn uint32
	needtest.Eventually(t, "Sends of the ping", func() bool {
		status, stdout, stderr := vrnic("stat", "--histogram", "left", "--for", "100ms", "--json",
			"--socket", socket)
		var rows []row
		if err := json.Unmarshal([]byte(stdout), &rows); status != 0 || err != nil {
			t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
		}
		for _, r := range rows {
			if r.Dev == "left" && r.Op == "SEND" && r.Count > 0 && r.Max > 0 {
				qpn = r.QPN
			}
		}
		return qpn != 0
	})
	for _, of := range []string{fmt.Sprint(qpn), "all"} {
		needtest.Eventually(t, "a table of "+of, func() bool {
			status, stdout, stderr := vrnic("stat", "--histogram", of, "-d", "left", "--for", "100ms",
				"--socket", socket)
			lines := strings.Split(stdout, "\n")
			if status != 0 || !strings.Contains(lines[0], " P99.9 ") {
				t.Fatalf("status %d, %s%s", status, stdout, stderr)
			}
			f := strings.Fields(lines[1])
			return len(f) == 10 && f[0] == "left" && f[1] == fmt.Sprint(qpn)
		})
	}
	for args, want := range map[string]int{"--histogram middle": exitUsage, "--for 1s": exitUsage,
		"--histogram all --for 0s": exitUsage, "--histogram all --watch": exitUsage,
		"--histogram 9999999 --for 1s": exitFailed, "--histogram 1 -d middle --for 1s": exitFailed} {
		if status, _, stderr := vrnic(append([]string{"stat", "--socket", socket},
			strings.Fields(args)...)...); status != want || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, %s", args, status, stderr)
		}
	}
}
