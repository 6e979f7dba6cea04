package sysfs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Interval is how old what a program reads may be.
const Interval = time.Second

// The octets of the lock file, whose locks belong to open descriptions: programs inherit theirs.
const (
	lockGate   = iota // somebody comes, or the keeper goes
	lockUsers         // shared by all programs
	lockKeeper        // the keeper lives
)

// lock takes an octet, or says that somebody else has it: unix.EAGAIN, unless it is to wait.
func lock(f *os.File, octet int64, how int16, wait bool) error {
	cmd := unix.F_OFD_SETLK
	if wait {
		cmd = unix.F_OFD_SETLKW
	}
	for {
		err := unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: how, Whence: io.SeekStart,
			Start: octet, Len: 1})
		if err != unix.EINTR {
			return err
		}
	}
}

// A Use is a program's hold of a directory: it ends when File has been closed everywhere.
type Use struct {
	Dir  string
	File *os.File
}

// name is of the directory for a daemon and a device: one for each network namespace, whose
// interfaces are in it.
func name(socket, device string) string {
	netns, _ := os.Readlink("/proc/self/ns/net")
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", socket, device, netns))
	return fmt.Sprintf("sys-%x", sum[:6])
}

// Hold gives a program the directory for a daemon and a device, below own, a directory of this
// user's. If nobody keeps it yet it is made, as ask says, and start is called to start a keeper,
// which gets the lock.
func Hold(own, socket, device string, ask func() (Tree, error),
	start func(dir string, lock *os.File) error) (*Use, error) {
	dir := filepath.Join(own, name(socket, device))
	gate, err := enter(dir + ".lock")
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	users, err := openLock(dir + ".lock")
	if err != nil {
		return nil, err
	}
	err = lock(users, lockUsers, unix.F_RDLCK, false)
	if err == nil {
		err = keepOrStart(dir, ask, start)
	}
	if err != nil {
		users.Close()
		return nil, err
	}
	return &Use{dir, users}, nil
}

// keepOrStart is called with the gate held.
func keepOrStart(dir string, ask func() (Tree, error),
	start func(dir string, lock *os.File) error) error {
	keeper, err := openLock(dir + ".lock")
	if err != nil {
		return err
	}
	defer keeper.Close()
	err = lock(keeper, lockKeeper, unix.F_WRLCK, false)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil // there is one
	}
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	sweep(dir)
	tree, err := ask()
	if err != nil {
		return err
	}
	if err := tree.addKernel("/"); err != nil {
		return err
	}
	if err := (&disk{dir: dir}).sync(tree); err != nil {
		return err
	}
	return start(dir, keeper)
}

// sweep removes what nobody uses and nobody keeps beside dir: what keepers that were killed have
// left.
func sweep(dir string) {
	locks, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "sys-*.lock"))
	if err != nil {
		return
	}
	for _, file := range locks {
		f, err := openLock(file)
		if err != nil {
			continue
		}
		if file != dir+".lock" && lock(f, lockGate, unix.F_WRLCK, false) == nil &&
			lock(f, lockUsers, unix.F_WRLCK, false) == nil &&
			lock(f, lockKeeper, unix.F_WRLCK, false) == nil && same(f, file) {
			_ = os.RemoveAll(strings.TrimSuffix(file, ".lock"))
			_ = os.Remove(file)
		}
		f.Close()
	}
}

func openLock(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// enter holds the gate of a lock file, which is not one that a keeper has just removed.
func enter(file string) (*os.File, error) {
	for {
		f, err := openLock(file)
		if err != nil {
			return nil, err
		}
		if err := lock(f, lockGate, unix.F_WRLCK, true); err != nil {
			f.Close()
			return nil, err
		}
		if same(f, file) {
			return f, nil
		}
		f.Close()
	}
}

// same says whether an open file is the one of a name.
func same(f *os.File, name string) bool {
	a, aerr := f.Stat()
	b, berr := os.Lstat(name)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}
