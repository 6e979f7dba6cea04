package launch

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Place puts the libraries, content by name, where the loader of a program finds them: into the
// first of bases that will do, in a directory of this user's that is named after what is in it; or,
// where there is none, into memory.
//
// A directory is better: programs that close the descriptors they have inherited start others all
// the same.
func Place(libs map[string][]byte, bases []string) (Libs, error) {
	var causes []error
	for _, base := range bases {
		dir, err := placeBelow(libs, base)
		if err == nil {
			return Libs{Dir: dir}, nil
		}
		causes = append(causes, err)
	}
	files, err := placeInMemory(libs)
	if err != nil {
		return Libs{}, fmt.Errorf("nowhere to put the verbs libraries: %w",
			errors.Join(append(causes, err)...))
	}
	return Libs{Files: files}, nil
}

// Bases are the directories in which Place may make one, best first. Programs that root starts may
// change to another user: theirs is in a place that everybody can read.
func Bases(uid int, getenv func(string) string) []string {
	temp := getenv("TMPDIR")
	if temp == "" {
		temp = "/tmp"
	}
	cache := getenv("XDG_CACHE_HOME")
	if home := getenv("HOME"); cache == "" && home != "" {
		cache = filepath.Join(home, ".cache")
	}
	bases := []string{getenv("XDG_RUNTIME_DIR"), temp, cache}
	if uid == 0 {
		bases = []string{"/run", temp, cache}
	}
	var out []string
	for _, b := range bases {
		if filepath.IsAbs(b) {
			out = append(out, b)
		}
	}
	return out
}

