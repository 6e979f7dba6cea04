package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vrnic impair has a device's packets go as a file says, shows that, and ends it; a ping between
// two devices comes through it whole.
func TestImpair(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2", "-P")
	file := filepath.Join(t.TempDir(), "plan")
	if err := os.WriteFile(file, []byte("at 0 delay 2ms # and a loss\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	impair := func(args ...string) (stdout string) {
		t.Helper()
		status, stdout, stderr := vrnic(append([]string{"impair", "--socket", socket}, args...)...)
		if status != 0 || stderr != "" {
			t.Fatalf("%q: status %d, %s", args, status, stderr)
		}
		return stdout
	}
	if got := impair("--seed", "7", "--file", file, "left", "both", "loss", "1%"); got !=
		"left both, seed 7\n" {
		t.Errorf("%q", got)
	}
	pingVerified(t, socket, port, "-d left")
	for _, want := range []string{"target left direction out packets ", "target left direction in ",
		` seed 7 seconds `, ` words "at 0 delay 2ms # and a loss; loss 1%"`} {
		if got := impair("show"); !strings.Contains(got, want) || strings.Count(got, "\n") != 2 {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	if got := impair("right", "loss", "1%"); !strings.HasPrefix(got, "right out, seed ") {
		t.Errorf("%q", got)
	}
	impair("off", "left")
	if got := impair("show", "--json"); !strings.Contains(got, `"target":"right"`) ||
		strings.Contains(got, `"target":"left"`) {
		t.Errorf("behind off: %s", got)
	}
	impair("off")
	if got := impair("show", "--json"); got != "[]\n" {
		t.Errorf("behind off: %s", got)
	}
	if err := os.WriteFile(file, []byte("\n\ndelay 2ms\nlos 1%\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"", " both loss 1%"} {
		status, _, stderr := vrnic(append([]string{"impair", "--socket", socket, "--file", file},
			strings.Fields("left"+words)...)...)
		if status != exitUsage || !strings.Contains(stderr, "line 4: ") {
			t.Errorf("left%s: a wrong line 4 of a file: status %d, %s", words, status, stderr)
		}
	}
	for words, want := range map[string]int{
		"": exitUsage, "left": exitUsage, "left sideways loss 1%": exitUsage,
		"left both loss 200%": exitUsage, "--seed x left loss 1%": exitUsage, "off a b": exitUsage,
		"nobody loss 1%": exitFailed, "off nobody": exitFailed, "--file /none left": exitFailed,
		"show more": exitUsage,
	} {
		status, stdout, stderr := vrnic(append([]string{"impair", "--socket", socket},
			strings.Fields(words)...)...)
		if status != want || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q", words, status, stdout, stderr)
		}
	}
}
