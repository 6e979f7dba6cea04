package ringtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// The library's files of the data path, and the test's.
var sources = []string{
	"../ibverbs/qp.c", "../ibverbs/state.c", "../ibverbs/rq.c",
	"../ibverbs/post.c", "../ibverbs/poll.c", "../ibverbs/wr.c", "../ibverbs/direct.c",
	"../ibverbs/many.c",
	"../pair/remote.c", "../pair/keys.c", "../pair/pair.c", "../pair/wake.c",
	"../pair/bits.c", "../pair/board.c",
	"../core/table.c", "../*.h", "../core/*.h", "../pair/*.h", "../ibverbs/*.h", "../ibverbs/abi/*.h",
	"testdata/*.[ch]",
}

func TestMain(m *testing.M) { ctest.Main(m) }

// build makes the program, with flags, or skips the test where there is no compiler.
func build(t testing.TB, name string, flags ...string) (program string) {
	t.Helper()
	ctest.Need(t)
	files, err := ctest.Sources(sources...)
	if err != nil {
		t.Fatal(err)
	}
	program, err = ctest.CC(name, slices.Concat([]string{"-std=c11", "-g", "-Wextra", "-pthread"},
		flags, files)...)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := ctest.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Each test of ring_test.c, as the library is built for programs, and where the sanitizers see what
// it does.
func TestRings(t *testing.T) {
	many := "-DVRNIC_ALL_MANY" // each direct path is found by its CQ's bitmap
	for _, b := range []struct {
		name  string
		flags []string
	}{
		{"plain", []string{"-O2"}},
		{"address", []string{"-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}},
		// It does not know fences; those of the library stand beside atomic operations that it does know.
		{"thread", []string{"-O1", "-fsanitize=thread", "-Wno-tsan"}},
		{"many", []string{"-O2", many}},
		{"many-thread", []string{"-O1", "-fsanitize=thread", "-Wno-tsan", many}},
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(strings.Join(b.flags, " "), "-fsanitize") {
				ctest.Native(t, "a sanitizer's shadow memory is where the emulator's is")
			}
			program := build(t, b.name, b.flags...)
			names := strings.Fields(run(t, program, "-list"))
			if slices.Contains(b.flags, many) {
				names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "direct") })
			}
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
	program := build(b, "bench", "-O2")
	for range b.N {
		for line := range strings.Lines(run(b, program, "-bench")) {
			if strings.HasPrefix(line, "Benchmark") {
				b.Log(strings.TrimSpace(line))
			}
		}
	}
}
