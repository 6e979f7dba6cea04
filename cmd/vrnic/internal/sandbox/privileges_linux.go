package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// A User is whom a daemon of root becomes.
type User struct {
	Name     string
	UID, GID int
	Groups   []int // the others
}

// LookupUser finds a user by name or number.
func LookupUser(name string) (*User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if _, nerr := strconv.ParseUint(name, 10, 31); nerr == nil {
			u, err = user.LookupId(name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user %q: there is no such user", name)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("user %q: groups: %w", name, err)
	}
	found := &User{Name: u.Username}
	number := func(s string) (n int) {
		if err == nil {
			n, err = strconv.Atoi(s)
		}
		return n
	}
	found.UID, found.GID = number(u.Uid), number(u.Gid)
	for _, id := range ids {
		if g := number(id); g != found.GID {
			found.Groups = append(found.Groups, g)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user %q: %w", name, err)
	}
	return found, nil
}

// capabilities are those that a daemon needs to the end, as far as it has them.
func (c *Config) capabilities() (keep []cap.Value) {
	if c.TAPs {
		keep = append(keep, cap.NET_ADMIN)
	}
	if c.Connects && c.User == nil && os.Geteuid() == 0 {
		keep = append(keep, cap.DAC_OVERRIDE) // root reaches sockets of other users
	}
	return keep
}

// dropPrivileges makes the process run as u, if there is one, with the capabilities keep and no
// others, in any of its threads. kept names those of keep that it had.
func dropPrivileges(u *User, keep []cap.Value) (kept []string, err error) {
	had, err := cap.GetPID(0)
	if err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	if e := os.Geteuid(); u != nil && u.UID == e && e != 0 {
		u = nil // it is that user
	}
	more, err := had.Cf(cap.NewSet())
	if err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	if more == 0 && u == nil {
		return nil, nil
	}
	now := cap.NewSet()
	for _, v := range keep {
		if has, err := had.GetFlag(cap.Permitted, v); err != nil || !has {
			continue // a TAP that somebody else made needs none
		}
		if err := errors.Join(now.SetFlag(cap.Permitted, true, v),
			now.SetFlag(cap.Effective, true, v)); err != nil {
			return nil, fmt.Errorf("capabilities: %w", err)
		}
		kept = append(kept, strings.TrimPrefix(v.String(), "cap_"))
	}
	// The bounding set takes a capability of its own, which a container may not have; without it
	// no_new_privs has to do.
	if may, _ := had.GetFlag(cap.Effective, cap.SETPCAP); may {
		for v := cap.Value(0); v < cap.MaxBits(); v++ {
			if there, err := cap.GetBound(v); err == nil && !there {
				continue // to drop it takes a signal to each thread
			}
			if err := cap.DropBound(v); err != nil {
				return nil, fmt.Errorf("bounding set: %w", err)
			}
		}
	}
	if err := cap.ResetAmbient(); err != nil {
		return nil, fmt.Errorf("ambient capabilities: %w", err)
	}
	if u != nil {
		if err := errors.Join(cap.SetGroups(u.GID, u.Groups...), cap.SetUID(u.UID)); err != nil {
			return nil, fmt.Errorf("become user %s: %w", u.Name, err)
		}
	}
	if err := now.SetProc(); err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	return kept, nil
}
