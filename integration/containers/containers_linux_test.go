package containers

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// They speak RoCE: perftest listens anew between its two connections, which on iWARP a client that
// is quicker finds out.
var twoDevices = []string{"--device", "vrnic0,addr=10.77.0.2/24,transport=roce",
	"--device", "vrnic1,addr=10.77.0.3/24,transport=roce"}

// transfers has a server and a client, each in a container with a device of its own. -F: perftest
// goes on if others disturb it as it measures the processor's clock.
func (s *site) transfers() {
	s.t.Helper()
	s.serve("vrnic0", "server", "ib_write_bw", "-R", "-F", "-n", "200")
	if out := s.in("vrnic1", "ib_write_bw", "-R", "-F", "-n", "200", "10.77.0.2"); !strings.Contains(
		out, "65536      200") {
		s.t.Errorf("ib_write_bw:\n%s", out)
	}
	s.podman("wait", "server")
	s.podman("rm", "server")
}

// An image that holds nothing but Debian's packages has the device that the command line names, and
// no other, in the libraries, in /sys and in /dev; so has a program that comes later.
func TestPodman(t *testing.T) {
	s := newSite(t, 0, twoDevices...)
	s.generate()
	s.transfers()
	out := s.in("vrnic1", "sh", "-ec", `ibv_devinfo -l
		ls /sys/class/infiniband /dev/infiniband /run/vrnic/socket
		test -e /sys/class/net/lo; test ! -e /sys/class/net/vrnic1
		for c in $(ls /sys/class); do case $c in net | tty) echo $c; esac; done
		cat /sys/class/infiniband/*/ports/1/state`)
	if want := "1 HCA found:\n\tvrnic1\n\n" +
		"/dev/infiniband:\nrdma_cm\nuverbs0\n\n/run/vrnic/socket:\nvrnic.sock\n\n" +
		"/sys/class/infiniband:\nvrnic1\nnet\ntty\n4: ACTIVE\n"; out != want {
		t.Errorf("a container sees\n%s\nwant\n%s", out, want)
	}
	s.run(s.container("all", "--detach", "--name", "idle", "--", "sleep", "1000")...)
	if out := s.podman("exec", "idle", "ibv_devices"); !strings.Contains(out, "vrnic0 ") ||
		!strings.Contains(out, "vrnic1 ") {
		t.Errorf("podman exec:\n%s", out)
	}
	// Another user of the container's, and a root file system that cannot be written.
	if out := s.run(s.container("vrnic0", "--rm", "--read-only", "--user", "1000", "--",
		"ibv_devices")...); !strings.Contains(out, "vrnic0 ") {
		t.Errorf("--user 1000 --read-only:\n%s", out)
	}

	// A container that was there before has counters that go on, as long as somebody looks after them.
	const sent = "/sys/class/infiniband/vrnic1/ports/1/counters/port_xmit_data"
	s.refused("No such file", s.words("exec", "idle", "cat", sent)...)
	watch := s.start(program(), "cdi", "generate", "--watch")
	s.transfers()
	proctest.Eventually(t, patience, "the container sees what was sent", func() bool {
		n, err := strconv.Atoi(strings.TrimSpace(s.podman("exec", "idle", "sh", "-c",
			"cat "+sent+" || echo 0")))
		return err == nil && n >= 200*65536/4
	})
	watch.Signal(unix.SIGTERM)
	if err := watch.Wait(patience); err != nil {
		t.Errorf("%s: %v", watch, err)
	}
}

// walk runs the three commands of docs/containers.md, as they stand there, in a shell in which run
// is what there is of docker or podman: for them is what they are to be with that.
func (s *site) walk(run string, with func(commands string) string) {
	s.t.Helper()
	doc, err := os.ReadFile("../../docs/containers.md")
	if err != nil {
		s.t.Fatal(err)
	}
	_, commands, found := strings.Cut(string(doc), "with any docker:\n\n")
	commands, _, end := strings.Cut(commands, "\n\n")
	if !found || !end || strings.Count(commands, "$(vrnic cdi options ") != 2 {
		s.t.Fatalf("docs/containers.md has other commands: %s", commands)
	}
	// What a person waits a second for may take longer.
	commands = strings.Replace(commands, "& sleep 1;",
		"& until vrnic show dev >/dev/null 2>&1; do sleep 0.1; done;", 1)
	commands = strings.Replace(commands, "sleep 1",
		"until vrnic show cm | grep -q LISTEN; do sleep 0.1; done", 1)
	s.t.Cleanup(func() { os.Remove("/run/cdi/vrnic.io-rnic.json") })
	script := "set -e; unset VRNIC_SOCKET XDG_RUNTIME_DIR; PATH=" + workDir + ":$PATH\n" + run +
		"\ntrap 'kill $(jobs -p); wait' EXIT\n" + with(commands)
	if out := s.run("bash", "-c", script); !strings.Contains(out, "65536      5000 ") {
		s.t.Errorf("the commands print\n%s", out)
	}
}

