package sysfs

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A disk is a Tree in a directory that is only written here.
type disk struct {
	dir  string
	have Tree // as last written; nil: not known
}

// A Writer makes a directory hold a Tree, and another one in its place.
type Writer struct{ disk disk }

// NewWriter makes dir, unless it is there.
func NewWriter(dir string) (*Writer, error) {
	return &Writer{disk{dir: dir}}, os.MkdirAll(dir, 0o755)
}

// Write makes the directory hold t and nothing else; only what has changed is written. nodes says
// whether the device files are such: only root can make them.
func (w *Writer) Write(t Tree) (nodes bool, err error) {
	if err := w.disk.sync(t); err != nil {
		return false, err
	}
	st, err := os.Lstat(w.disk.path(path.Join(devDir, "rdma_cm")))
	return err == nil && st.Mode()&fs.ModeCharDevice != 0, err
}

// unknown ends the text of a file of another's, which is written anew.
const unknown = "\x00"

// readDir finds out what is in the directory: a keeper before this one may have ended early, and
// programs still look at what it has left.
func (d *disk) readDir() error {
	d.have = make(Tree)
	return filepath.WalkDir(d.dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || file == d.dir {
			return err
		}
		name, err := filepath.Rel(d.dir, file)
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			d.have[name] = Node{}
			return nil
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(file)
			d.have[name] = Node{Link: to}
			return err
		}
		d.have[name] = Node{Text: unknown}
		return nil
	})
}

// sync makes the directory hold t and nothing else. Each file has the old content or the new one,
// whenever it is looked at.
func (d *disk) sync(t Tree) error {
	if d.have == nil {
		if err := d.readDir(); err != nil {
			return err
		}
	}
	dirs := t.dirs()
	keep := make(map[string]bool)
	for _, name := range dirs {
		keep[name] = true
	}
	var gone []string
	for name, node := range d.have {
		isDir, file := node == (Node{}), t[name] != (Node{})
		if isDir && !keep[name] || !isDir && !file {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range slices.Backward(gone) { // what is in a directory before it
		if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range dirs {
		if node, there := d.have[name]; there && node == (Node{}) {
			continue
		}
		if err := unix.Mkdir(d.path(name), 0o755); err != nil && err != unix.EEXIST {
			return &fs.PathError{Op: "mkdir", Path: d.path(name), Err: err}
		}
		if err := os.Chmod(d.path(name), 0o755); err != nil { // whatever the umask
			return err
		}
	}
	for name, node := range t {
		if node == (Node{}) || d.have[name] == node {
			continue
		}
		if err := d.put(name, node); err != nil {
			return err
		}
	}
	d.have = maps.Clone(t)
	for _, name := range dirs {
		d.have[name] = Node{}
	}
	return nil
}

func (d *disk) path(name string) string { return filepath.Join(d.dir, name) }

// put makes one file, which takes the place of another at once.
func (d *disk) put(name string, node Node) error {
	file := d.path(".new")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode := fs.FileMode(0o444)
	var err error
	switch {
	case node.Link != "":
		err = os.Symlink(node.Link, file)
	case node.Dev != [2]uint32{}:
		mode = 0o666
		// Who may not make one has a file in its place, for which verbs/preload stands in.
		if unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(node.Dev[0], node.Dev[1]))) != nil {
			err = os.WriteFile(file, nil, mode)
		}
	default:
		err = os.WriteFile(file, []byte(node.Text), mode)
	}
	if err == nil && node.Link == "" {
		err = os.Chmod(file, mode)
	}
	if err == nil {
		err = os.Rename(file, d.path(name))
	}
	return err
}