func placeBelow(libs map[string][]byte, base string) (string, error) {
	own, err := ownBelow(base)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(own, digest(libs))
	if err := makeOwn(dir); err != nil {
		return "", err
	}
	for _, name := range Names {
		if err := placeFile(filepath.Join(dir, name), libs[name]); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// Own is a directory that only this user can write and everybody can read, in the first of bases
// that will do.
func Own(bases []string) (string, error) {
	var causes []error
	for _, base := range bases {
		own, err := ownBelow(base)
		if err == nil {
			return own, nil
		}
		causes = append(causes, err)
	}
	return "", errors.Join(causes...)
}

func ownBelow(base string) (string, error) {
	base, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", err
	}
	if err := checkName(base); err != nil {
		return "", err
	}
	// In a user namespace root may have no number, and then shares one with others: such a base can be
	// anybody's, but what is used below it is not.
	var top unix.Stat_t
	if err := unix.Stat("/", &top); err != nil {
		return "", &fs.PathError{Op: "stat", Path: "/", Err: err}
	}
	if err := checkTrusted(base, top.Uid); err != nil {
		return "", err
	}
	own := filepath.Join(base, "vrnic-"+strconv.Itoa(os.Geteuid()))
	return own, makeOwn(own)
}

// digest names what the libraries hold.
func digest(libs map[string][]byte) string {
	h := sha256.New()
	for _, name := range Names {
		fmt.Fprintf(h, "%s %d\n", name, len(libs[name]))
		h.Write(libs[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// checkName refuses a directory whose name the loader would take for several, or expand.
func checkName(dir string) error {
	if strings.ContainsAny(dir, ":;$ \t\n") {
		return fmt.Errorf("%q cannot stand in LD_LIBRARY_PATH", dir)
	}
	return nil
}

// checkTrusted is an error if anybody but root, a user id, and this user can replace the directory
// dir or what this user makes there. Its path has no symbolic links.
func checkTrusted(dir string, root uint32) error {
	for {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: dir, Err: err}
		}
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fmt.Errorf("%s is no directory", dir)
		case st.Uid != root && int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%s belongs to another user", dir)
		case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
			return fmt.Errorf("%s can be written by other users", dir)
		}
		if dir == "/" {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// makeOwn makes a directory that only this user can write and everybody can read, or is content
// with one that is there.
func makeOwn(dir string) error {
	err := unix.Mkdir(dir, 0o700)
	if err == nil {
		err = unix.Chmod(dir, 0o755) // whatever the umask
	} else if err == unix.EEXIST {
		err = nil
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return checkOwn(dir, unix.S_IFDIR)
}

// checkOwn is an error if file is not this user's alone, or not of type typ.
func checkOwn(file string, typ uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: file, Err: err}
	}
	if st.Mode&unix.S_IFMT != typ || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not as vrnic makes it: remove it", file)
	}
	return nil
}

// placeFile makes file hold content, which nobody else can change: it is in a directory of ours.
func placeFile(file string, content []byte) error {
	if err := checkOwn(file, unix.S_IFREG); err == nil {
		if there, err := os.ReadFile(file); err == nil && bytes.Equal(there, content) {
			return checkExec(file)
		}
	}
	// Another process may be doing the same, and a third be loading it.
	f, err := os.CreateTemp(filepath.Dir(file), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o755) // one is a program
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = checkExec(f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// checkExec maps the beginning of a library as a loader does: on a file system without executables
// it cannot.
func checkExec(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("%s cannot be loaded from there: %w", file, err)
	}
	return unix.Munmap(b)
}

// memPrefix begins the names of our files in memory.
const memPrefix = "vrnic-"

// firstFD is where their descriptors begin, above those that shells redirect.
const firstFD = 100

// placeInMemory returns names that work in this process, in what it executes, and in children that
// inherit all descriptors.
func placeInMemory(libs map[string][]byte) (files []string, err error) {
	var fds []int
	defer func() {
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}()
	for _, name := range Names {
		if name == RSockets || name == RSocketD {
			continue // what cannot be executed there, and what would do that; they come last
		}
		// Not to be executed as a program; older kernels do not know the difference.
		fd, err := unix.MemfdCreate(memPrefix+name, unix.MFD_NOEXEC_SEAL|unix.MFD_ALLOW_SEALING)
		if err == unix.EINVAL {
			fd, err = unix.MemfdCreate(memPrefix+name, unix.MFD_ALLOW_SEALING)
		}
		if err != nil {
			return nil, os.NewSyscallError("memfd_create", err)
		}
		if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, firstFD); err == nil {
			unix.Close(fd)
			fd = high
		}
		fds = append(fds, fd)
		for content := libs[name]; len(content) > 0; {
			n, err := unix.Write(fd, content)
			if err != nil {
				return nil, os.NewSyscallError("write", err)
			}
			content = content[n:]
		}
		const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return nil, os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
		}
		file := "/proc/self/fd/" + strconv.Itoa(fd)
		if err := checkExec(file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// isPlaced tells a file that placeInMemory has made, here or in a process before this one.
func isPlaced(file string) bool {
	if !strings.HasPrefix(file, "/proc/self/fd/") {
		return false
	}
	to, err := os.Readlink(file)
	return err != nil || strings.HasPrefix(to, "/memfd:"+memPrefix)
}

// Contents are those of libraries, by name.
func (l Libs) Contents(names []string) (map[string][]byte, error) {
	contents := make(map[string][]byte)
	for i, name := range Names {
		if !slices.Contains(names, name) {
			continue
		}
		file := filepath.Join(l.Dir, name)
		if l.Dir == "" {
			file = l.Files[i]
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		contents[name] = b
	}
	return contents, nil
}

// Installed returns the libraries of a directory that somebody has chosen.
func Installed(dir string) (Libs, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Libs{}, err
	}
	if err := checkName(dir); err != nil {
		return Libs{}, err
	}
	for _, name := range Names {
		if err := readable(filepath.Join(dir, name)); err != nil {
			return Libs{}, err
		}
	}
	return Libs{Dir: dir}, nil
}

func readable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.ReadFull(f, make([]byte, 4))
	if err != nil {
		return fmt.Errorf("%s is no library: %w", file, err)
	}
	return checkExec(file)
}

// Beside returns the libraries that are installed with the program at exe, PREFIX/bin/vrnic: those
// in PREFIX/lib/vrnic, or for musl in libmusl below that. Where others could put some there, there
// are none: fs.ErrNotExist.
func Beside(exe string, musl bool) (Libs, error) {
	exe, err := filepath.EvalSymlinks(exe)
	if err != nil {
		return Libs{}, err
	}
	dir := filepath.Join(filepath.Dir(exe), "..", "lib", "vrnic")
	if musl {
		dir = filepath.Join(dir, "libmusl")
	}
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return Libs{}, err
	}
	if err := checkTrusted(dir, 0); err != nil {
		return Libs{}, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return Installed(dir)
}
