package verbs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// exampleC builds examples/verbs-c by its own Makefile, in a copy of its folder, and returns one of
// its programs.
func exampleC(t *testing.T, name string) string {
	t.Helper()
	need(t, "gcc", "make", "/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(topDir, "examples", "verbs-c"))); err != nil {
		t.Fatal(err)
	}
	run(t, "make", "-C", dir, "CFLAGS=-O2 -g -Wall -Wextra -Werror")
	return filepath.Join(dir, name)
}

// run runs a command that builds something.
func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

// The file transfer in C, and with the one in Go at either end: what arrives is what was sent.
func TestExampleCopy(t *testing.T) {
	inC, inGo := exampleC(t, "copy"), filepath.Join(workDir, "copy-in-go")
	run(t, "go", "build", "-o", inGo, "github.com/vrnic/vrnic/examples/copy")
	top := twoDevices(t)
	addr := top.server.addrs[0]
	// A copy is one side: in C a program under vrnic exec, in Go a client of the daemon.
	start := func(p *place, isC bool, verb string, more ...string) *process {
		if isC {
			return p.start(append([]string{inC, verb, addr, "7000"}, more...)...)
		}
		argv := append([]string{inGo, "-device", p.dev, verb, addr + ":7000"}, more...)
		return p.begin(p.env(), argv...)
	}
	from := t.TempDir()
	var paths []string
	for i, n := range []int{0, 1, 65536, 8*65536 + 1, 3 << 20} {
		data := make([]byte, n)
		for j := range data {
			data[j] = byte(rand.Uint32())
		}
		paths = append(paths, filepath.Join(from, fmt.Sprint("file", i)))
		if err := os.WriteFile(paths[i], data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name      string
		from, tos bool // in C
	}{{"C to C", true, true}, {"C to Go", true, false}, {"Go to C", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			to := t.TempDir()
			receiver := start(top.server, tt.tos, "receive", to)
			receiver.WaitOutput("listening on "+addr, 1)
			start(top.client, tt.from, "send", paths...).succeed(patience)
			for _, path := range paths {
				want, _ := os.ReadFile(path)
				got, err := os.ReadFile(filepath.Join(to, filepath.Base(path)))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s is not what was sent: %v", filepath.Base(path), err)
				}
			}
			if files, _ := os.ReadDir(to); len(files) != len(paths) {
				t.Errorf("the receiver's directory holds %v", files)
			}
			start(top.client, tt.from, "send", from).fail(patience, "want a regular file")
			receiver.Signal(syscall.SIGTERM)
			<-receiver.Done
			top.settle()
			start(top.client, tt.from, "send", paths[0]).fail(patience, "(?i)connection refused")
		})
	}
	top.server.start(inC, "send", addr).fail(patience, "^usage: ")
	top.server.start(inC, "receive", addr, "7000", from+"/none").fail(patience, "No such file")
}

// Each of the two bugs of the example does no harm on a plain device, and is found as the README
// shows.
func TestExampleBugs(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	bugs := exampleC(t, "bugs")
	d := up(t, nil, "--device", deviceA, "--device", "wild,addr=10.99.0.2/24,adversary=1")
	d.start(bugs, "reuse", addrsA[0]).succeed(patience)
	p := d.begin(d.env(), program, "exec", "--check", "--", bugs, "reuse", addrsA[0])
	p.fail(patience)
	if want := readmeHas(t, "vrnic exec --check -- ./bugs reuse 10.77.0.2"); !want.MatchString(
		p.Output()) {
		t.Errorf("it says\n%s\nand is shown as\n%s", p.Output(), want)
	}
	p = d.start(bugs, "poll", "10.99.0.2")
	p.fail(patience)
	if want := readmeHas(t, "vrnic exec -- ./bugs poll 10.77.0.2"); !want.MatchString(p.Output()) {
		t.Errorf("it says\n%s\nand is shown as\n%s", p.Output(), want)
	}
}

// readmeHas is what the README has below a command, up to an empty line or another command; numbers
// are others each time.
func readmeHas(t *testing.T, command string) *regexp.Regexp {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(topDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(readme), "    $ "+command+"\n")
	if !ok {
		t.Fatalf("the README does not show %s", command)
	}
	text, _, _ = strings.Cut(text, "\n\n")
	text, _, _ = strings.Cut(text, "\n    $ ")
	var lines []string
	for line := range strings.Lines(text + "\n") {
		line = regexp.QuoteMeta(strings.TrimPrefix(line, "    "))
		line = regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllString(line, "0x[0-9a-f]+")
		lines = append(lines, regexp.MustCompile(`Write \d+: \d+ octets`).ReplaceAllString(line,
			`Write \d+: \d+ octets`))
	}
	return regexp.MustCompile("^" + strings.Join(lines, "") + "$")
}
