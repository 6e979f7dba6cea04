package main

import (
	"fmt"
	"strings"
	"testing"
)

// vrnic top prints who moves what, with the program's name and number, where nobody looks at a
// terminal.
func TestTop(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	ping := startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p",
		port, "-C", "100000000", "-S", "4096")
	var row []string
	eventually(t, "a rate of the ping's queue pair", func() bool {
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
