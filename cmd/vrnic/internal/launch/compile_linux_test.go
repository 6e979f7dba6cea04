package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/vrnic/vrnic/internal/needtest"
)

// The libraries are built once, with make and a compiler, and a host without is told so.
func TestCompile(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		needtest.Lacking(t, "verbs", err)
	}
	makefile := "all:\n\tmkdir -p $(BUILD)\n"
	for _, name := range Names {
		makefile += "\techo library >$(BUILD)/" + name + "\n"
	}
	good := fstest.MapFS{"Makefile": {Data: []byte(makefile + "\techo >>../../runs\n")},
		"core/a.c": {Data: []byte("int a;\n")}}
	bad := fstest.MapFS{"Makefile": {Data: []byte("all:\n\t@echo no such header; exit 1\n")}}
	dir, said := base(t), 0
	bases := []string{dir}
	say := func(string) { said++ }

	t.Setenv("PATH", t.TempDir())
	if _, err := Compile(good, bases, false, say); !errors.Is(err, ErrNoCompiler) || said != 0 {
		t.Errorf("without make: %v", err)
	}
	tools := os.Getenv("PATH")
	for _, tool := range []string{"make", "mkdir", "sh"} {
		path, err := findTool(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(tools, tool)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Compile(good, bases, false, say); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("without a compiler: %v", err)
	}
	if err := os.WriteFile(filepath.Join(tools, "cc"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Compile(bad, bases, false, say); err == nil || !strings.Contains(err.Error(),
		"no such header") || !strings.Contains(err.Error(), "libc6-dev") {
		t.Errorf("a compiler that fails: %v", err)
	}
	said = 0
	for range 2 {
		libs, err := Compile(good, bases, false, say)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range Names {
			if _, err := os.Stat(filepath.Join(libs.Dir, name)); err != nil {
				t.Error(err)
			}
		}
	}
	runs, err := filepath.Glob(filepath.Join(dir, "*", "runs"))
	if err != nil || len(runs) != 1 || said != 1 {
		t.Fatalf("%v, %v; said %d times", runs, err, said)
	}
	if b, err := os.ReadFile(runs[0]); err != nil || string(b) != "\n" {
		t.Errorf("make has run %q, %v", b, err)
	}
	// Those for musl are others, and want another compiler.
	if _, err := Compile(good, bases, true, say); !errors.Is(err, ErrNoMusl) {
		t.Errorf("a compiler that is not for musl: %v", err)
	}
	cc := "#!/bin/sh\necho x86_64-alpine-linux-musl\n"
	if err := os.WriteFile(filepath.Join(tools, "cc"), []byte(cc), 0o755); err != nil {
		t.Fatal(err)
	}
	if libs, err := Compile(good, bases, true, say); err != nil || !strings.HasSuffix(libs.Dir,
		"-musl") {
		t.Errorf("for musl, with a compiler for it: %+v, %v", libs, err)
	}
	good["core/b.c"] = &fstest.MapFile{Data: []byte("int b;\n")}
	if _, err := Compile(good, bases, false, say); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("not for musl, with a compiler for it: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "build-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// findTool looks where a system has its programs, whatever PATH is.
func findTool(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", errors.New(name + " is not in /usr/bin")
}