// By a podman that has other places to store things, and no network.
func TestWalk(t *testing.T) {
	s := newSite(t, 0) // for its podman
	s.podman("import", "--quiet", imageFile(), "localhost/perftest:latest")
	s.walk("podman() { shift; command "+strings.Join(s.words(), " ")+
		" run --network none --cgroups disabled \"$@\"; }", func(commands string) string {
		named := regexp.MustCompile(`\$\(vrnic cdi options (\w+)\)`)
		return strings.ReplaceAll(named.ReplaceAllString(commands, "--device vrnic.io/rnic=$1"),
			"docker", "podman")
	})
}

// By a docker without a network, word for word.
func TestWalkDocker(t *testing.T) {
	s := newDockerSite(t, 0)
	if err := os.Remove("/run/cdi/vrnic.io-rnic.json"); err != nil { // the commands write their own
		t.Fatal(err)
	}
	s.walk("docker() { shift; command "+strings.Join(s.docker(), " ")+
		" run --network none \"$@\"; }", func(commands string) string { return commands })
	s.run(s.docker("rm", "server")...)
}

// rootless is a user who may have users of his own in containers.
func rootless(t *testing.T) (uid int) {
	t.Helper()
	need(t)
	if err := needtest.Missing("newuidmap"); err != nil {
		needtest.Lacking(t, "podman", err)
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	if uid, err = strconv.Atoi(nobody.Uid); err != nil {
		t.Fatal(err)
	}
	ids := filepath.Join(workDir, "ids")
	if err := os.WriteFile(ids, []byte("nobody:200000:65536\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		if _, err := os.Stat(file); os.IsNotExist(err) {
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(file) }) // behind the unmount
		}
		if err := unix.Mount(ids, file, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		t.Cleanup(func() { unix.Unmount(file, unix.MNT_DETACH) })
	}
	return uid
}

// Without root: containers and daemon are a user's, who is root in them.
func TestPodmanRootless(t *testing.T) {
	s := newSite(t, rootless(t), twoDevices...)
	s.refused("have root put the output", program(), "cdi", "generate", "--output", "/etc/x.json")
	s.generate()
	s.transfers()
	// The daemon knows programs by what they are outside: root of the container is its own user, and
	// user 1000 there is the thousandth of those that the user has.
	for as, uid := range map[string]int{"0": s.uid, "1000": 200_000 + 1000 - 1} {
		s.run(s.container("vrnic1", "--detach", "--name", "watch", "--user", as, "--",
			"ibv_asyncwatch")...)
		proctest.Eventually(t, patience, "it has a session", func() bool {
			return slices.ContainsFunc(s.show("client"), func(row map[string]any) bool {
				return row["comm"] == "ibv_asyncwatch"
			})
		})
		s.wantPeer("ibv_asyncwatch", uid)
		s.podman("rm", "--force", "--time", "0", "watch")
		s.settle()
	}
	for _, as := range []string{"0", "1000"} {
		if out := s.run(s.container("vrnic0", "--rm", "--user", as, "--", "sh", "-c",
			"id -u; ibv_devices; ls /sys/class/infiniband")...); !strings.HasPrefix(out, as+"\n") ||
			strings.Count(out, "vrnic0") != 2 {
			t.Errorf("user %s in the container:\n%s", as, out)
		}
	}
}

