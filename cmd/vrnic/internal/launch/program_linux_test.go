package launch

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// An elfFile is as much of a program as Find looks at.
type elfFile struct {
	class   elf.Class
	machine elf.Machine
	loader  string
}

func (f elfFile) bytes(t testing.TB) []byte {
	t.Helper()
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(f.class), byte(elf.ELFDATA2LSB),
		byte(elf.EV_CURRENT)}
	var b bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	if f.class == elf.ELFCLASS32 {
		put(elf.Header32{Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(f.machine),
			Version: uint32(elf.EV_CURRENT), Ehsize: 52})
		return b.Bytes()
	}
	const head, prog = 64, 56
	h := elf.Header64{Ident: ident, Type: uint16(elf.ET_DYN), Machine: uint16(f.machine),
		Version: uint32(elf.EV_CURRENT), Ehsize: head, Phoff: head, Phentsize: prog}
	if f.loader != "" {
		h.Phnum = 1
	}
	put(h)
	if f.loader != "" {
		put(elf.Prog64{Type: uint32(elf.PT_INTERP), Off: head + prog, Filesz: uint64(len(f.loader) + 1),
			Memsz: uint64(len(f.loader) + 1)})
		put([]byte(f.loader + "\x00"))
	}
	return b.Bytes()
}

func TestFind(t *testing.T) {
	here, other, small := machines[runtime.GOARCH], elf.EM_AARCH64, elf.EM_386
	if runtime.GOARCH == "arm64" {
		other, small = elf.EM_X86_64, elf.EM_ARM
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, content []byte, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), content, mode); err != nil {
			t.Fatal(err)
		}
	}
	script := func(interp string) []byte { return []byte("#!" + interp + "\necho\n") }

	write("loader", nil, 0o755)
	write("good", elfFile{elf.ELFCLASS64, here, at("loader")}.bytes(t), 0o755)
	write("plain", []byte("data"), 0o644)
	write("small", elfFile{elf.ELFCLASS32, small, ""}.bytes(t), 0o755)
	write("x32", elfFile{elf.ELFCLASS32, here, ""}.bytes(t), 0o755)
	write("other", elfFile{elf.ELFCLASS64, other, at("loader")}.bytes(t), 0o755)
	write("riscv", elfFile{elf.ELFCLASS64, elf.EM_RISCV, at("loader")}.bytes(t), 0o755)
	write("ld-musl-here.so.1", nil, 0o755)
	write("musl", elfFile{elf.ELFCLASS64, here, at("ld-musl-here.so.1")}.bytes(t), 0o755)
	write("foreign", elfFile{elf.ELFCLASS64, here, at("no/loader")}.bytes(t), 0o755)
	write("static", elfFile{elf.ELFCLASS64, here, ""}.bytes(t), 0o755)
	write("broken", append([]byte(elf.ELFMAG), make([]byte, 100)...), 0o755)
	write("noline", []byte("echo\n"), 0o755)
	write("empty", nil, 0o755)
	write("script", script(at("good")+" -x"), 0o755)
	write("spaces", script(" \t"+at("good")+"\t-x"), 0o755)
	write("nothing", []byte("#!"), 0o755)
	write("crlf", []byte("#!/bin/sh\r\necho\r\n"), 0o755)
	write("statics", script(at("static")), 0o755)
	write("scripts", script(at("script")), 0o755)
	write("musls", script(at("musl")), 0o755)
	write("loop", script(at("loop")), 0o755)
	write("first/both", nil, 0o644)
	write("second/both", elfFile{elf.ELFCLASS64, here, at("loader")}.bytes(t), 0o755)
	write("first/denied", nil, 0o644)
	write("first/folder/x", nil, 0o644)
	write("second/folder", elfFile{elf.ELFCLASS64, here, at("loader")}.bytes(t), 0o755)
	t.Chdir(dir)

	both := at("first") + ":" + at("second")
	for _, tt := range []struct {
		name, path string
		found      string // "": at(name)
		status     int
		words      string // of the error, or of the hint
		musl       bool
	}{
		{name: "good"},
		{name: "good", path: ":/none", found: "./good"},
		{name: "noline"},
		{name: "empty"},
		{name: "broken"},
		{name: "script"},
		{name: "spaces"},
		{name: "scripts"},
		{name: "musl", musl: true},
		{name: "musls", musl: true},
		{name: "nothing"},
		{name: "loop"},
		{name: "both", path: both, found: at("second/both")},
		{name: "folder", path: both, found: at("second/folder")},
		{name: "static", words: "statically linked"},
		{name: "statics", words: "static is statically linked"},
		{name: "", path: both, status: 127, words: "empty"},
		{name: "absent", status: 127, words: "no such program"},
		{name: "good/below", status: 127, words: "no such program"},
		{name: "good", path: both, status: 127, words: "$PATH"},
		{name: "denied", path: both, status: 126, words: "not executable"},
		{name: "plain", status: 126, words: "not executable"},
		{name: "first", status: 126, words: "directory"},
		{name: "small", status: 126, words: "32-bit"},
		{name: "x32", status: 126, words: "32-bit"},
		{name: "other", status: 126, words: other.String()},
		{name: "riscv", status: 126, words: "EM_RISCV"},
		{name: "foreign", status: 126, words: "no/loader"},
		{name: "crlf", status: 126, words: `"/bin/sh\r"`},
	} {
		name, want := tt.name, tt.found
		if tt.path == "" {
			name, want = at(name), at(name)
		}
		p, err := Find(name, tt.path)
		if tt.status == 0 {
			if err != nil || p.Path != want || p.ASAN || p.Musl != tt.musl ||
				(p.Hint != "") != (tt.words != "") || !strings.Contains(p.Hint, tt.words) {
				t.Errorf("%s in %q: %+v, %v; want %s and a hint with %q", tt.name, tt.path, p, err, want,
					tt.words)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Status != tt.status || !strings.Contains(e.Text, tt.words) {
			t.Errorf("%s in %q: %+v, %v; want status %d and %q", tt.name, tt.path, p, err, tt.status,
				tt.words)
		}
	}
}

// Where a program will miss glibc's unwinder it is told before.
func TestLacksUnwinder(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	lacks := func(want bool, path string) {
		t.Helper()
		if got := lacksUnwinder(root, path); (got != "") != want ||
			want && !strings.Contains(got, "install libgcc-s1") {
			t.Errorf("with %q: %q", path, got)
		}
	}
	lacks(true, "")
	lacks(true, other)
	for _, file := range []string{filepath.Join(other, "libgcc_s.so.1"),
		filepath.Join(lib, "libgcc_s.so.1")} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		lacks(filepath.Dir(file) == other, "")
		lacks(false, "/none:"+other)
	}
}

