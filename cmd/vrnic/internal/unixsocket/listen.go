// Package unixsocket has listeners at paths, for their owner only.
package unixsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
)

// A Listener removes its socket when it is closed.
type Listener struct {
	net.Listener
	path string
	own  os.FileInfo
	once sync.Once
	err  error // of Close
}

// Listen makes a socket at path, in place of one on which nobody listens any more. It has its mode
// before it has a name.
func Listen(path string) (*Listener, error) {
	c := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		return errors.Join(rc.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := c.Listen(context.Background(), "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err = removeStale(path); err == nil {
			l, err = c.Listen(context.Background(), "unix", path)
		}
	}
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	own, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Listener{Listener: l, path: path, own: own}, nil
}

func removeStale(path string) error {
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Type() != os.ModeSocket {
		return errors.Join(errors.New("there is something that is no socket"), err)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		return errors.Join(errors.New("somebody listens there"), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Close removes the socket, too, unless it is somebody else's by now. A second call does nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.err = l.Listener.Close()
		if fi, err := os.Lstat(l.path); err == nil && os.SameFile(fi, l.own) {
			l.err = errors.Join(l.err, os.Remove(l.path))
		}
	})
	return l.err
}
