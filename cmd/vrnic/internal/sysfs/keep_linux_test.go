package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func there(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// A directory holds the last tree and nothing else, also one that somebody else has left.
func TestDisk(t *testing.T) {
	d := &disk{dir: t.TempDir()}
	first := Tree{"a/file": {Text: "1\n"}, "a/link": {Link: "file"}, "a/x": {Text: "x"}, "e/empty": {},
		"gone/deep/file": {Text: "2\n"}}
	second := Tree{"a/file": {Text: "10\n"}, "a/link": {Link: "x/y"}, "a/x/y": {Text: "z"},
		"e/empty": {}}
	for _, d := range []*disk{d, d, {dir: d.dir}} { // the last one knows nothing of those before
		if err := d.sync(first); err != nil {
			t.Fatal(err)
		}
		if read(t, d.dir, "a/file") != "1\n" || read(t, d.dir, "a/link") != "1\n" ||
			read(t, d.dir, "gone/deep/file") != "2\n" || !there(d.dir, "e/empty") {
			t.Error("not what the first tree has")
		}
		if err := d.sync(second); err != nil {
			t.Fatal(err)
		}
		if read(t, d.dir, "a/file") != "10\n" || read(t, d.dir, "a/link") != "z" ||
			there(d.dir, "gone") || there(d.dir, ".new") {
			t.Error("not what the second tree has")
		}
	}
	info, err := os.Stat(filepath.Join(d.dir, "a/file"))
	if err != nil || info.Mode() != 0o444 {
		t.Errorf("a file is %v, %v", info.Mode(), err)
	}
}

// RSYS-007, RSYS-008: one keeper for all programs, which shows what changes, a daemon that goes and
// one that comes, and removes all behind the last program.
func TestKeeper(t *testing.T) {
	own, daemon := t.TempDir(), twoKinds()
	ask := func() (Tree, error) { return Ask(daemon, "", nil) }
	tick, ended := make(chan time.Time), make(chan error, 1)
	gone := errors.New("nobody is there")
	k := &Keeper{Tick: tick, Dial: func() (Daemon, error) {
		_, err := daemon.Stat()
		return daemon, err
	}}
	started := 0
	start := func(dir string, lock *os.File) error {
		started++
		k.Dir = dir
		fd, err := os.OpenFile(lock.Name(), os.O_RDWR, 0) // as a process of its own would have it
		k.Lock = fd
		return err
	}
	hold := func() *Use {
		t.Helper()
		use, err := Hold(own, "/s", "", ask, start)
		if err != nil {
			t.Fatal(err)
		}
		return use
	}
	first := hold()
	if err := lock(k.Lock, lockKeeper, 1, false); err != nil { // F_WRLCK
		t.Fatal(err)
	}
	second := hold()
	if started != 1 || first.Dir != second.Dir || first.Dir != k.Dir {
		t.Fatalf("%d keepers, for %s and %s", started, first.Dir, second.Dir)
	}
	go func() { ended <- k.Run() }()
	// Behind a second tick the first one's work is done.
	const state = "sys/class/infiniband/roce0/ports/1/state"
	see := func() {
		t.Helper()
		for range 2 {
			select {
			case tick <- time.Time{}:
			case err := <-ended:
				t.Fatal("the keeper has ended: ", err)
			}
		}
	}
	see()
	if got := read(t, k.Dir, state); got != "4: ACTIVE\n" {
		t.Errorf("the state is %q", got)
	}
	if !there(k.Dir, "sys/class/net/lo") || !there(k.Dir, "sys/class/tty") {
		t.Error("what the kernel has is not there")
	}

	daemon.set(func() { daemon.err = gone })
	see()
	if there(k.Dir, "sys/class/infiniband/roce0") || !there(k.Dir, "sys/class/infiniband") {
		t.Error("a daemon that is gone has devices")
	}
	daemon.set(func() {
		daemon.err = nil
		daemon.rows["dev"][0] = `{"dev":"roce0","transport":"roce","state":"DOWN","gids":3}`
	})
	see()
	if got := read(t, k.Dir, state); got != "1: DOWN\n" {
		t.Errorf("the state is %q", got)
	}

	first.File.Close()
	see()
	if !there(k.Dir, state) {
		t.Error("the second program sees nothing any more")
	}
	second.File.Close()
	var err error
	select {
	case tick <- time.Time{}:
		err = <-ended
	case err = <-ended: // at the tick before
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(own); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	k.Lock.Close()

	// The next one begins anew, and so does one behind a keeper that was killed, whose directory
	// another program's keeper removes.
	third := hold()
	if started != 2 {
		t.Errorf("%d keepers", started)
	}
	third.File.Close()
	if _, err := Hold(own, "/other", "", ask, start); err != nil {
		t.Fatal(err)
	}
	if there(third.Dir, ".") {
		t.Error("what a keeper has left is still there")
	}
}

// A keeper whose directory has been removed ends and makes nothing.
func TestKeeperWithout(t *testing.T) {
	own := t.TempDir()
	tick := make(chan time.Time)
	k := &Keeper{Tick: tick, Dial: func() (Daemon, error) { return twoKinds(), nil }}
	use, err := Hold(own, "/s", "", func() (Tree, error) { return Tree{}, nil },
		func(dir string, _ *os.File) error { k.Dir = dir; return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer use.File.Close()
	ended := make(chan error, 1)
	go func() { ended <- k.Run() }()
	tick <- time.Time{}
	tick <- time.Time{} // it has begun then
	if err := os.RemoveAll(k.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for done := false; !done; {
		select {
		case tick <- time.Time{}:
		case <-ended: // with an error, if it was writing
			done = true
		}
	}
	if there(k.Dir, ".") {
		t.Error("it is there again")
	}
}

// A directory that a program has mounted is in use, though the program has closed its lock.
func TestMounted(t *testing.T) {
	if err := needtest.Missing("unshare", "mount"); err != nil || os.Geteuid() != 0 {
		needtest.Lacking(t, "root", "it takes root to mount, and util-linux")
	}
	dir := filepath.Join(t.TempDir(), "sys-test")
	if err := os.MkdirAll(filepath.Join(dir, classDir), 0o755); err != nil {
		t.Fatal(err)
	}
	gate, err := openLock(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	k := &Keeper{Dir: dir, gate: gate}
	p := exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$0" "$1" && echo mounted && read x`,
		filepath.Join(dir, classDir), t.TempDir())
	stdin, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal("it mounts nothing: ", err)
	}
	if k.unused() {
		t.Error("what is mounted is unused")
	}
	user, err := openLock(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock(user, lockUsers, unix.F_RDLCK, false); err != nil {
		t.Error("nobody else can use it: ", err)
	}
	user.Close()
	stdin.Close()
	_ = p.Wait() // read fails at the end of its input
	if !k.unused() {
		t.Error("it is in use when the program has ended")
	}
}
