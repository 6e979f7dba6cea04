package launch

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Whatever a file holds, Find either says in an *Error that it cannot be run, or lets it run, with
// a hint or without; and a program that is a script for another is judged as the other is.
func FuzzInspect(f *testing.F) {
	f.Add([]byte("#!/bin/sh -e\n"))
	f.Add([]byte("#! /no/such/interpreter"))
	f.Add(elfFile{elf.ELFCLASS64, machines[runtime.GOARCH], "/lib/ld-musl-x86_64.so.1"}.bytes(f))
	f.Add(elfFile{elf.ELFCLASS64, machines[runtime.GOARCH], ""}.bytes(f))
	f.Add(elfFile{elf.ELFCLASS32, elf.EM_386, ""}.bytes(f))
	dir := f.TempDir()
	file, script := filepath.Join(dir, "program"), filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!"+file+"\n"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(file, content, 0o755); err != nil {
			t.Fatal(err)
		}
		p, err := Find(file, "")
		if e := (*Error)(nil); err != nil && (!errors.As(err, &e) || e.Status != StatusCannotRun ||
			p.Hint != "") {
			t.Errorf("%q: %+v, %v", content, p, err)
		}
		q, serr := Find(script, "")
		if (err == nil) != (serr == nil) || p.Hint != q.Hint || p.ASAN != q.ASAN || p.RPath != q.RPath {
			t.Errorf("%q: %+v, %v; as a script's interpreter %+v, %v", content, p, err, q, serr)
		}
	})
}
