package heaptest

import (
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

func TestMain(m *testing.M) { ctest.Main(m) }

// build makes the library and the programs that use it: heap, and those with a sanitizer.
var build = sync.OnceValue(func() error {
	sources, err := ctest.Sources("testdata/*.[ch]")
	if err != nil {
		return err
	}
	if err := ctest.Make("BUILD="+ctest.Dir, library()); err != nil {
		return err
	}
	cc := slices.Concat([]string{"-std=gnu11", "-O1", "-g", "-fno-builtin", "-Wextra", "-pthread"},
		sources)
	for out, flags := range map[string][]string{"heap": nil, "heap-address": {"-fsanitize=address"},
		"heap-leak": {"-fsanitize=leak"}} {
		if _, err := ctest.CC(out, slices.Concat(cc, flags)...); err != nil {
			return err
		}
	}
	return nil
})

func library() string { return filepath.Join(ctest.Dir, "libvrnic-heap.so") }
func program() string { return filepath.Join(ctest.Dir, "heap") }

// need builds what the tests run, or skips the test where there is no compiler.
func need(t *testing.T) {
	t.Helper()
	ctest.Need(t)
	if err := build(); err != nil {
		t.Fatal(err)
	}
}

// run runs a program with an environment, and returns what it says and how it ends.
func run(t *testing.T, env []string, argv ...string) (out string, err error) {
	t.Helper()
	// A program that hangs fails the test; a machine that is slow does not.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	b, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%v hangs:\n%s", argv, b)
	}
	return string(b), err
}

func preload(more ...string) []string {
	return append([]string{"LD_PRELOAD=" + library()}, more...)
}

// What holds for any malloc holds with the library, for small and large, over forks and threads;
// and it does hold without: the cases expect nothing that glibc does not do. Only `make
// verbs-programs` asks for that, which is of the cases, and takes as long.
func TestSame(t *testing.T) {
	need(t)
	ways := [][]string{preload()}
	if os.Getenv("VRNIC_TEST_VERBS") == "all" {
		ways = append(ways, nil)
	}
	for _, name := range []string{
		"alignment", "failure", "zeros", "reallocation", "random_calls", "threads", "forks",
		"forks_with_threads", "forks_with_locks",
		"killed_children", "protected_parts", "protected_and_closed", "forks_beside_streams",
		"forks_beside_frees",
		"spawned", "closes_all", "limits", "data_limit", "locked",
	} {
		t.Run(name, func(t *testing.T) {
			for _, env := range ways {
				if out, err := run(t, env, program(), name); err != nil {
					t.Errorf("with %v: %v\n%s", env, err, out)
				}
			}
		})
	}
}

// What is lent and what is not, and that it is given back.
func TestLent(t *testing.T) {
	need(t)
	for _, name := range []string{"where", "given_back", "descriptors", "in_the_way"} {
		t.Run(name, func(t *testing.T) {
			if out, err := run(t, preload(), program(), name); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	// Cases of one process after another: what one leaves is there for the next.
	if out, err := run(t, preload(), program(), "random_calls", "forks", "threads", "zeros",
		"where"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Nothing is lent where the user does not want it, where memory is limited, where forks would share
// it, or where a sanitizer needs malloc.
func TestOff(t *testing.T) {
	need(t)
	if out, err := run(t, preload("VRNIC_LEND_HEAP=0"), program(), "off", "forks"); err != nil ||
		out != "" {
		t.Errorf("%v\n%s", err, out)
	}
	for _, limit := range []string{"-v", "-d"} {
		if out, err := run(t, preload(), "sh", "-c", "ulimit "+limit+" 4000000; exec "+program()+
			" off forks"); err != nil || out != "" {
			t.Errorf("with ulimit %s: %v\n%s", limit, err, out)
		}
	}
	noForks, err := ctest.CC("libnoforks.so", "-shared", "-fPIC", "testdata/preload/noforks.c")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, []string{"LD_PRELOAD=" + library() + ":" + noForks}, program(), "off",
		"forks"); err != nil || out != "" {
		t.Errorf("without handlers of forks: %v\n%s", err, out)
	}
	for _, sanitizer := range []string{"address", "leak"} {
		out, err := run(t, preload("ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0",
			"LSAN_OPTIONS=detect_leaks=0"), program()+"-"+sanitizer, "off")
		if err != nil || strings.Count(out, "its heap is not lent") != 1 {
			t.Errorf("with the sanitizer of %s: %v\n%s", sanitizer, err, out)
		}
	}
}

// What is freed twice, or was not allocated, ends the program with a word.
func TestMisuse(t *testing.T) {
	need(t)
	for _, name := range []string{"double_free", "free_inside"} {
		out, err := run(t, preload(), program(), name)
		status, _ := err.(*exec.ExitError)
		if status == nil || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT ||
			!strings.Contains(out, "vrnic: free(): ") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	out, err := run(t, preload(), program(), "double_free_handled")
	if status, _ := err.(*exec.ExitError); status == nil || status.ExitCode() != 3 ||
		!strings.Contains(out, "vrnic: free(): ") {
		t.Errorf("with a handler of SIGABRT: %v\n%s", err, out)
	}
}

// Its handlers of forks are in front of those that other libraries' constructors register: its
// constructor is the first.
func TestFirst(t *testing.T) {
	need(t)
	f, err := elf.Open(library())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) != 1 || elf.DynFlag1(flags[0])&elf.DF_1_INITFIRST == 0 {
		t.Errorf("flags %#x, %v; want INITFIRST", flags, err)
	}
}

// Programs that know nothing of it, with allocators and threads of their own, do what they do
// without.
func TestPrograms(t *testing.T) {
	need(t)
	for _, script := range []string{
		"sort -S 20M --parallel=4 ../preload/*.c ../ibverbs/abi/*.h | cksum",
		"tar cf - .. --exclude=build --exclude=../build --mtime=@0 | gzip -n | cksum",
		"cc -O2 -w -D_GNU_SOURCE -x c testdata/forks.c -S -o - | cksum",
		"awk 'BEGIN { for (i = 0; i < 200000; i++) a[i] = i; for (i in a) s += a[i]; print s }'",
	} {
		want, err := run(t, nil, "sh", "-c", script)
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, want)
		}
		if got, err := run(t, preload(), "sh", "-c", script); err != nil || got != want {
			t.Errorf("%s: %v\n%s, and without the library\n%s", script, err, got, want)
		}
	}
}
