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
