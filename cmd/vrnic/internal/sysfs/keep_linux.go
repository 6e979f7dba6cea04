package sysfs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A Daemon is a Source that one is connected to.
type Daemon interface {
	Source
	io.Closer
}

// A Keeper keeps a directory up to date.
type Keeper struct {
	Dir    string
	Device string
	Lock   *os.File // that start of Hold was given
	Dial   func() (Daemon, error)

	Tick <-chan time.Time

	disk disk
	src  Daemon
	gate *os.File
	at   os.FileInfo // Dir, as it was in the beginning
}

// Run returns when no program uses the directory any more, and has removed it then, or when
// somebody else has.
func (k *Keeper) Run() error {
	k.disk.dir = k.Dir
	var err error
	if k.at, err = os.Stat(k.Dir); err != nil {
		return err
	}
	if k.gate, err = openLock(k.Dir + ".lock"); err != nil {
		return err
	}
	defer k.gate.Close()
	for range k.Tick {
		if now, err := os.Stat(k.Dir); err != nil || !os.SameFile(now, k.at) {
			return nil //nolint:nilerr // it is gone: nothing is left to do
		}
		if k.unused() {
			return k.remove()
		}
		if err := k.refresh(); err != nil {
			return err
		}
	}
	return nil
}

// refresh writes what has changed. Without a daemon there are no devices; the next one's come when
// it is there.
func (k *Keeper) refresh() error {
	tree := newTree(nil)
	if k.src == nil {
		if src, err := k.Dial(); err == nil {
			k.src = src
		}
	}
	if k.src != nil {
		if t, err := Ask(k.src, k.Device, HostInterfaces()); err == nil {
			tree = t
		} else {
			k.src.Close()
			k.src = nil
		}
	}
	if err := tree.addKernel("/"); err != nil {
		return err
	}
	return k.disk.sync(tree)
}

// unused says whether no program holds the directory, and none is about to: the gate is closed
// then. One that has closed what it inherited may have it mounted.
func (k *Keeper) unused() bool {
	if lock(k.gate, lockGate, unix.F_WRLCK, false) != nil {
		return false
	}
	if lock(k.gate, lockUsers, unix.F_WRLCK, false) == nil {
		if !mounted(k.Dir) {
			return true
		}
		_ = lock(k.gate, lockUsers, unix.F_UNLCK, false)
	}
	_ = lock(k.gate, lockGate, unix.F_UNLCK, false)
	return false
}

// remove is called with the gate closed: whoever waits there finds another file, or none.
func (k *Keeper) remove() error {
	err := os.RemoveAll(k.Dir)
	if rerr := os.Remove(k.Dir + ".lock"); err == nil {
		err = rerr
	}
	return err
}

// mounted says whether a mount namespace of a process, but for this one's own, has something of dir
// mounted. To remove that would take away all that is mounted on it, the kernel's classes.
func mounted(dir string) bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	seen := map[string]bool{own: true}
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is none that fails
	for _, p := range processes {
		// A process that has ended, or is not this user's, has none.
		ns, err := os.Readlink(filepath.Join(p, "ns/mnt"))
		if err != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		mounts, err := os.ReadFile(filepath.Join(p, "mountinfo"))
		if err == nil && bytes.Contains(mounts, []byte("/"+filepath.Base(dir)+"/")) {
			return true
		}
	}
	return false
}
