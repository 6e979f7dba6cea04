package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/usage"
	"github.com/vrnic/vrnic/internal/doctest"
)

// vrnic runs a command line in this process.
func vrnic(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(append([]string{"vrnic"}, args...), &out, &errs)
	return status, out.String(), errs.String()
}

// What documents show of vrnic there is.
func TestDocumentedCommands(t *testing.T) {
	doctest.Commands(t, newApp(io.Discard, io.Discard), "../..", map[string]func(string) error{
		"device": func(s string) error { _, err := daemon.ParseDevice(s); return err },
		"port":   func(s string) error { _, err := daemon.ParsePort(s); return err },
	})
}

// Wrong usage is status 2, and one line on stderr names what is wrong.
func TestWrongUsage(t *testing.T) {
	const device = "a,addr=10.0.0.1/24"
	socket := "--socket=" + t.TempDir() + "/s"
	for _, tt := range []struct {
		args  string
		names string
	}{
		{"", "which command"},
		{"fly", `"fly"`},
		{"--fly", "fly"},
		{"up --fly", "fly"},
		{"up now", `"now"`},
		{"show", "which command? See vrnic show --help"},
		{"config", "which command? See vrnic config --help"},
		{"config check", "which file? See vrnic config check --help"},
		{"show rings", `"rings"`},
		{"show rings", `see vrnic show --help`},
		{"show qp vrnic0", `"vrnic0"; what is of one device alone shows vrnic show qp -d DEVICE`},
		{"show --json qp vrnic0", `vrnic show qp -d DEVICE`},
		{"show port 7", `"7"; see vrnic show port --help`},
		{"show port -d vrnic0", `see vrnic show port --help`},
		{"show -d vrnic0 user", "vrnic show user lists what is of no device: leave -d vrnic0 out"},
		{"show qp --wings", "see vrnic show qp --help"},
		{"stat vrnic0", `"vrnic0"`},
		{"version 2", `"2"`},
		{"replay --step --qp 4294967299 /dev/null", "--qp: at most 4294967295"},
		{"k8s --share 0", "--share 0 is not between 1 and 1000"},
		{"k8s --net -1", "--net -1 is not between"},
		{"k8s --dra --node= --share 1", "--dra wants the name of this node"},
		{"k8s --dra --node n --mounts", "--mounts does not go with --dra"},
		{"k8s --output /nowhere/spec", "runtimes read files"},
		{"up --device vrnic0", "no address"},
		{"up --device a,addr=10.0.0.1", `"10.0.0.1"`},
		{"up --device a,addr=10.0.0.1/24,addr=10.0.0.2/40", `"10.0.0.2/40"`},
		{"up --device a,addr=10.0.0.1/24,colour=1", `"colour"`},
		{"up --device " + device + " --device a,addr=10.0.0.2/24", `"a" is given twice`},
		{"up --device " + device + " --device b,addr=10.0.0.1/24", "10.0.0.1"},
		{"up --device " + device + " --port veth:x", `"veth:x"`},
		{"up --device " + device + " --port tap:x,addr=10.0.0.1/24", "10.0.0.1"},
		{"up --limit wings=2", `"wings" is not known; there are pds, mrs, `},
		{"up --limit wings=2", "sessions-per-uid"},
		{"up --limit wings=2", ", memberships, queue-bytes, requests, peer-requests, half-open, " +
			"peer-half-open, peer-connections\n"},
		{"up --limit qps=0", "qps"},
		{"up --limit qps=many", `"many"`},
		{"up --limit qps", `"qps"`},
		{"up --socket-mode 8", `"8"`},
		{"up --socket-mode 7777", `"7777"`},
		{"up --socket-group no-such-group-here", `"no-such-group-here"`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := strings.Fields(tt.args)
			if len(args) > 0 && args[0] == "up" {
				args = append([]string{"up", socket}, args[1:]...)
			}
			status, stdout, stderr := vrnic(args...)
			if status != exitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 ||
				!strings.Contains(stderr, tt.names) {
				t.Errorf("status %d, stdout %q, stderr %q; want status 2 and one line with %q", status, stdout,
					stderr, tt.names)
			}
		})
	}
}

