package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/shm"
)

// on runs a command that has to succeed, and returns what it prints.
func on(t *testing.T, socket string, args ...string) string {
	t.Helper()
	status, out, errs := vrnic(append(args[:len(args):len(args)], "--socket", socket)...)
	if status != 0 || errs != "" {
		t.Fatalf("%v: %d, %s", args, status, errs)
	}
	return out
}

// changes runs a command of a group such as dev, whose flags stand before its argument.
func changes(socket string, args ...string) (status int, stdout, stderr string) {
	last := len(args) - 1
	return vrnic(slices.Concat(args[:last:last], []string{"--socket", socket}, args[last:])...)
}

// A daemon that is confined changes by commands and by its file; what vrnic save prints makes the
// same one again.
func TestChangeCommands(t *testing.T) {
	dir := socketDir(t)
	file, socket := filepath.Join(dir, "vrnic.yaml"), filepath.Join(dir, "s")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil { // as editors do
			t.Fatal(err)
		}
	}
	base := "socket: " + socket + "\ndevice:\n  - a,addr=10.77.0.2/24\n  - b,addr=10.77.0.3/24\n"
	write(base)
	bus, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "n"),
		Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	told := func() string {
		t.Helper()
		b := make([]byte, 1024)
		_ = bus.SetReadDeadline(time.Now().Add(time.Minute)) // it has one
		n, err := bus.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	p := startUp(t, []string{"NOTIFY_SOCKET=" + filepath.Join(dir, "n")}, "up", "--config", file)
	p.ready()
	if got := told(); got != "READY=1" {
		t.Errorf("the manager is told %q", got)
	}
	names := func() []string {
		t.Helper()
		c, err := shm.Dial(socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Devices()
	}
	for _, args := range [][]string{
		{"dev", "add", "c,addr=10.77.0.4/24,transport=roce"}, {"dev", "set", "b,mtu=9000"},
		{"dev", "del", "a"}, {"limit", "qps=77"},
	} {
		if status, out, errs := changes(socket, args...); status != 0 || out != "" || errs != "" {
			t.Errorf("%v: %d, %q, %q", args, status, out, errs)
		}
	}
	saved := on(t, socket, "save")
	for _, line := range []string{"socket: " + socket, "socket-mode: \"0600\"", "sandbox: \"on\"",
		"  - b,addr=10.77.0.3/24,mtu=9000", "  - c,addr=10.77.0.4/24,transport=roce", "  - qps=77"} {
		if !strings.Contains(saved, line+"\n") {
			t.Errorf("vrnic save does not print %q:\n%s", line, saved)
		}
	}
	for _, tt := range []struct {
		args   []string
		status int
		words  string
	}{
		{[]string{"dev", "add", "x"}, exitUsage, "no address"},
		{[]string{"dev", "add", "b,addr=10.77.0.9/24"}, exitFailed, `device name "b" is given twice`},
		{[]string{"dev", "add", "h,host=127.0.0.1"}, exitFailed, "given up to make sockets of the host"},
		{[]string{"dev", "del", "x"}, exitFailed, "there is no device x"},
		{[]string{"port", "add", "x"}, exitUsage, "want tap:NAME"},
		{[]string{"port", "add", "unix-listen:" + dir + "/p"}, exitFailed, "given up to listen"},
		{[]string{"port", "add", "unix-connect:" + dir + "/p"}, exitFailed, "given up to connect"},
		{[]string{"port", "add", "vxlan:7,local=127.0.0.1,remote=127.0.0.2"}, exitFailed,
			"given up to make sockets of the host"},
		{[]string{"limit", "wings=1"}, exitUsage, `"wings" is not known`},
		{[]string{"limit", "--socket"}, exitUsage, ""},
	} {
		status, out, errs := changes(socket, tt.args...)
		if status != tt.status || out != "" || strings.Count(errs, "\n") != 1 ||
			!strings.Contains(errs, tt.words) {
			t.Errorf("%v: %d, %q, %q; want %d and %q", tt.args, status, out, errs, tt.status, tt.words)
		}
	}
	if got := on(t, socket, "save"); got != saved {
		t.Errorf("changes that were refused have changed it:\n%s\nit was\n%s", got, saved)
	}

	// The file as it is on disk, by command and by signal.
	on(t, socket, "reload")
	if got := names(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a", "b"}) {
		t.Errorf("after a reload: %v", got)
	}
	write(base + "  - d,addr=10.77.0.5/24\n")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := told(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("the manager is told %q", got)
	}
	if got := told(); got != "READY=1\nSTATUS=the file was read again" {
		t.Errorf("the manager is told %q", got)
	}
	if got := names(); len(got) != 3 {
		t.Errorf("after SIGHUP: %v", got)
	}
	// A program loses nothing by a reload that it is in the way of, nor by a typo.
	c := daemontest.Dial(t, socket)
	x := daemontest.NewEnd(t, daemontest.Open(t, c, "d"), 64)
	write(base)
	status, _, errs := vrnic("reload", "--socket", socket)
	if status != exitFailed || !strings.Contains(errs, "device d is in use by pid") {
		t.Errorf("%d, %q", status, errs)
	}
	write(base + "devise:\n")
	if status, _, errs = vrnic("reload", "--socket", socket); status != exitFailed ||
		!strings.Contains(errs, file+":5: devise: no value") {
		t.Errorf("%d, %q", status, errs)
	}
	x.Recv(1, 0, 64)
	write(base)
	on(t, socket, "reload", "--force")
	x.WantStatus("of the device that went", 1, 5)

	write(saved)
	on(t, socket, "reload")
	if got := on(t, socket, "save"); got != saved {
		t.Errorf("what was saved makes\n%s\nof\n%s", got, saved)
	}
	p.stop()
	if got := told(); got != "STOPPING=1" {
		t.Errorf("the manager is told %q", got)
	}
	p = startUp(t, nil, "up", "--config", file)
	p.ready()
	if got := on(t, socket, "save"); got != saved {
		t.Errorf("a daemon of what was saved is\n%s\nnot\n%s", got, saved)
	}
	p.stop()
}

// A daemon of host: true keeps its devices when its file is read again: that it has their ports
// itself is nothing to be taken for somebody else's, and who is confined need not ask the host.
func TestReloadHost(t *testing.T) {
	needtest.Root(t)
	ns, err := netlab.NewNS() // the host of nobody else
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dir := socketDir(t)
	file, socket := filepath.Join(dir, "vrnic.yaml"), filepath.Join(dir, "s")
	for _, sandbox := range []string{"on", "off"} {
		text := "socket: " + socket + "\nhost: true\nsandbox: " + sandbox + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &upProcess{t: t, cmd: vrnicCommand(t, "up", "--config", file),
			stderr: new(strings.Builder), within: ns.Do}
		p.begin()
		p.ready()
		before := on(t, socket, "save")
		if !strings.Contains(before, "transport=roce") {
			t.Errorf("no device of RoCE:\n%s", before)
		}
		on(t, socket, "reload")
		if got := on(t, socket, "save"); got != before {
			t.Errorf("sandbox %s: a reload makes\n%s\nof\n%s", sandbox, got, before)
		}
		p.stop()
	}
}

// A daemon takes the socket that the service manager has made, with the clients that wait there,
// and leaves it. What is not such a socket is told.
func TestSocketActivation(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// The number of the process is known to itself only.
	start := func(file *os.File, args ...string) *upProcess {
		p := &upProcess{t: t, cmd: vrnicCommand(t, args...), stderr: new(strings.Builder)}
		words := append([]string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"`, "sh", p.cmd.Path},
			p.cmd.Args[1:]...)
		p.cmd.Path, p.cmd.Args = "/bin/sh", words
		p.cmd.ExtraFiles = []*os.File{file}
		p.begin()
		return p
	}
	for range 2 {
		early := make(chan error)
		go func() {
			c, err := shm.Dial(socket)
			if err == nil {
				err = c.Close()
			}
			early <- err
		}()
		p := start(file, "up", "--device", "a,addr=10.77.0.2/24")
		if got, want := p.ready(), "ready socket="+socket+" devices=a"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if err := <-early; err != nil {
			t.Errorf("a client that has waited: %v", err)
		}
		p.stop()
		if _, err := os.Stat(socket); err != nil {
			t.Errorf("the socket of the service manager: %v", err)
		}
	}
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	for _, tt := range []struct {
		file  *os.File
		args  []string
		words string
	}{
		{pipe, []string{"up"}, "no Unix socket with a path"},
		{file, []string{"up", "--socket", "/tmp/x"},
			"hands over " + socket + ": leave --socket /tmp/x out"},
	} {
		p := start(tt.file, tt.args...)
		if status, out := p.end(); status == 0 || out != "" ||
			!strings.Contains(p.stderr.String(), tt.words) {
			t.Errorf("%v: %d, %q, %s; want %q", tt.args, status, out, p.stderr, tt.words)
		}
	}
}

// A TAP is made by who adds it, and handed to a daemon that has no rights at all; it goes with the
// port. What becomes of it meanwhile is told.
func TestPortAddTAP(t *testing.T) {
	needtest.Root(t)
	ns, err := netlab.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dir := socketDir(t)
	if err := os.Chmod(dir, 0o777); err != nil { // for the daemon to remove its socket
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	p := startUp(t, nil, "up", "--socket", socket, "--user", "nobody",
		"--device", "vrnic0,addr=10.77.0.2/24")
	p.ready()
	spec := "tap:t0,netns=" + ns.Path() + ",addr=10.77.0.1/24"
	for range 2 {
		if status, _, errs := changes(socket, "port", "add", spec); status != 0 {
			t.Fatal(errs)
		}
		if got := on(t, socket, "save"); !strings.Contains(got, "  - "+spec+"\n") {
			t.Errorf("vrnic save prints no %s:\n%s", spec, got)
		}
		if err := ns.Do(func() error {
			_, err := net.DialTimeout("tcp", netip.MustParseAddrPort("10.77.0.2:9").String(), time.Minute)
			return err
		}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("who is behind the TAP gets %v of a port that nobody listens on", err)
		}
		if status, _, errs := changes(socket, "port", "add", spec); status != exitFailed ||
			!strings.Contains(errs, "busy") {
			t.Errorf("a second time: %d, %q", status, errs)
		}
		if status, _, errs := changes(socket, "port", "del", "t0"); status != 0 {
			t.Error(errs)
		}
		if links, err := ns.Links(); err != nil || slices.Contains(links, "t0") {
			t.Errorf("the TAP is left behind: %v, %v", links, err)
		}
	}
	if status, _, errs := changes(socket, "port", "add", spec); status != 0 {
		t.Fatal(errs)
	}
	if err := ns.DelLink("t0"); err != nil {
		t.Fatal(err)
	}
	if !needtest.Becomes(func() bool {
		return strings.Contains(on(t, socket, "show", "port"), "the device is gone")
	}) {
		t.Errorf("nobody says that the TAP is gone:\n%s", on(t, socket, "show", "port"))
	}
	if status, _, errs := changes(socket, "port", "del", "t0"); status != 0 {
		t.Error(errs)
	}
	p.stop()
}
