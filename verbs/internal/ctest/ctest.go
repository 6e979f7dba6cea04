// Package ctest builds the libraries in C and programs in C that use them, for tests.
//
// $VRNIC_TEST_LIBS names a folder with libraries to take in place of those that are built for the
// tests, and $VRNIC_TEST_CFLAGS has what the C compiler then wants for programs, as `make sanitize`
// does. $CC is the compiler of libraries and programs, and $VRNIC_TEST_EMULATOR what runs programs
// of another architecture than this, with its options, as `make test-arm64` has them. What is
// needed, a C compiler and make, is asked for by VRNIC_TEST_REQUIRE=verbs; otherwise the tests
// skip.
package ctest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// VerbsDir has the C source, for the tests of its subfolders.
const VerbsDir = ".."

// Dir is for what is compiled. Other users can read it.
var Dir string

// Main is for TestMain.
func Main(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "vrnic-ctest-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		Dir = dir
		return m.Run()
	}())
}

// Need skips the test where there is no compiler, or not one of names.
func Need(t testing.TB, names ...string) {
	t.Helper()
	if err := needtest.Missing(append(names, compiler()[0], "make")...); err != nil {
		needtest.Lacking(t, "verbs", fmt.Sprintf("%v (as root: .ci/deps test)", err))
	}
}

// compiler is $CC, which make(1) takes too.
func compiler() []string { return strings.Fields(cmp.Or(os.Getenv("CC"), "cc")) }

func emulator() []string { return strings.Fields(os.Getenv("VRNIC_TEST_EMULATOR")) }

// Emulated reports whether programs run under an emulator.
func Emulated() bool { return len(emulator()) > 0 }

// Native skips a test that an emulator cannot run: why.
func Native(t testing.TB, why string) {
	t.Helper()
	if Emulated() {
		needtest.Skip(t, why)
	}
}

// Command runs a program that CC has made.
func Command(program string, args ...string) *exec.Cmd {
	argv := slices.Concat(emulator(), []string{program}, args)
	return exec.Command(argv[0], argv[1:]...)
}

// Flags are what the libraries want of programs.
func Flags() []string { return strings.Fields(os.Getenv("VRNIC_TEST_CFLAGS")) }

// Sanitized reports whether the libraries are built with a sanitizer: address, thread, or any of
// them for "".
func Sanitized(name string) bool {
	return strings.Contains(os.Getenv("VRNIC_TEST_CFLAGS"), "-fsanitize="+name)
}

// Libs returns the folder of the libraries, which it builds if there are none. It is below Dir:
// other users may not get to where $VRNIC_TEST_LIBS is.
var Libs = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(Dir, "lib")
	from := os.Getenv("VRNIC_TEST_LIBS")
	if from == "" {
		return dir, Make("BUILD=" + dir)
	}
	return dir, copyLibs(dir, from)
})

// copyLibs reads them itself: the cache of test results looks at what the test has read.
func copyLibs(dir, from string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.so*"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("VRNIC_TEST_LIBS: no libraries in %s", from)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Make has make(1) build in verbs.
func Make(args ...string) error {
	// The cache of test results looks at what the test itself has read.
	_, err := Sources(VerbsDir+"/*.h", VerbsDir+"/*/*.[ch]", VerbsDir+"/*/abi/*.h",
		VerbsDir+"/*.map", VerbsDir+"/Makefile")
	if err != nil {
		return err
	}
	return command("make", append([]string{"-s", "-C", VerbsDir}, args...)...)
}

// CC compiles a program: out, below Dir.
func CC(out string, args ...string) (path string, err error) {
	path = filepath.Join(Dir, out)
	cc := compiler()
	return path, command(cc[0], slices.Concat(cc[1:], []string{"-D_GNU_SOURCE", "-Wall", "-Werror",
		"-I" + VerbsDir, "-o", path}, args)...)
}

// Sources reads the files that match some patterns, and returns those of C. A test that is run
// again when they have changed must have read them itself.
func Sources(patterns ...string) (c []string, err error) {
	for _, p := range patterns {
		files, err := filepath.Glob(p)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if _, err := os.ReadFile(f); err != nil {
				return nil, err
			}
			if filepath.Ext(f) == ".c" {
				c = append(c, f)
			}
		}
	}
	return slices.Clip(c), nil
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
