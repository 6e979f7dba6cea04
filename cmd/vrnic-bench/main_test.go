package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/internal/doctest"
	"github.com/vrnic/vrnic/internal/golden"
)

// What documents show of vrnic-bench there is.
func TestDocumentedCommands(t *testing.T) {
	doctest.Commands(t, newApp(nil, io.Discard, io.Discard), "../..", nil)
}

// TestMain is also the processes that vrnic-bench starts: this program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{workerName, peerName, bridgeName}, os.Args[1]) {
		main()
		return
	}
	// Daemons end at a system call that their sandbox does not allow, and say where.
	os.Setenv("VRNIC_SANDBOX_TRAP", "1")
	status := m.Run()
	if vrnicDir != "" {
		os.RemoveAll(vrnicDir)
	}
	os.Exit(status)
}

// call runs the program and returns what it printed. One that hangs ends with go test's own limit,
// which shows where: how long a measurement takes is up to what else the machine does.
func call(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), append([]string{"vrnic-bench"}, args...), strings.NewReader(""), &out,
		&errs)
	return status, out.String(), errs.String()
}

// Each wrong use is refused before anything is measured, with one line that says why.
func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	for args, why := range map[string]string{
		"nonsense":                               "unknown command",
		"--nonsense":                             "--help",
		"--path nowhere":                         "loop, pair, ring, direct, host, wire, tap",
		"--op bind":                              "fetch-add",
		"--size 0":                               "multiple of 8",
		"--size 12":                              "multiple of 8",
		"--size 64,12":                           "multiple of 8",
		"--size x":                               "64k",
		"--size 1G":                              "64k",
		"--size 128M":                            "octets up to",
		"--size -8":                              "octets up to",
		"--size 64..8":                           "upwards",
		"--size 0..8":                            "upwards",
		"--size 8..64*1":                         "F above 1",
		"--size 8..64+0":                         "N above 0",
		"--size 8..1M+8":                         "more than 1000",
		"--size 8..y":                            "octets",
		"--op fetch-add --size 64":               "an atomic has 8",
		"--depth 0":                              "1 to 1024",
		"--depth x":                              "want a number",
		"--depth 100000":                         "1 to 1024",
		"--depth 1024 --size 64M":                "memory",
		"--qps 0":                                "1 to 10000",
		"--qps 10001":                            "1 to 10000",
		"--qps 1000 --depth 64":                  "product",
		"--qps 1..1000+1 --size 8,16,24,32":      "combinations",
		"--pattern circle":                       "pingpong, stream",
		"--pattern pingpong --depth 4":           "depth 1",
		"--pattern pingpong --bidir --size 64":   "both ways already",
		"--pattern pingpong --op read --size 64": "answer in itself",
		"--pattern pingpong --op cmp-swap":       "answer in itself",
		"--wait never":                           "adaptive, poll, event",
		"--wait event --op write --size 64":      "write-imm",
		"--time 0s":                              "more than 0",
		"--time soon":                            "--help",
		"--messages 0":                           "more than 0",
		"--messages -1":                          "more than 0",
		"--messages 5 --time 1s":                 "take one",
		"--warmup -1s":                           "0 or more",
		"--count 0":                              "more than 0",
		"--sctp --path loop":                     "one device",
		"--sctp --path pair,ring":                "one device",
		"--sctp --no-crc":                        "checksum",
		"--processes 2 --path loop":              "--qps",
		"--processes 2 --path ring,pair":         "--qps",
		"--processes x":                          "want 0 to",
		"--processes 1000":                       "want 0 to",
		"--roce --sctp":                          "take one",
		"--roce --no-crc":                        "ICRC",
		"--mtu 9000 --path loop":                 "no packets",
		"--mtu 100":                              "want 1280",
		"--json - --csv -":                       "standard output is taken",
		"--plot " + dir + "/x.gif":               ".svg or .png",
		"--plot " + dir + "/.svg":                ".svg or .png",
		"compare --rounds 0":                     "more than 0",
		"compare --time -1s":                     "more than 0",
		"compare --warmup -1s":                   "0 or more",
		"compare --path nowhere":                 "loop, pair, ring, direct, host, wire, tap",
		"compare --depth 0":                      "1 to 256",
		"compare --depth 257":                    "1 to 256",
		"compare now":                            "unexpected argument",
		"compare --nonsense":                     "--help",
		"compare --processes 2":                  "0 or 1",
		"compare --processes 0 --path pair":      "ring, host or tap",
		"compare --mtu 9000 --path loop":         "no",
		"compare --mtu 1":                        "want 1280",
		"compare --json - --benchstat - --path loop":  "standard output is taken",
		"raw-peer --tap t --addr nonsense":            "--addr",
		"raw-peer --tap t --addr 10.0.0.1/8 --peer x": "--peer",
	} {
		status, stdout, stderr := call(t, strings.Fields(args)...)
		if status != exitUsage {
			t.Errorf("%q: exit %d, want %d", args, status, exitUsage)
		}
		if stdout != "" {
			t.Errorf("%q prints %q", args, stdout)
		}
		if last := strings.TrimPrefix(stderr, noRoot); strings.Count(last, "\n") != 1 ||
			!strings.HasPrefix(last, "vrnic-bench: ") || !strings.Contains(last, why) {
			t.Errorf("%q: stderr %q, want one line with %q", args, stderr, why)
		}
	}
}

