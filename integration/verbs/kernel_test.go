package verbs

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
)

// listensTCP waits until a process, or a child of it, has a kernel's TCP socket that listens.
func listensTCP(t *testing.T, p *process) {
	t.Helper()
	proctest.Eventually(t, patience, fmt.Sprintf("%s listens", p), func() bool {
		if p.Ended() {
			t.Fatalf("%s has ended (%v) and does not listen", p, p.Err)
		}
		pid := fmt.Sprint(p.PID())
		threads, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
		for _, name := range threads {
			if child, _ := os.ReadFile(name); len(child) > 0 { // under vrnic exec --check
				pid = strings.Fields(string(child))[0]
			}
		}
		inodes := make(map[string]bool)
		for _, name := range []string{"tcp", "tcp6"} {
			f, err := os.Open("/proc/" + pid + "/net/" + name)
			if err != nil {
				continue
			}
			for s := bufio.NewScanner(f); s.Scan(); {
				if w := strings.Fields(s.Text()); len(w) > 9 && w[3] == "0A" {
					inodes["socket:["+w[9]+"]"] = true
				}
			}
			f.Close()
		}
		dir := "/proc/" + pid + "/fd"
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			if to, _ := os.Readlink(dir + "/" + fd.Name()); inodes[to] {
				return true
			}
		}
		return false
	})
}
