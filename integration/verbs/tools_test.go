package verbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// toolJobs are a program under tools that look into it. valgrind has no suppressions.
var toolJobs = []job{
	{name: "gdb", server: "rping -s -a ADDR -p PORT -C 3",
		client: "gdb -batch -ex run --args rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"^ping data: rdma-ping-2", `^\[Inferior 1 .* exited normally\]`,
			"!mismatch"}, limit: 2 * time.Minute},
	{name: "strace", server: "rping -s -a ADDR -p PORT -C 3",
		client:    "strace -f -o /dev/null rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"^ping data: rdma-ping-2", "!mismatch"}, limit: 2 * time.Minute},
	{name: "valgrind", server: "rping -s -a ADDR -p PORT -C 3",
		client:    "valgrind -q --error-exitcode=9 rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"^ping data: rdma-ping-2", "!mismatch", "!^==[0-9]+=="},
		limit:     2 * time.Minute},
}

// A made program is one that a test builds of a source in testdata.
type made struct {
	words string
	build []string // with the file to be made behind it
	out   string
}

var madePrograms = []made{
	{"binding.go ADDR PORT", []string{"go", "build", "-o"}, "^all done$"},
	{"binding.rs", []string{"rustc", "-O", "-o"}, "^device vrnic0$"},
}

// program builds m.
func (m *made) program(t *testing.T) string {
	t.Helper()
	name := programOf(m.words)
	need(t, m.build[0], "gcc", "/usr/include/rdma/rdma_cma.h")
	path := filepath.Join(workDir, strings.ReplaceAll(name, ".", "-"))
	cmd := exec.Command(m.build[0], append(m.build[1:], path, "testdata/"+name)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return path
}

func (m *made) run(t *testing.T, top *topology) {
	t.Helper()
	argv := words(m.words, "ADDR", top.server.addrs[0], "PORT", fmt.Sprint(nextPort.Add(1)))
	argv[0] = m.program(t)
	top.server.in(t).startWith(nil, argv...).succeed(2*time.Minute, "^all done$", m.out)
}

const qemuWords = "qemu-system-x86_64 -machine q35,accel=tcg -m 64 -display none -S -nodefaults " +
	"-monitor stdio"

// migrate has QEMU move a machine's memory, on qemuWords.
func migrate(t *testing.T, top *topology) {
	t.Helper()
	need(t, programOf(qemuWords))
	to := fmt.Sprintf("rdma:%s:%d", top.server.addrs[0], nextPort.Add(1))
	// A monitor reads commands until it is told to end.
	command := func(p *place, lines ...string) (*process, *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		defer r.Close()
		in := p.in(t)
		in.stdin = r
		for _, l := range lines {
			fmt.Fprintln(w, l)
		}
		extra := []string{}
		if len(lines) == 0 {
			extra = []string{"-incoming", to}
		}
		return in.startWith([]string{"TERM=dumb"}, append(strings.Fields(qemuWords), extra...)...), w
	}
	target, told := command(top.server)
	top.server.in(t).listens(target, 0, 1)
	source, asked := command(top.client, "migrate "+to, "info migrate")
	source.WaitOutput("Migration status: completed", 1)
	fmt.Fprintln(asked, "quit")
	source.succeed(patience)
	fmt.Fprintln(told, "info status")
	target.WaitOutput("VM status: paused", 1)
	fmt.Fprintln(told, "quit")
	target.succeed(patience, "!rdma: ", "![Ee]rror while")
}

// otherRuns are programs that look the same on both kinds of device.
func otherRuns() []roceRun {
	runs := []roceRun{{words: qemuWords, do: migrate}}
	for i := range madePrograms {
		m := &madePrograms[i]
		runs = append(runs, roceRun{words: m.words, built: true, alone: true, do: m.run})
	}
	for i := range toolJobs {
		j := &toolJobs[i]
		runs = append(runs, roceRun{words: j.client,
			do: func(t *testing.T, top *topology) { top.run(t, j, 0) }})
	}
	return runs
}

func TestOthers(t *testing.T) { runOn(t, onIWARP, iwarpTopologies[:3], otherRuns()) }

func TestRoCEOthers(t *testing.T) { runRoCE(t, otherRuns()) }
