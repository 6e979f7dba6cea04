package server

import (
	"bytes"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// What the machine has, or this process may have of it: limits are derived from that.

// numberIn reads the first number of a file, behind prefix on its line; ok is false if there is
// none.
func numberIn(file, prefix string) (n int64, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(b) {
		if rest, found := strings.CutPrefix(string(line), prefix); found {
			f := strings.Fields(rest)
			if len(f) == 0 {
				return 0, false
			}
			n, err := strconv.ParseInt(f[0], 10, 64)
			return n, err == nil && n > 0
		}
	}
	return 0, false
}

// inControlGroup is the least number in a file of this process's control group (version 2) and
// those above it.
func inControlGroup(file string) (least int64, ok bool) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		group, found := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !found {
			continue
		}
		for dir := path.Join("/", group); ; dir = path.Dir(dir) {
			if n, has := numberIn(path.Join("/sys/fs/cgroup", dir, file), ""); has && (!ok || n < least) {
				least, ok = n, true
			}
			if dir == "/" {
				return least, ok
			}
		}
	}
	return 0, false
}

// memory is how many octets of memory there are for this process; 1 GiB if nobody says.
func memory() int64 {
	n := int64(1 << 30)
	if kib, ok := numberIn("/proc/meminfo", "MemTotal:"); ok && kib < math.MaxInt64>>10 {
		n = kib << 10
	}
	if most, ok := inControlGroup("memory.max"); ok {
		n = min(n, most)
	}
	return n
}

// descriptors is how many file descriptors this process may have.
func descriptors() int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 128
	}
	return int64(min(l.Cur, 1<<30))
}

// threads is how many threads this process may have; 10,000 are what Go's runtime allows.
func threads() int64 {
	n := int64(10000)
	if most, ok := numberIn("/proc/sys/kernel/threads-max", ""); ok {
		n = min(n, most)
	}
	if most, ok := inControlGroup("pids.max"); ok {
		n = min(n, most)
	}
	const nproc = 6 // RLIMIT_NPROC, of which package syscall does not know; root is not held to it
	var l syscall.Rlimit
	if os.Geteuid() != 0 && syscall.Getrlimit(nproc, &l) == nil {
		n = int64(min(uint64(n), l.Cur))
	}
	return n
}
