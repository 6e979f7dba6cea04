package launch

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoCompiler and ErrNoMusl say what a host lacks to build the libraries.
var (
	ErrNoCompiler = errors.New("there is no C compiler to build the verbs libraries with: " +
		"install gcc, make and libc6-dev (Debian, Ubuntu), or gcc, make and glibc-devel (Fedora)")
	ErrNoMusl = errors.New("there is no C compiler to build the verbs libraries for musl with: " +
		"install gcc, make, musl-dev and linux-headers (Alpine), or make and musl-tools (Debian, Ubuntu)")
)

// compiler is the one for programs whose C library is musl, or for the others; "" if there is none.
func compiler(musl bool) string {
	if _, err := exec.LookPath("musl-gcc"); err == nil && musl {
		return "musl-gcc"
	}
	if _, err := exec.LookPath("cc"); err != nil {
		return ""
	}
	machine, _ := exec.Command("cc", "-dumpmachine").Output() // one that cannot say is for glibc
	if bytes.Contains(machine, []byte("musl")) != musl {
		return ""
	}
	return "cc"
}

// Compile returns the libraries that make(1) builds from source, its folder with the Makefile, in a
// directory of this user's below one of bases: for programs whose C library is musl, or for the
// others. They are built once; say is told before.
func Compile(source fs.FS, bases []string, musl bool, say func(string)) (Libs, error) {
	own, err := Own(bases)
	if err != nil {
		return Libs{}, err
	}
	sum, err := sumOf(source)
	if err != nil {
		return Libs{}, err
	}
	name, none := "built-"+sum, ErrNoCompiler
	if musl {
		name, none = name+"-musl", ErrNoMusl
	}
	dir := filepath.Join(own, name)
	if libs, err := Installed(dir); err == nil {
		return libs, nil
	}
	cc := compiler(musl)
	if _, err := exec.LookPath("make"); err != nil || cc == "" {
		return Libs{}, none
	}
	temp, err := os.MkdirTemp(own, "build-")
	if err != nil {
		return Libs{}, err
	}
	defer os.RemoveAll(temp)
	say("building the verbs libraries, once")
	if err := os.CopyFS(filepath.Join(temp, "source"), source); err != nil {
		return Libs{}, err
	}
	out := filepath.Join(temp, "out")
	cmd := exec.Command("make", "-s", "-C", filepath.Join(temp, "source"), "BUILD="+out, "CC="+cc)
	if said, err := cmd.CombinedOutput(); err != nil {
		said, _, _ = bytes.Cut(said, []byte("\n"))
		_, packages, _ := strings.Cut(none.Error(), ": ")
		return Libs{}, fmt.Errorf("build the verbs libraries (perhaps you have to %s): %w: %s", packages,
			err, said)
	}
	if err := os.Chmod(out, 0o755); err != nil { // whatever the umask
		return Libs{}, err
	}
	// Another process may have done the same: one of the two is as good as the other.
	if err := os.Rename(out, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return Libs{}, err
	}
	return Installed(dir)
}

// sumOf names what the files of a file system hold.
func sumOf(source fs.FS) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(source, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(source, name)
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), err
}
