package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// restrictFiles leaves the process the right to remove its sockets, and to read Config.File. It can
// send no signal to other processes, and use no TCP port but with Config.Internet. version is that
// of the kernel's Landlock, 0 if there is none.
//
// Files that are open stay so. Later versions of Landlock would take UDP and Unix sockets away too,
// which a daemon may need; system calls decide on those.
func restrictFiles(c Config) (version int, err error) {
	if version, err = llsys.LandlockGetABIVersion(); err != nil || version <= 0 {
		return 0, nil
	}
	var rules []landlock.Rule
	var dirs []string
	for _, path := range c.Sockets {
		if dir := filepath.Dir(path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) > 0 {
		rules = append(rules, landlock.PathAccess(llsys.AccessFSRemoveFile, dirs...))
	}
	if c.File != "" { // whoever writes it anew makes another file of that name
		rules = append(rules, landlock.PathAccess(llsys.AccessFSReadFile, filepath.Dir(c.File)))
	}
	ruleset := landlock.V8
	if c.Internet {
		ruleset.HandledAccessNet = 0
	}
	if err := ruleset.BestEffort().Restrict(rules...); err != nil {
		return 0, fmt.Errorf("confine by Landlock: %w", err)
	}
	return version, nil
}
