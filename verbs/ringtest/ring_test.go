package ringtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The library's files of the data path, and the test's.
var sources = []string{
	"../qp.c", "../rq.c", "../srq.c", "../post.c", "../poll.c", "../wr.c",
	"testdata/fake.c", "testdata/ring_test.c", "testdata/ring_more_test.c", "testdata/ring_random_test.c",
}

// build makes the program, with flags, or skips the test where there is no compiler.
func build(t testing.TB, flags ...string) (program string) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		if slices.Contains(strings.Fields(os.Getenv("VRNIC_TEST_REQUIRE")), "verbs") {
			t.Fatal("VRNIC_TEST_REQUIRE asks for verbs, and there is no cc (as root: .ci/deps test)")
		}
		t.Skip("needs cc: as root, .ci/deps test")
	}
	program = filepath.Join(t.TempDir(), "ring_test")
	args := []string{"-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program}
	args = append(append(args, flags...), sources...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return program
}

func run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Each test of ring_test.c, as the library is built for programs, and where the sanitizers see what it does.
func TestRings(t *testing.T) {
	for _, b := range []struct {
		name  string
		flags []string
	}{
		{"plain", []string{"-O2"}},
		{"address", []string{"-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}},
		// It does not know fences; those of the library stand beside atomic operations that it does know.
		{"thread", []string{"-O1", "-fsanitize=thread", "-Wno-tsan"}},
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			program := build(t, b.flags...)
			names := strings.Fields(run(t, program, "-list"))
			if len(names) == 0 {
				t.Fatal("no tests")
			}
			for _, name := range names {
				t.Run(name, func(t *testing.T) { run(t, program, name) })
			}
		})
	}
}

// What the program's calls cost, with a daemon that costs nothing: lines as of Go's benchmarks.
func BenchmarkRings(b *testing.B) {
	program := build(b, "-O2")
	for range b.N {
		for line := range strings.Lines(run(b, program, "-bench")) {
			if strings.HasPrefix(line, "Benchmark") {
				b.Log(strings.TrimSpace(line))
			}
		}
	}
}
