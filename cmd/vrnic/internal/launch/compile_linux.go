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
)

// ErrNoCompiler says what a host lacks to build the libraries.
var ErrNoCompiler = errors.New("there is no C compiler to build the verbs libraries with: " +
	"install gcc, make and libc6-dev (Debian, Ubuntu), or gcc, make and glibc-devel (Fedora)")

// Compile returns the libraries that make(1) builds from source, its folder with the Makefile, in a
// directory of this user's below one of bases. They are built once; say is told before.
func Compile(source fs.FS, bases []string, say func(string)) (Libs, error) {
	own, err := Own(bases)
	if err != nil {
		return Libs{}, err
	}
	sum, err := sumOf(source)
	if err != nil {
		return Libs{}, err
	}
	dir := filepath.Join(own, "built-"+sum)
	if libs, err := Installed(dir); err == nil {
		return libs, nil
	}
	for _, tool := range []string{"make", "cc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return Libs{}, ErrNoCompiler
		}
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
	cmd := exec.Command("make", "-s", "-C", filepath.Join(temp, "source"), "BUILD="+out)
	if said, err := cmd.CombinedOutput(); err != nil {
		said, _, _ = bytes.Cut(said, []byte("\n"))
		return Libs{}, fmt.Errorf("build the verbs libraries (gcc, make and libc6-dev, or "+
			"glibc-devel, are needed): %w: %s", err, said)
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