// The programs of this machine have nothing that is wrong with them.
func TestFindHere(t *testing.T) {
	p, err := Find("sh", "")
	if err != nil || p.Hint != "" || p.Lacks != "" || p.ASAN {
		t.Errorf("sh: %+v, %v", p, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Find(self, ""); err != nil {
		t.Errorf("this test: %v", err)
	}
}

// The loader itself runs programs, with the libraries; it has no loader and is not static.
func TestFindLoader(t *testing.T) {
	loaders, err := filepath.Glob("/lib*/ld-linux-*.so.*")
	if err != nil || len(loaders) == 0 {
		needtest.Lacking(t, "glibc", fmt.Sprintf("%v, loaders %v", err, loaders))
	}
	for _, file := range loaders {
		if p, err := Find(file, ""); p.Hint != "" {
			t.Errorf("%s: %+v, %v", file, p, err)
		}
	}
}

// A program that its user may run and not read.
func TestFindUnreadable(t *testing.T) {
	if os.Getuid() == 0 {
		needtest.AsNobody(t, "TestFindUnreadable")
		return
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o111); err != nil {
		t.Fatal(err)
	}
	p, err := Find(file, "")
	if err != nil || !strings.Contains(p.Hint, "no device") {
		t.Errorf("%+v, %v; want a hint", p, err)
	}
}

// What gets privilege when it is executed, and what only looks like it.
func TestFindPrivileged(t *testing.T) {
	needtest.Root(t)
	dir := t.TempDir()
	const nobody = 65534
	for _, tt := range []struct {
		name     string
		uid, gid int
		mode     uint32
		words    string // "": it runs
	}{
		{"setuid", nobody, nobody, 0o4755, "setuid"},
		{"setgid", 0, nobody, 0o2755, "setgid"},
		{"own", 0, 0, 0o6755, ""},
		{"locking", 0, nobody, 0o2745, ""}, // setgid without execution is something else
		{"neither", nobody, nobody, 0o755, ""},
	} {
		file := filepath.Join(dir, tt.name)
		if err := os.WriteFile(file, []byte("echo\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(file, tt.uid, tt.gid), unix.Chmod(file, tt.mode)); err != nil {
			t.Fatal(err)
		}
		_, err := Find(file, "")
		var e *Error
		if tt.words == "" && err != nil || tt.words != "" && (!errors.As(err, &e) || e.Status != 126 ||
			!strings.Contains(e.Text, tt.words)) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.words)
		}
		script := file + ".script"
		if err := os.WriteFile(script, []byte("#!"+file+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(script, ""); (err != nil) != (tt.words != "") {
			t.Errorf("a script for %s: %v", tt.name, err)
		}
	}
}

// Where nothing is setuid, a program that looks so is like any other.
func TestFindNoSuid(t *testing.T) {
	inMountNS(t, func() {
		for flags, want := range map[uintptr]bool{0: true, unix.MS_NOSUID: false} {
			file := filepath.Join(mounted(t, flags), "program")
			err := errors.Join(os.WriteFile(file, []byte("echo\n"), 0o755), os.Chown(file, 65534, 65534),
				unix.Chmod(file, 0o4755))
			if err != nil {
				t.Error(err)
			}
			if _, err := Find(file, ""); (err != nil) != want {
				t.Errorf("mounted with %#x: %v", flags, err)
			}
		}
	})
}

// A file with capabilities gives root nothing, others the privilege.
func TestFindCapabilities(t *testing.T) {
	if file := os.Getenv("VRNIC_TEST_FILE"); file != "" {
		var e *Error
		if _, err := Find(file, ""); !errors.As(err, &e) || e.Status != 126 || !strings.Contains(e.Text,
			"capabilities") {
			t.Errorf("%v; want an error that says capabilities", err)
		}
		return
	}
	needtest.Root(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "capable")
	if err := os.WriteFile(file, []byte("echo\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(openUp(file), os.Chmod(file, 0o755)); err != nil {
		t.Fatal(err)
	}
	// struct vfs_cap_data of version 2: effective, CAP_NET_RAW permitted.
	data := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Setxattr(file, "security.capability", data, 0); err != nil {
		needtest.Lacking(t, "root", fmt.Sprintf("file capabilities: %v", err))
	}
	if _, err := Find(file, ""); err != nil {
		t.Errorf("root: %v", err)
	}
	needtest.AsNobody(t, "TestFindCapabilities", "VRNIC_TEST_FILE="+file)
}

// A folder in PATH that the user may not look into is passed by: what is in no other is not found.
func TestFindClosedFolder(t *testing.T) {
	dir := t.TempDir()
	closed, open := filepath.Join(dir, "closed"), filepath.Join(dir, "open")
	for folder, mode := range map[string]os.FileMode{closed: 0, open: 0o755} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "good"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(folder, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := openUp(open); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: files are another user's to the thread
		if os.Getuid() == 0 {
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				t.Errorf("setfsuid: %v", err)
			}
		}
		path := closed + ":" + open
		if p, err := Find("good", path); err != nil || p.Path != filepath.Join(open, "good") {
			t.Errorf("found %q, %v", p.Path, err)
		}
		_, err := Find("typo", path)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Status != StatusNotFound {
			t.Errorf("a program that is nowhere: %v, want status %d", err, StatusNotFound)
		}
		_, err = Find(filepath.Join(closed, "good"), path)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Status != StatusCannotRun {
			t.Errorf("a program in a closed folder, by its path: %v, want status %d", err, StatusCannotRun)
		}
	}()
	<-done
}
