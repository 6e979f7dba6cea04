package abicheck

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// verbsDir has the C source, shmDir the Go source of the ABI.
const (
	verbsDir = ctest.VerbsDir
	shmDir   = "../../shm"
)

const arch = runtime.GOARCH

func TestMain(m *testing.M) { ctest.Main(m) }

// libs returns the folder of the libraries.
func libs(t *testing.T) string {
	t.Helper()
	ctest.Need(t)
	dir, err := ctest.Libs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// compile makes a program of C source and returns its path.
func compile(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	ctest.Need(t)
	src := filepath.Join(ctest.Dir, name+".c")
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	bin, err := ctest.CC(name, append([]string{"-std=gnu11", src}, flags...)...)
	if err != nil {
		t.Fatal(err)
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
		t.Fatalf("%s: %v\n%s%s", filepath.Base(bin), err, stderr.Bytes(), out)
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

// macros returns the macros that a header defines, as the preprocessor lists them.
func macros(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("cc", "-E", "-dM", "-D_GNU_SOURCE",
		filepath.Join(verbsDir, name)).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}
