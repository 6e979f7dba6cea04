package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Config says what a daemon does after its set-up.
type Config struct {
	User     *User    // to become; nil: stay
	TAPs     bool     // has ports that are TAPs, and makes their devices anew when those have gone
	Sockets  []string // paths of sockets, which it removes in the end
	Connects bool     // connects to Unix sockets whenever a peer has gone
	Internet bool     // connects and listens over the Internet protocols of the host
	Reads    bool     // reads files of /proc about itself, for a profile
	File     string   // a path that it reads again and again; "": none
	// Files takes the file system also from a daemon that is not root's. It costs such a daemon the
	// short way to memory of C programs: the kernel lets nobody whom Landlock confines name another
	// process.
	Files bool
	// Trap ends the daemon with a stack trace at a system call that is not allowed, for tests. Else
	// such a call is an error (EPERM), of which the kernel's audit log tells: a daemon serves many,
	// and a library that tries something new is to cost none of them its connections.
	Trap bool
}

// A Report is what Enter has done.
type Report struct {
	User         string   // whom the daemon runs as now
	Capabilities []string // those it has kept
	Landlock     int      // version of the kernel's ABI; 0: not in use
	Seccomp      bool
	Missing      []string // what this kernel or container does not have, with the reason
	Stay         []string // sockets that it cannot remove in the end
}

// String is one line for an operator.
func (r *Report) String() string {
	landlock := "no"
	if r.Landlock > 0 {
		landlock = fmt.Sprintf("v%d", r.Landlock)
	}
	seccomp := "no"
	if r.Seccomp {
		seccomp = "yes"
	}
	caps := "none"
	if len(r.Capabilities) > 0 {
		caps = strings.Join(r.Capabilities, ",")
	}
	return fmt.Sprintf("user=%s capabilities=%s landlock=%s seccomp=%s", r.User, caps, landlock,
		seccomp)
}

// Enter takes away what c does not name. When it fails the process has lost a part of it, and must
// end.
func Enter(c Config) (*Report, error) {
	// What is read from files once, at the first use, is read now.
	_ = time.Local.String()
	root := os.Geteuid() == 0
	kept, err := dropPrivileges(c.User, c.capabilities())
	if err != nil {
		return nil, err
	}
	r := &Report{User: whoAmI(c.User), Capabilities: kept}
	for _, path := range c.Sockets {
		dir := filepath.Dir(path)
		if unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
			r.Stay = append(r.Stay, path)
		}
	}
	files := root || c.Files
	if files {
		if r.Landlock, err = restrictFiles(c); err != nil {
			return nil, err
		}
		if r.Landlock == 0 {
			r.Missing = append(r.Missing, "Landlock: this kernel has none, or it is switched off")
		}
	}
	if missing, err := restrictCalls(c, !files); err != nil {
		return nil, err
	} else if missing != "" {
		r.Missing = append(r.Missing, "seccomp: "+missing)
	} else {
		r.Seccomp = true
	}
	return r, nil
}

// whoAmI names the daemon's user.
func whoAmI(u *User) string {
	if u != nil {
		return u.Name
	}
	return fmt.Sprint(os.Geteuid())
}
