package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vrnic fault has calls of a program fail, which says so, as a file says that is checked without a
// daemon, and tells how often.
func TestFault(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2", "-P")
	file := filepath.Join(t.TempDir(), "faults")
	if err := os.WriteFile(file, []byte("# once\nleft reg_mr ENOMEM count 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, stdout, stderr := vrnic("fault", "check", file); status != 0 || stdout+stderr != "" {
		t.Errorf("check: status %d, %s%s", status, stdout, stderr)
	}
	if status, stdout, stderr := vrnic("fault", "--socket", socket, "--seed", "7", "--file",
		file); status != 0 || stdout != "seed 7\n" {
		t.Fatalf("status %d, %s%s", status, stdout, stderr)
	}
	status, _, stderr := vrnic("ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p",
		port, "-C", "1")
	if status != exitFailed || !strings.Contains(stderr, "register messages: shm: register memory") {
		t.Errorf("a program whose registration fails: status %d, %s", status, stderr)
	}
	pingVerified(t, socket, port, "-d left")
	if _, stdout, _ := vrnic("fault", "show", "--socket", socket); !strings.Contains(stdout,
		` fired 1 seed 7 words "left reg_mr ENOMEM count 1"`) {
		t.Errorf("%s", stdout)
	}
	if status, _, stderr := vrnic("fault", "off", "--socket", socket); status != 0 {
		t.Errorf("off: status %d, %s", status, stderr)
	}
	if err := os.WriteFile(file, []byte("# none\nleft reg_mr ELOOP\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, stderr := vrnic("fault", "--socket", socket, "--file", file, "left", "reg_mr",
		"EIO"); !strings.Contains(stderr, "line 2: ") {
		t.Errorf("a wrong line 2 of a file: %s", stderr)
	}
	for words, want := range map[string]int{
		"": exitUsage, "left": exitUsage, "left fly EIO": exitUsage, "check": exitUsage,
		"check " + file: exitUsage, "check /none": exitFailed, "off a b": exitUsage,
		"nobody reg_mr EIO": exitFailed, "off nobody": exitFailed,
	} {
		status, stdout, stderr := vrnic(append([]string{"fault"}, strings.Fields(words)...)...)
		if !strings.HasPrefix(words, "check") {
			status, stdout, stderr = vrnic(append([]string{"fault", "--socket", socket},
				strings.Fields(words)...)...)
		}
		if status != want || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q", words, status, stdout, stderr)
		}
	}
}
