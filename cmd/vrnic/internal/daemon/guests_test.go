package daemon_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
)

// guestDir is a directory for sockets for containers, outside of the daemon's own.
func guestDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guests")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "g")
}

// Who comes by a socket for containers sees its device and what is its own, and changes nothing,
// also as root or the daemon's own user, who may do all of that by the daemon's socket.
func TestGuestSockets(t *testing.T) {
	dir := guestDir(t)
	d := daemontest.Start(t, func(c *daemon.Config) { c.Containers = dir })
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Fatalf("the directory: %v, %v", st.Mode(), err)
	}
	dial := func(name string) *shm.Client {
		return daemontest.Dial(t, guest.Socket(dir, name))
	}
	mustChange(t, d, shm.Add, "device", third)
	for name, want := range map[string][]string{"vrnic0": {"vrnic0"}, "vrnic1": {"vrnic1"},
		guest.All: {"vrnic0", "vrnic1", "vrnic2"}} {
		c := dial(name)
		if got := c.Devices(); !slices.Equal(got, want) {
			t.Errorf("socket %s is of %v", name, got)
		}
		for _, kind := range []string{"dev", "gid"} {
			rows, err := c.List(kind)
			for _, row := range rows {
				var dev struct{ Dev string }
				if err := json.Unmarshal(row, &dev); err != nil || !slices.Contains(want, dev.Dev) {
					t.Errorf("socket %s lists %s", name, row)
				}
			}
			if err != nil || kind == "dev" && len(rows) != len(want) {
				t.Errorf("socket %s lists %s, %v", name, rows, err)
			}
		}
		for _, ch := range []shm.Change{{Verb: shm.Del, Key: "device", Value: "vrnic2"},
			{Verb: shm.Set, Key: "limit", Value: "qps=1"}} {
			if err := c.Change(changeTime(t), ch); err == nil ||
				!strings.Contains(err.Error(), "may change it") {
				t.Errorf("socket %s: %+v is %v", name, ch, err)
			}
		}
	}

	one, other := dial("vrnic0"), dial(guest.All)
	a := daemontest.NewEnd(t, daemontest.Open(t, one, "vrnic0"), 4096)
	b := daemontest.NewEnd(t, daemontest.Open(t, other, "vrnic1"), 4096)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	sends(t, a, b, 1)
	for _, kind := range []string{"qp", "mr", "cq", "cm", "client", "user"} {
		rows, err := one.List(kind)
		if err != nil || len(rows) > 1 {
			t.Errorf("a container lists %s: %s, %v", kind, rows, err)
		}
		if kind == "client" || kind == "user" {
			if len(rows) != 1 || !strings.Contains(string(rows[0]), `"socket":"vrnic0"`) {
				t.Errorf("a container is told that it is %s", rows)
			}
		}
	}
	if rows, err := d.Dial().List("qp"); err != nil || len(rows) != 2 {
		t.Errorf("the daemon's user lists %s, %v", rows, err)
	}
	if rows, err := one.List("config"); err != nil || len(rows) != 0 {
		t.Errorf("a container is told how the daemon is made: %s, %v", rows, err)
	}
}

// All programs behind one socket together have what one user may have, whoever they are.
func TestGuestQuota(t *testing.T) {
	dir := guestDir(t)
	daemontest.Start(t, func(c *daemon.Config) {
		c.Containers, c.Limits = dir, server.DefaultLimits()
		if err := c.SetLimit("sessions-per-uid=2"); err != nil {
			t.Fatal(err)
		}
	})
	for _, name := range []string{"vrnic0", "vrnic1"} {
		path := guest.Socket(dir, name)
		daemontest.Dial(t, path)
		daemontest.Dial(t, path)
		_, err := shm.Dial(path)
		if err == nil || !strings.Contains(err.Error(), "socket "+name+" has 2 sessions") {
			t.Errorf("a third session: %v", err)
		}
	}
}

// A folder that a container has seen stays for the daemon that comes next. Two daemons do not share
// one.
func TestGuestFoldersStay(t *testing.T) {
	dir := guestDir(t)
	first, err := daemon.New(guestConfig(t, dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	before, err := os.Stat(guest.Dir(dir, "vrnic0"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.New(guestConfig(t, dir, "b")); err == nil ||
		!strings.Contains(err.Error(), "a daemon is running on "+guest.Dir(dir, "vrnic0")) ||
		strings.Contains(err.Error(), "--socket") { // --containers would help
		t.Errorf("a second daemon there: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(dir + "/*/*"); err != nil || len(left) != 0 {
		t.Errorf("the daemon has left %v, %v", left, err)
	}
	second, err := daemon.New(guestConfig(t, dir, "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if after, err := os.Stat(guest.Dir(dir, "vrnic0")); err != nil ||
		!os.SameFile(before, after) {
		t.Errorf("the folder is another: %v", err)
	}
	c, err := shm.Dial(guest.Socket(dir, "vrnic0"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// guestConfig is that of a daemon with one device, on a socket of that name beside dir.
func guestConfig(t *testing.T, dir, socket string) daemon.Config {
	t.Helper()
	spec, err := daemon.ParseDevice("vrnic0,addr=10.77.0.2/24")
	if err != nil {
		t.Fatal(err)
	}
	return daemon.Config{Socket: filepath.Join(filepath.Dir(dir), socket), Containers: dir,
		Devices: []daemon.DeviceSpec{spec}}
}

// What cannot be of a directory for containers is said before anything is made.
func TestGuestsRefused(t *testing.T) {
	dir := guestDir(t)
	cfg := guestConfig(t, dir, "s")
	for _, name := range []string{guest.All, guest.Net} {
		cfg.Devices[0].Name = name
		if err := cfg.Check(); err == nil || !strings.Contains(err.Error(), "for several devices") {
			t.Errorf("a device named %s: %v", name, err)
		}
	}
	d := daemontest.Start(t, func(c *daemon.Config) { c.Containers = guestDir(t) })
	for _, name := range []string{guest.All, guest.Net} { // containers would see it by that socket
		wantRefused(t, change(t, d, shm.Add, "device", name+",addr=10.77.0.9/24"), syscall.EINVAL,
			"give device "+name+" another")
	}
	cfg = guestConfig(t, filepath.Join(dir, strings.Repeat("x", 100)), "s")
	if err := cfg.Check(); err == nil || !strings.Contains(err.Error(), "containers ") {
		t.Errorf("a path too long for a socket: %v", err)
	}
	file := filepath.Join(filepath.Dir(dir), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(filepath.Dir(dir), "open") // as /tmp is
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{file, filepath.Join(dir, "nowhere", "g"), open} {
		d, err := daemon.New(guestConfig(t, at, "s"))
		if err == nil {
			d.Close()
			t.Fatalf("sockets at %s", at)
		}
		if at != file && err == nil || !strings.Contains(err.Error(), "sockets for containers: ") {
			t.Errorf("sockets at %s: %v", at, err)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "s")); !os.IsNotExist(err) {
		t.Errorf("the daemon's socket: %v, want %v", err, syscall.ENOENT)
	}
}
