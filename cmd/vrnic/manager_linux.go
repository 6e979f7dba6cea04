package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
)

// A manager is the service manager that started the daemon (sd_notify(3)), or nobody.
type manager struct{ conn *net.UnixConn }

// dialManager finds the service manager, if there is one. A daemon that has given up its privileges
// can make no connections.
func dialManager() (m manager, err error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return m, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return m, fmt.Errorf("NOTIFY_SOCKET %q is neither a path nor an abstract name", path)
	}
	m.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	return m, err
}

// reload has d read its file again. Nobody waits for the answer: the log has it, and the manager.
func (m manager) reload(ctx context.Context, d *daemon.Daemon, log *slog.Logger) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	_ = m.tell(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
	status := "the file was read again"
	if err := d.Reload(ctx, false); err != nil {
		log.Error("the daemon stays as it was", "err", err)
		status = "the file was not taken: " + oneLine(err.Error())
	}
	_ = m.tell("READY=1\nSTATUS=" + status)
}

// tell says how the daemon is doing.
func (m manager) tell(state string) error {
	if m.conn == nil {
		return nil
	}
	_, err := m.conn.Write([]byte(state))
	return err
}

// inheritedFD is the first descriptor that a service manager hands over (sd_listen_fds(3)).
const inheritedFD = 3

// inherited is the path of the socket that the service manager has made for this process; "": none.
func inherited() (path string, err error) {
	pid, n := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(v) // not for children; a name like this is no error
	}
	if pid != strconv.Itoa(os.Getpid()) || n == "" {
		return "", nil
	}
	if n != "1" {
		return "", fmt.Errorf("the service manager hands over %s sockets; a daemon has one", n)
	}
	unix.CloseOnExec(inheritedFD)
	name, err := unix.Getsockname(inheritedFD)
	at, ok := name.(*unix.SockaddrUnix)
	if err != nil || !ok || at.Name == "" {
		return "", errors.Join(
			errors.New("what the service manager hands over is no Unix socket with a path"), err)
	}
	return at.Name, nil
}