// A daemon that starts anew is seen by containers that were there before; one that is killed leaves
// nothing in the daemon.
func TestComeAndGo(t *testing.T) {
	s := newSite(t, 0, twoDevices...)
	s.generate()
	n := 2
	if thorough() {
		n = 40
	}
	var names []string
	for i := range n {
		names = append(names, "idle"+strconv.Itoa(i))
		s.run(s.container("vrnic0", "--detach", "--name", names[i], "--", "sh", "-c",
			"ibv_asyncwatch; sleep 1000")...)
	}
	proctest.Eventually(t, patience, "each has a session", func() bool { return s.watchers() == n })
	s.serve("vrnic0", "peer", "rping", "-s", "-a", "10.77.0.2", "-v")
	client := s.start(s.container("vrnic1", "--name", "client", "--", "rping", "-c", "-v", "-a",
		"10.77.0.2")...)
	client.WaitOutput("rdma-ping-", 3)
	s.podman("kill", "--signal", "KILL", "client")
	<-client.Done
	s.podman("wait", "peer") // whose client has gone
	proctest.Eventually(t, patience, "only those that stay have sessions", func() bool {
		return len(s.show("client")) == n+1 // and who asks
	})

	s.serve("vrnic0", "again", "rping", "-s", "-a", "10.77.0.2", "-v")
	s.down()
	for _, name := range names {
		s.refused("no daemon at /run/vrnic/socket/vrnic.sock", s.words("exec", name, "ibv_devinfo")...)
	}
	s.up()
	for _, name := range names {
		if out := s.podman("exec", name, "ibv_devices"); !strings.Contains(out, "vrnic0 ") {
			t.Errorf("after the daemon's restart %s has\n%s", name, out)
		}
	}
	s.podman("rm", "--force", "--time", "0", "again")
	// Nothing of theirs is left, in the daemon that has gone or the one that is there.
	for _, name := range names {
		proctest.Eventually(t, patience, name+" is told that its daemon has ended", func() bool {
			return strings.Contains(s.podman("logs", name), "DEVICE_FATAL")
		})
	}
	s.settle()
	if out := s.podman("ps", "--quiet"); strings.Count(out, "\n") != n {
		t.Errorf("of %d containers there are %s", n, out)
	}
	s.transfers()
}

// watchers are the containers' programs that wait for events.
func (s *site) watchers() (n int) {
	for _, row := range s.show("client") {
		if row["comm"] == "ibv_asyncwatch" {
			n++
		}
	}
	return n
}

// What cannot be is said in words, and leaves nothing.
func TestCDIRefused(t *testing.T) {
	s := newSite(t, 0, twoDevices...)
	s.generate()
	file := "/run/cdi/vrnic.io-rnic.json"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.generate() // once more is no harm
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("a second time it is another: %v", err)
	}
	s.refused("has the device vrnic.io/rnic=vrnic0 already", program(), "cdi", "generate", "--output",
		"/run/cdi/second.json")
	if left, _ := filepath.Glob("/run/cdi/*"); len(left) != 1 {
		t.Errorf("in /run/cdi are %v", left)
	}
	s.refused("runtimes read files", program(), "cdi", "generate", "--output", "/run/cdi/spec")
	s.refused("vrnic.io/rnic=nope", s.container("nope", "--rm", "--", "true")...)
	if out := s.podman("ps", "--all", "--quiet"); out != "" {
		t.Errorf("containers are left: %s", out)
	}

	s.run(program(), "dev", "add", "vrnic2,addr=10.77.0.4/24")
	// A daemon that had such a device from the beginning has been killed here.
	stale := &net.UnixAddr{Name: filepath.Join(s.guests(), "vrnic2", "vrnic.sock"),
		Net: "unixpacket"}
	if err := os.Mkdir(filepath.Dir(stale.Name), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix(stale.Net, stale)
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if out := s.run(program(), "cdi", "generate"); !strings.Contains(out,
		"vrnic2 was added while the daemon ran") {
		t.Errorf("of a device that has come later it says %q", out)
	}
	if err := os.Remove(stale.Name); err != nil {
		t.Error(err)
	}
	if out := s.in("all", "ibv_devices"); !strings.Contains(out, "vrnic2 ") {
		t.Errorf("all devices are\n%s", out)
	}

	alone := s.dir + "/alone.sock"
	other := s.start(program(), "up", "--socket", alone)
	other.WaitOutput("ready", 1)
	s.refused("start it with vrnic up --containers DIR", program(), "cdi", "generate", "--socket",
		alone)
	other.Signal(unix.SIGTERM)
	if err := other.Wait(patience); err != nil {
		t.Error(err)
	}
	s.refused("only root and the daemon's own user", program(), "cdi", "generate", "--socket",
		s.guests()+"/all/vrnic.sock")
}

// thorough says whether all is to be tested: `make containers`.
func thorough() bool { return os.Getenv("VRNIC_TEST_CONTAINERS") == "all" }
