package verbs

import (
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

// noted is what has come of the programs that ran on devices of RoCE, in the order in which they
// first did.
var noted struct {
	sync.Mutex
	rows []*notedRow
}

type notedRow struct {
	words      string
	ok, failed []string // topologies
}

// note has the end of the test t say what has come of a program: it is called first.
func note(t *testing.T, topology string, r *roceRun) {
	t.Helper()
	words := strings.ReplaceAll(r.words, " -p PORT", "") + r.more
	t.Cleanup(func() {
		noted.Lock()
		defer noted.Unlock()
		var row *notedRow
		for _, n := range noted.rows {
			if n.words == words {
				row = n
			}
		}
		if row == nil {
			row = &notedRow{words: words}
			noted.rows = append(noted.rows, row)
		}
		to := &row.ok
		if t.Failed() {
			to = &row.failed
		}
		if !t.Skipped() && !slices.Contains(*to, topology) {
			*to = append(*to, topology)
		}
	})
}

// versionOf is that of the package which a program is from.
func versionOf(program string) string {
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", packageOf(program)).Output()
	if err != nil {
		return "?"
	}
	return string(out)
}

// printTable says what ran, of which version, and what came of it.
func printTable(w io.Writer) {
	noted.Lock()
	defer noted.Unlock()
	if len(noted.rows) == 0 {
		return
	}
	versions := make(map[string]string)
	fmt.Fprintln(w, "Programs on devices of RoCE, as an ordinary user, with daemons of their own:")
	for _, n := range noted.rows {
		program, options, _ := strings.Cut(n.words, " ")
		if versions[program] == "" {
			versions[program] = versionOf(program)
		}
		result := "ok: " + strings.Join(n.ok, ", ")
		if len(n.failed) > 0 {
			result = "FAILED: " + strings.Join(n.failed, ", ")
		}
		fmt.Fprintf(w, "%-17s %-12s %-60s %s\n", program, versions[program], options, result)
	}
}
