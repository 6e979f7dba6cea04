// Package daemontest starts daemons inside tests and moves data through them.
package daemontest

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// Devices are those of a daemon that Start makes: two on one switch, no port.
var Devices = []string{
	"vrnic0,addr=10.77.0.2/24,addr=fd77::2/64",
	"vrnic1,addr=10.77.0.3/24,addr=fd77::3/64",
}

// A Daemon runs in the test's own process until the test ends.
type Daemon struct {
	*daemon.Daemon
	t testing.TB
}

// Start runs a daemon with Devices on a socket of its own; change alters the configuration. When
// the test ends the daemon is closed, and what it leaves behind is an error: goroutines, file
// descriptors, mappings, the socket.
func Start(t testing.TB, change ...func(*daemon.Config)) *Daemon {
	t.Helper()
	before := Usage()
	dir, err := os.MkdirTemp("", "vrnic") // t.TempDir can be longer than a socket's path
	if err != nil {
		t.Fatal(err)
	}
	cfg := daemon.Config{Socket: filepath.Join(dir, "sock"),
		Log: slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, s := range Devices {
		spec, err := daemon.ParseDevice(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Devices = append(cfg.Devices, spec)
	}
	for _, f := range change {
		f(&cfg)
	}
	d, err := daemon.New(cfg)
	if err != nil {
		os.RemoveAll(dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close the daemon: %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("the daemon left %v in the socket's directory", left)
		}
		os.RemoveAll(dir)
		before.WantBack(t, "after the daemon has been closed")
	})
	return &Daemon{d, t}
}

// Dial opens a session with the daemon, for the test's time.
func (d *Daemon) Dial() *shm.Client {
	d.t.Helper()
	return Dial(d.t, d.Socket())
}

// Dial opens a session with the daemon at socket, for the test's time.
func Dial(t testing.TB, socket string) *shm.Client {
	t.Helper()
	c, err := shm.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Open opens a device over c, for the test's time.
func Open(t testing.TB, c *shm.Client, name string) rdma.Device {
	t.Helper()
	d, err := c.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// Addr is an address of dev, IPv4 or IPv6, with a port.
func Addr(t testing.TB, dev rdma.Device, v6 bool, port uint16) netip.AddrPort {
	t.Helper()
	for _, p := range dev.Attr().Addrs {
		if p.Addr().Is6() == v6 {
			return netip.AddrPortFrom(p.Addr(), port)
		}
	}
	t.Fatalf("device %s has no such address: %v", dev.Name(), dev.Attr().Addrs)
	return netip.AddrPort{}
}

// logWriter shows a daemon's log with its test. What comes after the test's end is dropped.
type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("daemon: %s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// A Resources counts what a process holds.
type Resources struct{ Goroutines, FDs, Mappings int }

// Usage counts what this process holds now.
func Usage() Resources {
	r := Resources{Goroutines: runtime.NumGoroutine()}
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		r.FDs = len(entries)
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/memfd:") {
			r.Mappings++
		}
	}
	return r
}

// WantBack waits until this process holds no more than r, and else says what is left.
func (r Resources) WantBack(t testing.TB, when string) {
	t.Helper()
	var now Resources
	if needtest.Becomes(func() bool {
		now = Usage()
		return now.Goroutines <= r.Goroutines && now.FDs <= r.FDs && now.Mappings <= r.Mappings
	}) {
		return
	}
	var stacks strings.Builder
	if now.Goroutines > r.Goroutines {
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	}
	t.Errorf("%s: %+v, before it were %+v\n%s", when, now, r, stacks.String())
}
