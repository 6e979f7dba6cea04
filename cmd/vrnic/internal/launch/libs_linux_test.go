package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// content stands for the libraries.
func content() map[string][]byte {
	return map[string][]byte{Verbs: []byte("verbs"), RDMACM: bytes.Repeat([]byte("cm"), 5000),
		IfAddrs: []byte("if"), Heap: []byte("heap"), Sys: []byte("sysfs"), RSockets: []byte("sockets"),
		RSocketD: []byte("program"), Check: []byte("check")}
}

// base is a directory that Place can use.
func base(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// wantDir places in one of bases and checks that all is there.
func wantDir(t *testing.T, libs map[string][]byte, bases ...string) (dir string) {
	t.Helper()
	got, err := Place(libs, bases)
	if err != nil || got.Dir == "" || got.Files != nil {
		t.Fatalf("Place: %+v, %v; want a directory", got, err)
	}
	for _, name := range Names {
		if there, err := os.ReadFile(filepath.Join(got.Dir, name)); err != nil ||
			!bytes.Equal(there, libs[name]) {
			t.Errorf("%s holds %.20q, %v", name, there, err)
		}
	}
	all, err := os.ReadDir(got.Dir)
	if err != nil || len(all) != len(Names) {
		t.Errorf("%s holds %v, %v", got.Dir, all, err)
	}
	return got.Dir
}

func TestPlace(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	b := base(t)
	dir := wantDir(t, content(), b)
	if !strings.HasPrefix(dir, b+"/vrnic-") {
		t.Errorf("it is in %s", dir)
	}
	for _, f := range []string{filepath.Dir(dir), dir, filepath.Join(dir, Verbs)} {
		// Programs of another user, which root has started, read it; nobody else writes it.
		if st, err := os.Stat(f); err != nil || st.Mode().Perm()&0o444 != 0o444 ||
			st.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s: %v, %v", f, st.Mode(), err)
		}
	}

	// Again: the same files.
	long := time.Unix(1, 0)
	if err := os.Chtimes(filepath.Join(dir, Verbs), long, long); err != nil {
		t.Fatal(err)
	}
	if again := wantDir(t, content(), b); again != dir {
		t.Errorf("the second time it is %s, not %s", again, dir)
	}
	if st, err := os.Stat(filepath.Join(dir, Verbs)); err != nil || !st.ModTime().Equal(long) {
		t.Errorf("it was written again: %v, %v", st.ModTime(), err)
	}

	// Other libraries: another directory, and this one stays, as programs may be using it.
	other := content()
	other[RDMACM] = []byte("newer")
	if wantDir(t, other, b) == dir {
		t.Error("other libraries have the same directory")
	}
	wantDir(t, content(), b)
}

