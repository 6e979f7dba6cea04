package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/shm"
)

// stop ends a daemon as an operator does, which must succeed.
func (p *upProcess) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if status, _ := p.end(); status != 0 {
		p.t.Errorf("status %d, stderr:\n%s", status, p.stderr)
	}
}

// wantStatus compares fields of /proc/PID/status.
func (p *upProcess) wantStatus(want map[string]string) {
	p.t.Helper()
	got := statusOf(p.t, fmt.Sprint(p.cmd.Process.Pid), slices.Collect(maps.Keys(want))...)
	for field, value := range want {
		if got[field] != value {
			p.t.Errorf("%s is %q, want %q", field, got[field], value)
		}
	}
}

// statusOf reads fields of /proc/PID/status.
func statusOf(t *testing.T, pid string, fields ...string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, field := range fields {
		_, rest, _ := strings.Cut(string(b), "\n"+field+":\t")
		values[field], _, _ = strings.Cut(rest, "\n")
	}
	return values
}

// sandboxOf is what `vrnic show daemon` says of it.
func sandboxOf(t *testing.T, socket string) string {
	t.Helper()
	status, stdout, stderr := vrnic("show", "daemon", "--json", "--socket", socket)
	var rows []struct {
		Sandbox string `json:"sandbox"`
	}
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || status != 0 || len(rows) != 1 {
		t.Fatalf("show daemon: status %d, %v, %s", status, err, stderr)
	}
	return rows[0].Sandbox
}

const noCaps = "0000000000000000"

// A daemon gives up what it does not need, and says so; --sandbox off keeps all.
func TestUpSandbox(t *testing.T) {
	for _, mode := range []string{sandboxOn, sandboxFull, sandboxOff} {
		t.Run(mode, func(t *testing.T) {
			socket := filepath.Join(socketDir(t), "s")
			p := startUp(t, nil, "up", "--socket", socket, "--sandbox", mode)
			p.ready()
			said := sandboxOf(t, socket)
			if mode == sandboxOff {
				p.wantStatus(statusOf(t, "self", "NoNewPrivs", "Seccomp", "CapPrm", "CapBnd"))
				if said != "off" {
					t.Errorf("show daemon says %q", said)
				}
			} else {
				p.wantStatus(map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapEff": noCaps,
					"CapPrm": noCaps, "CapAmb": noCaps})
				if !strings.Contains(said, "capabilities=none") || !strings.Contains(said, "seccomp=yes") {
					t.Errorf("show daemon says %q", said)
				}
				if os.Geteuid() == 0 {
					p.wantStatus(map[string]string{"CapBnd": noCaps})
				}
			}
			p.stop()
			if left, _ := filepath.Glob(socket + "*"); len(left) != 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

// What a daemon shares with its clients is not in its core dumps.
func TestUpDumps(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	p := startUp(t, nil, "up", "--socket", socket)
	p.ready()
	c, err := shm.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dev, err := c.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	buf, err := dev.AllocBuffer(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	cq, err := dev.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	shared, is := 0, ""
	for line := range strings.Lines(string(smaps)) {
		if strings.Contains(line, " /memfd:vrnic-") {
			is = strings.TrimSpace(line)
			shared++
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && is != "" {
			if !slices.Contains(strings.Fields(flags), "dd") {
				t.Errorf("this is dumped: %s (%s)", is, strings.TrimSpace(flags))
			}
			is = ""
		}
	}
	if shared < 3 {
		t.Errorf("%d mappings are shared, want those of the session, the CQ and the buffer:\n%s", shared,
			smaps)
	}
}

// --user: the daemon of root runs as somebody else, whose the socket is.
func TestUpUser(t *testing.T) {
	needtest.Root(t)
	for _, c := range []struct {
		name  string
		owner int // of the socket's directory
		left  int // files in the end
	}{
		{"own directory", 65534, 0},
		{"directory of root", 0, 2}, // the socket and its lock; said at the start
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := socketDir(t)
			if err := errors.Join(os.Chown(dir, c.owner, c.owner), os.Chmod(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(dir, "s")
			p := startUp(t, nil, "up", "--socket", socket, "--user", "nobody")
			p.ready()
			p.wantStatus(map[string]string{"Uid": "65534\t65534\t65534\t65534",
				"Gid": "65534\t65534\t65534\t65534", "CapPrm": noCaps, "CapBnd": noCaps})
			if said := sandboxOf(t, socket); !strings.Contains(said, "user=nobody ") {
				t.Errorf("show daemon says %q", said)
			}
			show := forNobody(t, vrnicCommand(t, "show", "daemon", "--socket", socket))
			if out, err := show.CombinedOutput(); err != nil {
				t.Errorf("nobody at a socket of nobody's: %v\n%s", err, out)
			}
			p.stop()
			left, _ := filepath.Glob(socket + "*")
			if len(left) != c.left {
				t.Errorf("it left %v", left)
			}
			if said := strings.Contains(p.stderr.String(), "left behind"); said != (c.left > 0) {
				t.Errorf("stderr:\n%s", p.stderr)
			}
			again := startUp(t, nil, "up", "--socket", socket)
			again.ready() // what was left was not in its way
			again.stop()
		})
	}
}

// With a TAP one capability is left, for it alone; and the TAP goes with the daemon.
func TestUpTAPSandbox(t *testing.T) {
	ns, err := netlab.NewNS()
	if err != nil {
		needtest.Lacking(t, "root", err)
	}
	defer ns.Close()
	for _, user := range []string{"root", "nobody"} {
		dir := socketDir(t)
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(dir, "s")
		p := startUp(t, nil, "up", "--socket", socket, "--user", user, "--port", "tap:vtap0,netns="+
			ns.Path()+",addr=10.77.0.1/24,mtu=9000")
		p.ready()
		netAdmin := fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN)
		p.wantStatus(map[string]string{"CapEff": netAdmin, "CapPrm": netAdmin, "CapBnd": noCaps,
			"Seccomp": "2"})
		// It comes back, which takes the capability and no new files or sockets.
		if err := ns.DelLink("vtap0"); err != nil {
			t.Fatal(err)
		}
		if err := ns.WaitRunning("vtap0", time.Minute); err != nil {
			t.Errorf("as %s: a TAP that was removed: %v; stderr:\n%s", user, err, p.stderr)
		}
		p.stop()
		if links, err := ns.Links(); err != nil || slices.Contains(links, "vtap0") {
			t.Errorf("as %s: left are %v, %v", user, links, err)
		}
	}
}

// A daemon of root reaches other daemons' links, whose files are their users', also after it has
// been ready.
func TestUpConnectSandbox(t *testing.T) {
	needtest.Root(t)
	dir := socketDir(t)
	socket, link := filepath.Join(dir, "s"), filepath.Join(dir, "link")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: link, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(os.Chown(link, 65534, 65534), os.Chmod(link, 0o600)); err != nil {
		t.Fatal(err)
	}
	p := startUp(t, nil, "up", "--socket", socket, "--port", "unix-connect:"+link)
	p.ready()
	for range 3 {
		if err := l.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("%v; stderr:\n%s", err, p.stderr)
		}
		conn.Close()
	}
	p.stop()
}

// Wrong ways to ask for less.
func TestUpSandboxUsage(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--sandbox", "maybe"}, "on, full nor off"},
		{[]string{"--user", "no such user"}, "no such user"},
		{[]string{"--user", "root", "--sandbox", "off"}, "--sandbox off"},
	} {
		status, _, stderr := vrnic(append([]string{"up", "--socket", socket}, c.args...)...)
		if status != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, stderr %q", c.args, status, stderr)
		}
	}
}
