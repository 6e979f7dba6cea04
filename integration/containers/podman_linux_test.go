package containers

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/shm"
)

// patience bounds every wait for something that must come.
const patience = time.Minute

// A site is a daemon, and a runtime of the same user.
type site struct {
	t      *testing.T
	uid    int
	dir    string // the user's home; in /run, since runtimes have short names for sockets
	socket string
	args   []string // of vrnic up
	daemon *proctest.Process
	before proctest.Holding
	image  bool // it has been imported
	// env is podman's beside, network the one of containers; "": none.
	env     []string
	network string
	ns      *netlab.NS // of the daemon; nil: the test's
	once    sync.Once
}

const imageName = "localhost/debian:1"

// newSite starts a daemon as a user, whose devices are given to containers. At the test's end
// nothing may be left in it.
func newSite(t *testing.T, uid int, args ...string) *site {
	t.Helper()
	return newSiteAt(t, nil, uid, args...)
}

// newSiteAt is newSite on a host of its own.
func newSiteAt(t *testing.T, ns *netlab.NS, uid int, args ...string) *site {
	t.Helper()
	need(t)
	s := &site{t: t, uid: uid, ns: ns}
	var err error
	if s.dir, err = os.MkdirTemp("/run", "s"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"", "run", "tmp"} {
		d = filepath.Join(s.dir, d)
		if err := os.Mkdir(d, 0o700); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		if err := os.Chown(d, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	s.socket = filepath.Join(s.dir, "run", "vrnic.sock")
	s.args = append([]string{"up", "--containers", s.guests()}, args...)
	s.up()
	return s
}

// finish ends all that the site has.
func (s *site) finish() {
	if s.podman("rm", "--all", "--force", "--time", "0"); !s.t.Failed() {
		s.settle()
	}
	s.down()
	if left, _ := filepath.Glob(s.guests() + "/*/*"); len(left) > 0 {
		s.t.Errorf("the daemon has left %v", left)
	}
	s.podman("rmi", "--all", "--force")
}

func (s *site) guests() string { return filepath.Join(s.dir, "guests") }

// up starts the daemon.
func (s *site) up() {
	s.t.Helper()
	s.daemon = s.start(append([]string{program()}, s.args...)...)
	s.daemon.WaitOutput("ready socket="+s.socket, 1)
	s.before = s.holding()
	s.t.Cleanup(func() { s.once.Do(s.finish) }) // before this daemon is killed
}

// down ends it as an operator does.
func (s *site) down() {
	s.t.Helper()
	s.daemon.Signal(syscall.SIGTERM)
	if err := s.daemon.Wait(patience); err != nil {
		s.t.Errorf("the daemon: %v", err)
	}
}

// start runs argv as the site's user, who has no environment but its own.
func (s *site) start(argv ...string) *proctest.Process {
	s.t.Helper()
	env := append([]string{"env", "-i", "HOME=" + s.dir, "XDG_RUNTIME_DIR=" + s.dir + "/run",
		"TMPDIR=" + s.dir + "/tmp", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "VRNIC_SANDBOX_TRAP=1",
		"VRNIC_SOCKET=" + s.socket}, append(s.env, argv...)...)
	return proctest.Start(s.t, proctest.Config{UID: s.uid, Dir: s.dir, NS: s.ns,
		Patience: patience}, env...)
}

// run runs argv to its end, which has to be a good one, and returns what it has printed.
func (s *site) run(argv ...string) string {
	s.t.Helper()
	p := s.start(argv...)
	if err := p.Wait(patience); err != nil {
		s.t.Fatalf("%s: %v\n%s", p, err, p.Tail())
	}
	return p.Output()
}

// refused runs argv, which has to fail with words.
func (s *site) refused(words string, argv ...string) {
	s.t.Helper()
	p := s.start(argv...)
	if err := p.Wait(patience); err == nil || !strings.Contains(p.Output(), words) {
		s.t.Errorf("%s: %v, and it does not say %q:\n%s", p, err, words, p.Tail())
	}
}

func (s *site) words(args ...string) []string {
	words := []string{"podman", "--cgroup-manager", "cgroupfs", "--events-backend", "none"}
	if s.uid == 0 {
		words = append(words, "--root", s.dir+"/store", "--runroot", s.dir+"/run/podman", "--tmpdir",
			s.dir+"/tmp/podman", "--storage-driver", "overlay")
	}
	return append(words, args...)
}

func (s *site) podman(args ...string) string {
	s.t.Helper()
	return s.run(s.words(args...)...)
}

// generate has the specification written for root: only root's directory is read.
func (s *site) generate() {
	s.t.Helper()
	spec := s.run(program(), "cdi", "generate", "--output", "-")
	if s.uid == 0 {
		s.run(program(), "cdi", "generate")
	} else {
		if err := os.MkdirAll("/run/cdi", 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile("/run/cdi/vrnic.io-rnic.json", []byte(spec), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Cleanup(func() { os.Remove("/run/cdi/vrnic.io-rnic.json") })
}

// container are podman's words for one with a device.
func (s *site) container(device string, args ...string) []string {
	s.t.Helper()
	if !s.image {
		s.podman("import", "--quiet", imageFile(), imageName)
		s.image = true
	}
	i := slices.Index(args, "--")
	words := append([]string{"run", "--network", cmp.Or(s.network, "none"), "--cgroups", "disabled",
		"--pull", "never", "--device", "vrnic.io/rnic=" + device}, args[:i]...)
	return s.words(slices.Concat(words, []string{imageName}, args[i+1:])...)
}

// in runs a program in a container of its own.
func (s *site) in(device string, argv ...string) string {
	s.t.Helper()
	return s.run(s.container(device, append([]string{"--rm", "--"}, argv...)...)...)
}

// serve starts a program in a container of a name, and waits for it to listen on an id of rdma_cm.
func (s *site) serve(device, name string, argv ...string) {
	s.t.Helper()
	n := s.listeners()
	s.run(s.container(device, append([]string{"--detach", "--name", name, "--"}, argv...)...)...)
	proctest.Eventually(s.t, patience, name+" listens", func() bool { return s.listeners() > n })
}

func (s *site) listeners() (n int) {
	for _, row := range s.show("cm") {
		if row["state"] == "LISTEN" {
			n++
		}
	}
	return n
}

// show is what the daemon tells its user.
func (s *site) show(kind string) (rows []map[string]any) {
	s.t.Helper()
	c, err := shm.Dial(s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.List(kind)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range raw {
		var row map[string]any
		if err := json.Unmarshal(r, &row); err != nil {
			s.t.Fatalf("show %s: %s: %v", kind, r, err)
		}
		rows = append(rows, row)
	}
	return rows
}

func (s *site) holding() proctest.Holding {
	return proctest.HoldingOf(s.t, s.daemon.PID(), s.show)
}

// settle waits until the daemon holds what it held in the beginning: nothing of any program's.
// Descriptors beyond that are those of its own that it makes when it first needs them.
func (s *site) settle() {
	s.t.Helper()
	const own = 4
	var now proctest.Holding
	proctest.Eventually(s.t, patience, "the daemon has nothing of any program's", func() bool {
		now = s.holding()
		more := now.FDs - s.before.FDs
		now.FDs = s.before.FDs
		return now == s.before && more <= own
	})
}
