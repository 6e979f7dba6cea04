package abicheck

import (
	"os"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// V1, V23: rates, the numbers that have texts and the reading of files are as in rdma-core's own
// library, and functions that an RNIC does not have fail as their callers expect.
func TestHelpers(t *testing.T) {
	ctest.Need(t, systemHeaders...)
	dir := libs(t)
	source, err := os.ReadFile("testdata/deviceless.c")
	if err != nil {
		t.Fatal(err)
	}
	bin := compile(t, "deviceless", string(source), "-libverbs", "-lrdmacm")
	system := run(t, bin)
	ours := run(t, bin, "LD_LIBRARY_PATH="+dir)
	if n := strings.Count(system, "same "); n < 200 {
		t.Fatalf("only %d lines:\n%s", n, system)
	}
	want, got := strings.Split(system, "\n"), strings.Split(ours, "\n")
	for i := range max(len(want), len(got)) {
		if w, g := line(want, i), line(got, i); w != g {
			t.Errorf("line %d: %q, and %q with the system's library", i+1, g, w)
		}
	}
	run(t, bin+" stubs", "LD_LIBRARY_PATH="+dir)
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}
