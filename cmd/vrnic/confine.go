package main

import (
	"errors"
	"log/slog"
	"os"
	"slices"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/config"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/metrics"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/sandbox"
)

// Values of --sandbox.
const (
	sandboxOn   = "on"
	sandboxFull = "full"
	sandboxOff  = "off"
)

// trapVariable in the environment ends a daemon with a stack trace at a system call that it is not
// allowed. Tests set it.
const trapVariable = "VRNIC_SANDBOX_TRAP"

// A confinement is what a daemon gives up when it has made all that it is made of.
type confinement struct {
	off bool
	// containers is the directory of sockets for containers, dirs are the folders in it.
	containers string
	dirs       []string
	sandbox.Config
}

// sandboxConfig is what the daemon of u gives up, which reads file again if that is not "". Its
// errors are wrong usage.
func sandboxConfig(u *config.Up, file string) (*confinement, error) {
	cfg := &u.Daemon
	f := &confinement{Config: sandbox.Config{
		Reads: u.CPUProfile != "", File: file, Trap: os.Getenv(trapVariable) != ""}}
	if cfg.SocketFD == 0 {
		f.Sockets = []string{cfg.Socket}
	}
	if metrics.IsPath(u.Metrics) {
		f.Sockets = append(f.Sockets, u.Metrics)
	}
	f.containers = cfg.Containers
	for _, name := range cfg.GuestNames() {
		f.Sockets = append(f.Sockets, guest.Socket(cfg.Containers, name),
			guest.Lock(cfg.Containers, name))
		f.dirs = append(f.dirs, guest.Dir(cfg.Containers, name))
	}
	switch mode := u.Sandbox; mode {
	case sandboxOn:
	case sandboxFull:
		f.Files = true
	case sandboxOff:
		f.off = true
	default:
		return nil, usagef("--sandbox %q is neither on, full nor off", mode)
	}
	if name := u.User; name != "" {
		if f.off {
			return nil, usagef("--user takes a sandbox: leave --sandbox off away")
		}
		user, err := sandbox.LookupUser(name)
		if err != nil {
			return nil, usagef("%v", err)
		}
		if e := os.Geteuid(); e != 0 && e != user.UID {
			return nil, usagef("--user %s: only root can run a daemon as another user", name)
		}
		f.User = user
	}
	for _, d := range cfg.Devices {
		f.Internet = f.Internet || d.Host.IsValid()
	}
	for _, p := range cfg.Ports {
		switch p.Kind {
		case daemon.PortTap:
			f.TAPs = true
			f.Internet = f.Internet || p.Share // its ports are kept by sockets
		case daemon.PortUnixListen:
			f.Sockets = append(f.Sockets, p.Path)
		case daemon.PortUnixConnect:
			f.Connects = true
		}
	}
	return f, nil
}

// enter gives up what d, which is there whole, does not need any more.
func (f *confinement) enter(d *daemon.Daemon, log *slog.Logger) error {
	if f.off {
		return nil
	}
	if f.User != nil {
		// A directory that nobody else enters is the daemon's own.
		if st, err := os.Lstat(f.containers); err == nil && st.Mode().Perm() == 0o700 {
			f.dirs = append(f.dirs, f.containers)
		}
		for _, path := range slices.Concat(f.Sockets, f.dirs) {
			// Nothing that a link in their place would lead to.
			if err := os.Lchown(path, f.User.UID, -1); err != nil {
				return err
			}
		}
	}
	r, err := sandbox.Enter(f.Config)
	if err != nil {
		return errors.Join(errors.New("sandbox (--sandbox off is a way around it)"), err)
	}
	for _, m := range r.Missing {
		log.Warn("sandbox: not all of it is there", "missing", m)
	}
	for _, path := range r.Stay {
		log.Warn("this socket will be left behind: its directory is not "+r.User+"'s", "socket", path)
	}
	log.Info("sandbox", "user", r.User, "capabilities", r.Capabilities, "landlock", r.Landlock,
		"seccomp", r.Seccomp)
	d.Confined(daemon.Confinement{How: r.String(), Internet: f.Internet, Connects: f.Connects})
	return nil
}