// What fails is status 1, and one line on stderr says what to do.
func TestFailures(t *testing.T) {
	nowhere := t.TempDir() + "/s"
	for _, tt := range []struct {
		args  []string
		names string
	}{
		{[]string{"show", "qp", "--socket", nowhere}, "vrnic up"},
		{[]string{"config", "check", nowhere}, "no such file"},
		{[]string{"up", "--config", nowhere}, "no such file"},
		{[]string{"stat", "--socket", nowhere}, "vrnic up"},
		{[]string{"up", "--socket", nowhere + "/in/no/directory"}, "no/directory"},
	} {
		status, stdout, stderr := vrnic(tt.args...)
		if status != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 ||
			!strings.Contains(stderr, tt.names) {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want status 1 and one line with %q", tt.args,
				status, stdout, stderr, tt.names)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"--help"}, []string{"up", "show", "stat", "exec"}},
		{[]string{"ping", "--help"}, nil},
		{[]string{"demo", "--help"}, nil},
		{[]string{"version", "--help"}, nil},
		{[]string{"up", "--help"}, []string{"vrnic0,addr=10.77.0.2/24,addr=fd77::2/64", "qps", "1024",
			"cm-ids", "4096", "--socket-group", "--config FILE"}},
		{[]string{"config", "--help"}, []string{"check"}},
		{[]string{"dev", "--help"}, []string{"add", "del", "set"}},
		{[]string{"dev", "add", "--help"}, []string{"vrnic dev add SPEC"}},
		{[]string{"dev", "del", "--help"}, []string{"vrnic dev del [--force] NAME", "DEVICE_FATAL"}},
		{[]string{"dev", "set", "--help"}, []string{"NAME,OPTION=VALUE", "--force"}},
		{[]string{"port", "--help"}, []string{"add", "del"}},
		{[]string{"port", "add", "--help"}, []string{"vrnic port add SPEC"}},
		{[]string{"port", "del", "--help"}, []string{"vrnic port del [--force] NAME"}},
		{[]string{"limit", "--help"}, []string{"vrnic limit NAME=N"}},
		{[]string{"reload", "--help"}, []string{"vrnic reload [--force]", "SIGHUP"}},
		{[]string{"save", "--help"}, []string{"vrnic save > FILE"}},
		{[]string{"config", "check", "--help"}, []string{"vrnic config check FILE", "transport: roce"}},
		{[]string{"show", "--help"}, []string{"dev", "qp", "pd", "mr", "mw", "cq", "srq", "cm", "peer",
			"client", "port", "daemon", "-d DEVICE"}},
		{[]string{"show", "qp", "--help"}, []string{"vrnic show qp", "--json", "-d DEVICE"}},
		{[]string{"exec", "--help"},
			[]string{"vrnic exec [-d DEVICE] [--check] [--rsockets] [--lend-heap] [--sys HOW] -- CMD",
				"VRNIC_SOCKET", "126", "127", "--lib-dir"}},
		{[]string{"stat", "--help"}, []string{"--watch", "--json"}},
	} {
		status, stdout, stderr := vrnic(tt.args...)
		if status != 0 || stderr != "" {
			t.Errorf("%q: status %d, stderr %q", tt.args, status, stderr)
		}
		for line := range strings.Lines(stdout) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > usage.Width {
				t.Errorf("%q prints a line that is %d wide: %s", tt.args, n, line)
			}
		}
		for _, want := range tt.wants {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q does not mention %q:\n%s", tt.args, want, stdout)
			}
		}
	}
}

// The words of a shell are completed by the program that it would run, which runs nothing of them.
func TestComplete(t *testing.T) {
	for words, want := range map[string]string{
		"show pe": "peer\t", "exec --lend": "--lend-heap\t", "exec -- tou": "", "demo --role": "",
		"exec -d v": "", // no daemon runs
	} {
		t.Setenv("VRNIC_SOCKET", filepath.Join(t.TempDir(), "none"))
		status, stdout, stderr := vrnic(append([]string{"__complete"}, strings.Fields(words)...)...)
		if status != 0 || stderr != "" || !strings.HasPrefix(stdout, want) || want == "" && stdout != "" {
			t.Errorf("%q: %d, %q, %q; want %q", words, status, stdout, stderr, want)
		}
	}
}

// There is a man page of each command that help lists.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	if status, _, stderr := vrnic("manual", dir); status != 0 {
		t.Fatalf("%d, %s", status, stderr)
	}
	for _, name := range []string{"vrnic", "vrnic-up", "vrnic-exec", "vrnic-completion"} {
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil || !strings.Contains(string(page), ".SH \"SYNOPSIS\"") {
			t.Errorf("%s: %v", name, err)
		}
	}
	status, _, stderr := vrnic("manual")
	if status != exitUsage || !strings.Contains(stderr, "directory") {
		t.Errorf("without a directory: %d, %s", status, stderr)
	}
}

// A host that runs this test is well enough, and is told what there is of a daemon.
func TestDoctor(t *testing.T) {
	none := filepath.Join(socketDir(t), "s")
	status, stdout, stderr := vrnic("doctor", "--socket", none)
	if status != 0 || !strings.Contains(stdout, "daemon       none runs at "+none+"\n") ||
		!strings.Contains(stdout, "ok    memory ") || stderr != "" {
		t.Errorf("without a daemon: status %d, %s%s", status, stdout, stderr)
	}
	status, stdout, stderr = vrnic("doctor", "--json", "--socket", pingDaemon(t))
	var found []struct{ Check, Is, Found, Advice string }
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || status != 0 || len(found) < 10 {
		t.Fatalf("status %d, %v, %s%s", status, err, stdout, stderr)
	}
	if last := found[len(found)-1]; last.Check != "daemon" || last.Is != "ok" {
		t.Errorf("with a daemon: %+v", last)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A file that is no socket refuses connections: nobody runs there.
	if status, stdout, _ = vrnic("doctor", "--socket", file); !strings.Contains(stdout, file) {
		t.Errorf("status %d, %s", status, stdout)
	}
}
