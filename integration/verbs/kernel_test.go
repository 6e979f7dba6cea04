package verbs

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
)

// listensTCP waits until a process, or a child of it, has a kernel's TCP socket that listens.
func listensTCP(t *testing.T, p *process) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("%s listens", p), func() bool {
		if p.ended() {
			t.Fatalf("%s has ended (%v) and does not listen", p, p.err)
		}
		inodes := make(map[string]bool)
		for _, name := range []string{"tcp", "tcp6"} {
			f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", p.pid(), name))
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
		dir := fmt.Sprintf("/proc/%d/fd", p.pid())
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			if to, _ := os.Readlink(dir + "/" + fd.Name()); inodes[to] {
				return true
			}
		}
		return false
	})
}
