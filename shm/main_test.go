package shm

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails on descriptors, mappings and goroutines that are left when all tests are done.
func TestMain(m *testing.M) {
	if what := os.Getenv("VRNIC_SHM_HELPER"); what != "" {
		helperProcess(what)
		return
	}
	before := takeUsage()
	code := m.Run()
	if code == 0 && !fuzzing() {
		if diff := before.settle(); diff != "" {
			fmt.Fprintln(os.Stderr, "left behind by the tests:", diff)
			code = 1
		}
	}
	os.Exit(code)
}

// fuzzing: the fuzzing engine keeps goroutines and pipes of its own.
func fuzzing() bool {
	return flag.Lookup("test.fuzz").Value.String() != "" || flag.Lookup("test.fuzzworker").Value.String() == "true"
}

// usage is what a leak would raise.
type usage struct {
	fds        map[string]int // by what they are
	maps       int            // mappings of memfds
	regions    int64
	goroutines int
}

func takeUsage() usage {
	u := usage{fds: map[string]int{}, regions: liveRegions.Load(), goroutines: runtime.NumGoroutine()}
	es, _ := os.ReadDir("/proc/self/fd")
	for _, e := range es {
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(l, "/proc/") {
			if i := strings.IndexByte(l, '['); i >= 0 { // socket:[123], pipe:[123]; not anon_inode:[eventfd]
				if !strings.HasPrefix(l, "anon_inode") {
					l = l[:i]
				}
			}
			u.fds[l]++
		}
	}
	b, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "memfd:") {
			u.maps++
		}
	}
	return u
}

// settle waits until usage is back at what it was; a description of what is left if that takes long.
func (u usage) settle() (diff string) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		diff = u.compare(takeUsage())
		if diff == "" || time.Now().After(end) {
			return diff
		}
	}
}

func (u usage) compare(now usage) string {
	var d []string
	for what, n := range now.fds {
		// The poller's own are made once, on first use.
		if n > u.fds[what] && what != "anon_inode:[eventpoll]" && !(what == "anon_inode:[eventfd]" && n == 1) {
			d = append(d, fmt.Sprintf("%d x %s", n-u.fds[what], what))
		}
	}
	if now.maps > u.maps || now.regions > u.regions {
		d = append(d, fmt.Sprintf("%d mappings, %d regions", now.maps-u.maps, now.regions-u.regions))
	}
	if now.goroutines > u.goroutines {
		b := make([]byte, 1<<16)
		d = append(d, fmt.Sprintf("%d goroutines:\n%s", now.goroutines-u.goroutines, b[:runtime.Stack(b, true)]))
	}
	return strings.Join(d, "; ")
}

// noLeaks fails the test if it leaves something behind. Call it first: its cleanup runs last.
func noLeaks(t testing.TB) {
	t.Helper()
	if fuzzing() {
		return
	}
	before := takeUsage()
	t.Cleanup(func() {
		if diff := before.settle(); diff != "" {
			t.Errorf("left behind: %s", diff)
		}
	})
}
