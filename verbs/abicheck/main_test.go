package abicheck

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// verbsDir has the C source, shmDir the Go source of the ring ABI.
const (
	verbsDir = ".."
	shmDir   = "../../shm"
)

// workDir is for what is compiled.
var workDir string

const arch = runtime.GOARCH

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "vrnic-abicheck-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		workDir = dir
		return m.Run()
	}())
}

// need skips the test if a program or file is missing, or fails it where all must be there.
func need(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		var err error
		if filepath.IsAbs(n) {
			_, err = os.Stat(n)
		} else {
			_, err = exec.LookPath(n)
		}
		if err == nil {
			continue
		}
		if slices.Contains(strings.Fields(os.Getenv("VRNIC_TEST_REQUIRE")), "verbs") {
			t.Fatalf("VRNIC_TEST_REQUIRE asks for verbs: %v (as root: .ci/deps test)", err)
		}
		t.Skipf("needs %s: as root, .ci/deps test", n)
	}
}

// libs builds the libraries once, or takes those in VRNIC_TEST_LIBS, and returns their folder.
func libs(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("VRNIC_TEST_LIBS"); dir != "" {
		return dir
	}
	need(t, "cc", "make")
	dir, err := buildLibs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var buildLibs = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(workDir, "lib")
	out, err := exec.Command("make", "-s", "-C", verbsDir, "BUILD="+dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make: %v\n%s", err, out)
	}
	return dir, nil
})

// compile makes a program of C source and returns its path.
func compile(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	need(t, "cc")
	src, bin := filepath.Join(workDir, name+".c"), filepath.Join(workDir, name)
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I" + verbsDir, "-o", bin, src}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%s does not compile: %v\n%s", name, err, firstLines(out, 30))
	}
	return bin
}

// run returns what a program, with its arguments, prints, with environment variables added.
func run(t *testing.T, bin string, env ...string) string {
	t.Helper()
	args := strings.Fields(bin)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(bin), err, firstLines(append(stderr.Bytes(), lastLines(out, 30)...), 60))
	}
	return string(out)
}

// values runs a program that prints lines of a name and a value.
func values(t *testing.T, bin string, env ...string) map[string]string {
	t.Helper()
	m := make(map[string]string)
	for line := range strings.Lines(run(t, bin, env...)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || m[name] != "" {
			t.Fatalf("%s printed %q", filepath.Base(bin), line)
		}
		m[name] = value
	}
	return m
}

func firstLines(b []byte, n int) string {
	lines := strings.SplitAfterN(string(b), "\n", n+1)
	if len(lines) > n {
		lines[n] = "...\n"
	}
	return strings.Join(lines, "")
}

// macros returns the macros that a header defines, as the preprocessor lists them.
func macros(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("cc", "-E", "-dM", "-D_GNU_SOURCE", filepath.Join(verbsDir, name)).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, firstLines(out, 30))
	}
	return string(out)
}

func lastLines(b []byte, n int) string {
	lines := strings.SplitAfter(string(b), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
