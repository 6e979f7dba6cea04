// Package proctest is for tests of what processes hold and share: helper processes, and what is
// left of descriptors, mappings and goroutines when tests are done.
package proctest

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// regions counts mappings as their package does: see Main.
var regions = func() int64 { return 0 }

// Main runs the tests of a package, and fails on descriptors, mappings and goroutines that are left
// when all are done. helper is what the test binary does as a process of StartHelper; LiveRegions
// counts mappings. Either may be nil.
func Main(m *testing.M, liveRegions func() int64, helper func(what string)) {
	if what := os.Getenv("VRNIC_SHM_HELPER"); what != "" {
		helper(what)
		return
	}
	if liveRegions != nil {
		regions = liveRegions
	}
	before := TakeUsage()
	code := m.Run()
	if code == 0 && !fuzzing() {
		if diff := before.Settle(); diff != "" {
			fmt.Fprintln(os.Stderr, "left behind by the tests:", diff)
			code = 1
		}
	}
	os.Exit(code)
}

// fuzzing: the fuzzing engine keeps goroutines and pipes of its own.
func fuzzing() bool {
	return flag.Lookup("test.fuzz").Value.String() != "" ||
		flag.Lookup("test.fuzzworker").Value.String() == "true"
}

// Usage is what a leak would raise.
type Usage struct {
	fds        map[string]int // by what they are
	maps       int            // mappings of memfds
	regions    int64
	goroutines int
}

// TakeUsage counts what this process has.
func TakeUsage() Usage {
	u := Usage{fds: map[string]int{}, regions: regions(), goroutines: runtime.NumGoroutine()}
	es, _ := os.ReadDir("/proc/self/fd")
	for _, e := range es {
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(l,
			"/proc/") {
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

// Settle waits until usage is back at what it was; a description of what is left if that takes
// long.
func (u Usage) Settle() (diff string) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		diff = u.compare(TakeUsage())
		if diff == "" || time.Now().After(end) {
			return diff
		}
	}
}

func (u Usage) compare(now Usage) string {
	var d []string
	for what, n := range now.fds {
		// The poller's own are made once, on first use.
		if n > u.fds[what] && what != "anon_inode:[eventpoll]" && !(what == "anon_inode:[eventfd]" &&
			n == 1) {
			d = append(d, fmt.Sprintf("%d x %s", n-u.fds[what], what))
		}
	}
	if now.maps > u.maps || now.regions > u.regions {
		d = append(d, fmt.Sprintf("%d mappings, %d regions", now.maps-u.maps, now.regions-u.regions))
	}
	if now.goroutines > u.goroutines {
		b := make([]byte, 1<<16)
		d = append(d, fmt.Sprintf("%d goroutines:\n%s", now.goroutines-u.goroutines,
			b[:runtime.Stack(b, true)]))
	}
	return strings.Join(d, "; ")
}

// NoLeaks fails the test if it leaves something behind. Call it first: its cleanup runs last.
func NoLeaks(t testing.TB) {
	t.Helper()
	if fuzzing() {
		return
	}
	before := TakeUsage()
	t.Cleanup(func() {
		if diff := before.Settle(); diff != "" {
			t.Errorf("left behind: %s", diff)
		}
	})
}

// StartHelper runs what as a helper, in a process of its own, and returns when it says that it is
// ready.
func StartHelper(t testing.TB, what string, change ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "VRNIC_SHM_HELPER="+what)
	cmd.Stderr = os.Stderr
	for _, f := range change {
		f(cmd)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("helper said %q, %v", line, err)
	}
	return cmd
}

// Exit fails a helper process where a test has its testing.TB.
type Exit struct{}

func (Exit) Helper() {}
func (Exit) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "helper: "+format+"\n", args...)
	os.Exit(1)
}
func (f Exit) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

// Want waits until ok.
func Want(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
