package launch

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit statuses of shells and of env(1).
const (
	StatusCannotRun = 126 // the program is there, but does not run
	StatusNotFound  = 127
)

// An Error says why a program does not run.
type Error struct {
	Status int
	Text   string
}

func (e *Error) Error() string { return e.Text }

func cannotRun(format string, args ...any) error {
	return &Error{StatusCannotRun, fmt.Sprintf(format, args...)}
}

// A Program is a file that can be executed.
type Program struct {
	Path string
	// Hint is not empty if the libraries will do nothing for the program itself, although perhaps for
	// those that it starts: it says why, in a sentence.
	Hint string
	// ASAN says that the program is linked with the library of the address sanitizer.
	ASAN bool
	// RPath says that the program names directories for its libraries that come before
	// LD_LIBRARY_PATH.
	RPath bool
	// Musl says that its C library is musl, which wants libraries of its own.
	Musl bool
	// Lacks is not empty if the program's C library lacks a part that it wants later: it says what to
	// install.
	Lacks string
}

// Find looks name up in path, the value of PATH, as execvp(3) does, and looks at what it finds. An
// error is an *Error.
func Find(name, path string) (Program, error) {
	p := Program{}
	var err error
	if p.Path, err = lookUp(name, path); err == nil {
		err = p.inspect(p.Path, 0)
	}
	return p, err
}

// lookUp is Find without the look. An empty element of path is the working directory, as ever.
func lookUp(name, path string) (string, error) {
	if name == "" {
		return "", &Error{StatusNotFound, "the command is empty"}
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	if path == "" {
		path = "/bin:/usr/bin"
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		// Not Join: the program of the working directory has a slash in its name from here on.
		file := "./" + name
		if dir != "" {
			file = dir + "/" + name
		}
		err := executable(file)
		if err == nil {
			return file, nil
		}
		// A folder that this user may not look into has no program, as for a shell.
		if _, there := os.Stat(file); there == nil && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &Error{StatusNotFound, fmt.Sprintf("%s: no such program in $PATH", name)}
}

// executable says what keeps this user from executing file.
func executable(file string) error {
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return &Error{StatusNotFound, fmt.Sprintf("%s: no such program", file)}
	case err != nil:
		return cannotRun("%v", err)
	case st.IsDir():
		return cannotRun("%s is a directory", file)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
		return cannotRun("%s is not executable: %v", file, err)
	}
	return nil
}

// maxScripts is how many interpreters in a row the kernel follows.
const maxScripts = 5

// inspect looks at file, which runs for the program: itself or an interpreter.
func (p *Program) inspect(file string, depth int) error {
	if err := checkPrivilege(file); err != nil {
		return err
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrPermission) {
		p.Hint = fmt.Sprintf("%s may be run by you but not read, so the kernel lets nobody into its "+
			"memory: it will find no device", file)
		return nil
	}
	if err != nil {
		return cannotRun("%v", err)
	}
	defer f.Close()
	head := make([]byte, 256) // as much as the kernel looks at
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return cannotRun("%v", err)
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return p.inspectELF(file, f)
	case bytes.HasPrefix(head, []byte("#!")):
		interp := interpreter(head)
		if interp == "" || depth == maxScripts {
			return nil // the kernel has words for it
		}
		if err := executable(interp); err != nil {
			return cannotRun("%s is a script for %q, which cannot be run: %v", file, interp, err)
		}
		return p.inspect(interp, depth+1)
	}
	return nil // something for sh, or for binfmt_misc
}

// interpreter returns the program named in the first line of a script.
func interpreter(head []byte) string {
	line, _, _ := bytes.Cut(head[len("#!"):], []byte("\n"))
	line = bytes.TrimLeft(line, " \t")
	if i := bytes.IndexAny(line, " \t"); i >= 0 {
		line = line[:i]
	}
	return string(line)
}

