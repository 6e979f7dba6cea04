// Package guest has the sockets of a daemon that are for containers: below one directory a folder
// for each device that the daemon begins with, one for all, and one for those of the caller's
// network, each with a socket. A container gets the folder, not the socket, since a daemon that
// starts anew makes another socket; so folders stay.
package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vrnic/vrnic/shm/server"
)

// Names of sockets that are of no one device: All is of all, Net of those whose address the kernel
// of the caller's network namespace has, too.
const (
	All = "all"
	Net = "net"
)

// socket is its name in the folder, which is all that a container sees.
const socket = "vrnic.sock"

// Dir is the folder of the socket for a name, a device's or All.
func Dir(containers, name string) string { return filepath.Join(containers, name) }

// Socket is the socket for a name.
func Socket(containers, name string) string { return filepath.Join(Dir(containers, name), socket) }

// Lock is the file that says who has the socket. No container sees it: who can open a file can lock
// it, too.
func Lock(containers, name string) string { return Dir(containers, name) + ".lock" }

// Make makes the folders. Who may enter containers may use the sockets: nobody but the daemon's
// user, if it was not there before. within is that of Net's server.Guest.
func Make(containers string, names []string, within func(netns uint64) string) (
	guests []server.Guest, err error) {
	if containers == "" {
		return nil, nil
	}
	if err := makeDir(containers, 0o700); err != nil {
		return nil, err
	}
	st, err := os.Lstat(containers)
	if err != nil {
		return nil, fmt.Errorf("sockets for containers: %w", err)
	}
	if st.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("sockets for containers: others can write %s, and have containers mount "+
			"what they put there: choose a directory that only its owner can write", containers)
	}
	for _, name := range names {
		if err := makeDir(Dir(containers, name), 0o755); err != nil {
			return nil, err
		}
		g := server.Guest{Name: name, Path: Socket(containers, name), Lock: Lock(containers, name)}
		if name == Net {
			g.Within = within
		}
		guests = append(guests, g)
	}
	return guests, nil
}

// makeDir makes a directory with that mode, whatever the umask, or is content with one that is
// there.
func makeDir(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	if err == nil {
		return os.Chmod(dir, mode)
	}
	st, serr := os.Lstat(dir)
	switch {
	case !errors.Is(err, fs.ErrExist) || serr != nil:
		return fmt.Errorf("sockets for containers: %w", err)
	case !st.IsDir():
		return fmt.Errorf("sockets for containers: %s is no directory", dir)
	}
	return nil
}