// noRoot is what compare says first without root.
const noRoot = "vrnic-bench: without root there are no paths wire and tap\n"

func TestFailure(t *testing.T) {
	none := filepath.Join(t.TempDir(), "no", "dir")
	for _, args := range [][]string{
		{"--path", "ring", "--vrnic", "/nonexistent/vrnic"},
		{"--path", "ring", "--vrnic", "/bin/true"},
		{"--path", "loop", "--json", none},
		{"--path", "loop", "--plot", none + ".svg"},
		{"--path", "loop", "--csv", "main.go/rows.csv"},
		{"--cpuprofile", none},
		{"compare", "--path", "ring", "--vrnic", "/nonexistent/vrnic", "--json", "-"},
		{"worker", "--socket", none},
		{"raw-peer", "--addr", "203.0.113.1/8"}, // not ours
		{"raw-peer", "--addr", "127.0.0.1/8", "--netns", none},
	} {
		status, _, stderr := call(t, args...)
		if status != exitFailed || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q", args, status, stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	for name, args := range map[string][]string{"help": {"--help"}, "help-compare": {"compare",
		"--help"}, "help-scale": {"scale", "--help"}, "help-badnet": {"badnet", "--help"}} {
		status, stdout, stderr := call(t, args...)
		if status != 0 || stderr != "" {
			t.Errorf("%v: exit %d, stderr %q", args, status, stderr)
		}
		golden.Check(t, "testdata/"+name+".golden", stdout)
	}
}

// vrnicDir is where vrnicProgram builds, removed at the end.
var vrnicDir string

var buildVrnic = sync.OnceValues(func() (string, error) {
	var err error
	if vrnicDir, err = os.MkdirTemp("", "vrnic-bench-test-"); err != nil {
		return "", err
	}
	path := filepath.Join(vrnicDir, "vrnic")
	if out, err := exec.Command("go", "build", "-o", path,
		"github.com/vrnic/vrnic/cmd/vrnic").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build vrnic: %w\n%s", err, out)
	}
	return path, nil
})

// vrnicProgram builds the daemon's program, once.
func vrnicProgram(t *testing.T) string {
	t.Helper()
	path, err := buildVrnic()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnknownPathNamesThoseThereAre(t *testing.T) {
	if _, err := paths.Open("nowhere", paths.Options{}); err == nil || !strings.Contains(err.Error(),
		"loop") {
		t.Errorf("%v", err)
	}
}