// What somebody has damaged is made anew.
func TestPlaceRepairs(t *testing.T) {
	b := base(t)
	dir := wantDir(t, content(), b)
	file := filepath.Join(dir, Verbs)
	for name, damage := range map[string]func() error{
		"gone":      func() error { return os.Remove(file) },
		"cut short": func() error { return os.Truncate(file, 3) },
		"writable":  func() error { return os.Chmod(file, 0o666) },
		"a link": func() error {
			elsewhere := filepath.Join(t.TempDir(), "x")
			if err := os.WriteFile(elsewhere, content()[Verbs], 0o644); err != nil {
				return err
			}
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Symlink(elsewhere, file)
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		wantDir(t, content(), b)
		if err := checkOwn(file, unix.S_IFREG); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Many at once, as when a script starts many programs.
func TestPlaceConcurrently(t *testing.T) {
	b := base(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			got, err := Place(content(), []string{b})
			if err != nil || got.Dir == "" {
				t.Errorf("Place: %+v, %v", got, err)
				return
			}
			for name, want := range content() {
				if there, err := os.ReadFile(filepath.Join(got.Dir, name)); err != nil ||
					!bytes.Equal(there, want) {
					t.Errorf("%s holds %.20q, %v", name, there, err)
				}
			}
		})
	}
	wg.Wait()
	wantDir(t, content(), b)
}

// Where others can put libraries of theirs, there are none of ours.
func TestPlaceTrust(t *testing.T) {
	good := base(t)
	us := "vrnic-" + filepath.Base(filepath.Dir(wantDir(t, content(), good)))[len("vrnic-"):]
	for _, tt := range []struct {
		name string
		bad  func(b string) (string, error) // makes a base of the directory b
	}{
		{"not there", func(b string) (string, error) { return filepath.Join(b, "none"), nil }},
		{"everybody's", func(b string) (string, error) { return b, os.Chmod(b, 0o777) }},
		{"the group's", func(b string) (string, error) { return b, os.Chmod(b, 0o775) }},
		{"below everybody's", func(b string) (string, error) {
			below := filepath.Join(b, "below")
			if err := os.Mkdir(below, 0o755); err != nil {
				return "", err
			}
			return below, os.Chmod(b, 0o777)
		}},
		{"ours for everybody", func(b string) (string, error) {
			if err := os.Mkdir(filepath.Join(b, us), 0o755); err != nil {
				return "", err
			}
			return b, os.Chmod(filepath.Join(b, us), 0o777)
		}},
		{"ours a link", func(b string) (string, error) {
			if err := os.Mkdir(filepath.Join(b, "x"), 0o755); err != nil {
				return "", err
			}
			return b, os.Symlink("x", filepath.Join(b, us))
		}},
		{"ours a file", func(b string) (string, error) {
			return b, os.WriteFile(filepath.Join(b, us), nil, 0o644)
		}},
		{"a name that the loader takes apart", func(b string) (string, error) {
			return filepath.Join(b, "a:b"), os.Mkdir(filepath.Join(b, "a:b"), 0o755)
		}},
		{"a name that the loader expands", func(b string) (string, error) {
			return filepath.Join(b, "$LIB"), os.Mkdir(filepath.Join(b, "$LIB"), 0o755)
		}},
	} {
		bad, err := tt.bad(base(t))
		if err != nil {
			t.Fatal(err)
		}
		if dir := wantDir(t, content(), bad, good); !strings.HasPrefix(dir, good) {
			t.Errorf("%s: it is in %s", tt.name, dir)
		}
	}

	// A directory like /tmp is everybody's, but what is in it is its owner's.
	sticky := base(t)
	if err := os.Chmod(sticky, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if dir := wantDir(t, content(), sticky, good); !strings.HasPrefix(dir, sticky) {
		t.Errorf("a sticky directory: it is in %s", dir)
	}
}

// The same with directories that are another user's.
func TestPlaceTrustOthers(t *testing.T) {
	needtest.Root(t)
	good, theirs, squatted := base(t), base(t), base(t)
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(squatted, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(squatted, "vrnic-0")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(own, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if dir := wantDir(t, content(), theirs, squatted, good); !strings.HasPrefix(dir, good) {
		t.Errorf("it is in %s", dir)
	}
}

// A file system that gives nothing to execute is passed over.
func TestPlaceNoExec(t *testing.T) {
	inMountNS(t, func() {
		good, bad, readOnly := base(t), mounted(t, unix.MS_NOEXEC), mounted(t, unix.MS_RDONLY)
		got, err := Place(content(), []string{bad, readOnly, good})
		if err != nil || !strings.HasPrefix(got.Dir, good) {
			t.Errorf("Place: %+v, %v", got, err)
		}
		if left, err := filepath.Glob(bad + "/*/*/*"); err != nil || len(left) != 0 {
			t.Errorf("it left %v, %v", left, err)
		}
	})
}

// Without a directory the libraries are in memory, and nobody can change them.
func TestPlaceInMemory(t *testing.T) {
	got, err := Place(content(), []string{filepath.Join(base(t), "none")})
	if err != nil || got.Dir != "" || len(got.Files) != slices.Index(Names, RSockets) {
		t.Fatalf("Place: %+v, %v", got, err)
	}
	for i, file := range got.Files {
		fd, err := strconv.Atoi(filepath.Base(file))
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if there, err := os.ReadFile(file); err != nil || !bytes.Equal(there, content()[Names[i]]) {
			t.Errorf("%s holds %.20q, %v", file, there, err)
		}
		if f, err := os.OpenFile(file, os.O_RDWR, 0); err == nil {
			if _, err := f.Write([]byte("x")); err == nil {
				t.Errorf("%s can be written", file)
			}
			f.Close()
		}
		if !isPlaced(file) {
			t.Errorf("%s is not known again", file)
		}
	}
	if isPlaced("/proc/self/fd/0") {
		t.Error("a descriptor of another's is taken for ours")
	}
}

func TestBases(t *testing.T) {
	for _, tt := range []struct {
		name string
		uid  int
		env  map[string]string
		want []string
	}{
		{"a desktop", 1000, map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/h"},
			[]string{"/run/user/1000", "/tmp", "/h/.cache"}},
		{"nothing", 1000, nil, []string{"/tmp"}},
		{"all", 1000, map[string]string{"TMPDIR": "/t", "XDG_CACHE_HOME": "/c", "HOME": "/h"},
			[]string{"/t", "/c"}},
		{"relative", 1000, map[string]string{"TMPDIR": "t", "XDG_RUNTIME_DIR": "x", "HOME": "h"}, nil},
		{"root, with what is left of another's", 0, map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000",
			"HOME": "/root"}, []string{"/run", "/tmp", "/root/.cache"}},
	} {
		if got := Bases(tt.uid, func(name string) string { return tt.env[name] }); !slices.Equal(got,
			tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Libraries that are installed beside the program, or in a place that the user names.
func TestInstalled(t *testing.T) {
	prefix := base(t)
	bin, lib := filepath.Join(prefix, "bin"), filepath.Join(prefix, "lib", "vrnic")
	for _, dir := range []string{bin, lib} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe, link := filepath.Join(bin, "vrnic"), filepath.Join(base(t), "link")
	if err := os.WriteFile(exe, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Beside(exe, false); err == nil {
		t.Error("Beside found libraries where there are none")
	}
	if _, err := Installed(lib); err == nil || !strings.Contains(err.Error(), Verbs) {
		t.Errorf("Installed without libraries: %v", err)
	}
	for name, b := range content() {
		if name == IfAddrs {
			b = nil
		}
		if err := os.WriteFile(filepath.Join(lib, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Installed(lib); err == nil || !strings.Contains(err.Error(), IfAddrs) {
		t.Errorf("Installed with an empty library: %v", err)
	}
	if err := os.WriteFile(filepath.Join(lib, IfAddrs), []byte("long enough"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Installed(lib); err != nil || got.Dir != lib {
		t.Errorf("Installed: %+v, %v", got, err)
	}
	t.Chdir(prefix)
	if got, err := Installed("lib/vrnic"); err != nil || got.Dir != lib {
		t.Errorf("Installed with a relative name: %+v, %v", got, err)
	}
	if got, err := Beside(link, false); err != nil || got.Dir != lib {
		t.Errorf("Beside: %+v, %v", got, err)
	}
	if err := os.Chmod(filepath.Dir(lib), 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := Beside(exe, false); err == nil {
		t.Errorf("Beside takes %+v from a directory that everybody can write", got)
	}
}