// checkPrivilege refuses a program that gets privilege by being executed: its loader then ignores,
// and removes, what would bring the libraries in.
func checkPrivilege(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return cannotRun("%s: %v", file, err)
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(file, &fsys); err == nil && fsys.Flags&unix.ST_NOSUID != 0 {
		return nil
	}
	const way = "its loader ignores LD_LIBRARY_PATH and LD_PRELOAD; if it is to start another " +
		"program, let it start vrnic exec"
	if nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || nnp == 0 {
		if st.Mode&unix.S_ISUID != 0 && int(st.Uid) != os.Getuid() {
			return cannotRun("%s is setuid: %s", file, way)
		}
		if st.Mode&(unix.S_ISGID|unix.S_IXGRP) == unix.S_ISGID|unix.S_IXGRP &&
			int(st.Gid) != os.Getgid() {
			return cannotRun("%s is setgid: %s", file, way)
		}
	}
	if n, err := unix.Getxattr(file, "security.capability", nil); err == nil && n > 0 &&
		os.Getuid() != 0 {
		return cannotRun("%s has file capabilities: %s", file, way)
	}
	return nil
}

// machines are what the libraries can be built for, by GOARCH.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func (p *Program) inspectELF(file string, f io.ReaderAt) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return nil //nolint:nilerr // the kernel does with less than debug/elf wants to see; it will say
	}
	want := machines[runtime.GOARCH]
	switch {
	case e.Class != elf.ELFCLASS64 && (e.Machine == want || want == elf.EM_X86_64 &&
		e.Machine == elf.EM_386 || want == elf.EM_AARCH64 && e.Machine == elf.EM_ARM):
		return cannotRun("%s is a 32-bit program; the verbs libraries of vrnic are for 64 bits: use a "+
			"64-bit build of it", file)
	case e.Machine != want:
		return cannotRun("%s is built for %v, the verbs libraries of this vrnic for %v", file,
			e.Machine, want)
	}
	loader := ""
	for _, prog := range e.Progs {
		if prog.Type != elf.PT_INTERP || prog.Filesz > unix.PathMax {
			continue
		}
		b := make([]byte, prog.Filesz)
		if _, err := prog.ReadAt(b, 0); err == nil {
			loader = string(bytes.TrimRight(b, "\x00"))
		}
	}
	if loader == "" {
		if !isLoader(e) {
			p.Hint = fmt.Sprintf("%s is statically linked: no verbs library can be loaded into it, only "+
				"into programs that it starts", file)
		}
		return nil
	}
	p.Musl = strings.HasPrefix(filepath.Base(loader), "ld-musl")
	if _, err := os.Stat(loader); err != nil {
		return cannotRun("%s needs the loader %s, which is not here: %v", file, loader, err)
	}
	if !p.Musl && (strings.HasPrefix(loader, "/lib64/") || strings.HasPrefix(loader, "/lib/")) {
		p.Lacks = lacksUnwinder("/", os.Getenv("LD_LIBRARY_PATH"))
	}
	needed, err := e.ImportedLibraries()
	if err != nil {
		return nil //nolint:nilerr // the loader will say
	}
	for _, lib := range needed {
		p.ASAN = p.ASAN || strings.HasPrefix(lib, "libasan.so")
	}
	rpath, _ := e.DynString(elf.DT_RPATH)
	p.RPath = p.RPath || len(rpath) > 0
	return nil
}

// lacksUnwinder says what to install where glibc will not find the library that pthread_exit(3) and
// pthread_cancel(3) load when they are called, and abort without: neither in path, as in
// LD_LIBRARY_PATH, nor below root where systems have it.
func lacksUnwinder(root, path string) string {
	const name = "libgcc_s.so.1"
	dirs := filepath.SplitList(path)
	for _, pattern := range []string{"lib", "lib64", "lib/*-linux-gnu", "usr/lib", "usr/lib64",
		"usr/lib/*-linux-gnu"} {
		dirs = append(dirs, filepath.Join(root, pattern))
	}
	for _, dir := range dirs {
		if found, err := filepath.Glob(filepath.Join(dir, name)); err == nil && len(found) > 0 {
			return ""
		}
	}
	return name + " is not here, without which programs abort when they end a thread: install " +
		"libgcc-s1 (Debian, Ubuntu) or libgcc (Fedora)"
}

// isLoader tells the dynamic loader itself, which can be run with a program as its argument.
func isLoader(e *elf.File) bool {
	names, err := e.DynString(elf.DT_SONAME)
	return err == nil && len(names) == 1 && strings.HasPrefix(names[0], "ld-")
}
