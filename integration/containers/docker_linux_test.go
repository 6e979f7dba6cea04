package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// A docker that does not know the Container Device Interface has the devices by options. dockerd is
// the test's own: its data, its socket, its control groups.
func TestDocker(t *testing.T) {
	s := newDockerSite(t, 0, twoDevices...)
	s.transfers()
	if out := s.run(s.in("vrnic1", "--rm", "perftest", "sh", "-ec", `ls /sys/class/infiniband
		ls /dev/infiniband; ls /run/vrnic/socket`)...); out != "vrnic1\nrdma_cm\nuverbs0\nvrnic.sock\n" {
		t.Errorf("a container sees\n%s", out)
	}
	s.refused("has no device nope", program(), "cdi", "options", "nope")
}

// Without root: dockerd and the daemon are a user's, who is root in containers.
func TestDockerRootless(t *testing.T) {
	s := newDockerSite(t, rootless(t), twoDevices...)
	s.transfers()
	s.run(s.in("vrnic1", "--detach", "--name", "watch", "perftest", "ibv_asyncwatch")...)
	proctest.Eventually(t, patience, "it has a session", func() bool { return s.watchers() == 1 })
	s.wantPeer("ibv_asyncwatch", s.uid)
	s.run(s.docker("rm", "--force", "watch")...)
	s.settle()
}

// A dockerSite has a dockerd beside, with the image perftest, and the specification.
type dockerSite struct {
	*site
	docker func(args ...string) []string // words for docker's client
}

func newDockerSite(t *testing.T, uid int, args ...string) *dockerSite {
	t.Helper()
	if !thorough() {
		needtest.Skip(t, "docker is for make containers")
	}
	need(t)
	needDocker(t, uid)
	s := newSite(t, uid, args...)
	s.generate()
	d := &dockerSite{s, s.dockerd()}
	s.run(d.docker("import", imageFile(), "perftest")...)
	return d
}

// options are docker's for a device.
func (s *site) options(device string) []string {
	s.t.Helper()
	return strings.Fields(s.run(program(), "cdi", "options", device))
}

// in are words for a container with a device.
func (s *dockerSite) in(device string, words ...string) []string {
	s.t.Helper()
	return s.docker(slices.Concat([]string{"run", "--network", "none"}, s.options(device), words)...)
}

// transfers has a server and a client, each in a container with a device of its own, which is the
// only one that there is.
func (s *dockerSite) transfers() {
	s.t.Helper()
	n := s.listeners()
	s.run(s.in("vrnic0", "--detach", "--name", "server", "perftest", "ib_write_bw", "-R", "-F", "-n",
		"200")...)
	proctest.Eventually(s.t, patience, "the server listens", func() bool {
		return s.listeners() > n
	})
	if out := s.run(s.docker("exec", "server", "ibv_devices")...); !strings.Contains(out, "vrnic0 ") ||
		strings.Contains(out, "vrnic1") {
		s.t.Errorf("docker exec:\n%s", out)
	}
	if out := s.run(s.in("vrnic1", "--rm", "perftest", "ib_write_bw", "-R", "-F", "-n", "200",
		"10.77.0.2")...); !strings.Contains(out, "65536      200") {
		s.t.Errorf("ib_write_bw:\n%s", out)
	}
	s.run(s.docker("wait", "server")...)
	s.run(s.docker("rm", "server")...)
}

// needDocker skips a test where a user has none.
func needDocker(t *testing.T, uid int) {
	t.Helper()
	want := []string{"/usr/sbin/dockerd", "/usr/bin/docker", "containerd", "runc"}
	if uid != 0 {
		want = append(want, dockerdRootless, "rootlesskit", "slirp4netns")
	}
	if err := needtest.Missing(want...); err != nil {
		needtest.Lacking(t, "docker", fmt.Errorf("%w; .ci/deps containers", err))
	}
}

// dockerdRootless is docker's own script that runs a dockerd in namespaces of a user's.
const dockerdRootless = "/usr/share/docker.io/contrib/dockerd-rootless.sh"

// dockerd starts one, and returns what makes words for its client.
func (s *site) dockerd() func(args ...string) []string {
	s.t.Helper()
	socket := "unix://" + s.dir + "/docker.sock"
	// Without root /run is another one, of links to what is in this one: data are no such.
	data, err := os.MkdirTemp(workDir, "docker")
	if err == nil {
		s.t.Cleanup(func() { os.RemoveAll(data) })
		err = os.Chown(data, s.uid, s.uid)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	words := []string{"--host", socket, "--data-root", data + "/docker", "--exec-root",
		s.dir + "/exec", "--pidfile", s.dir + "/docker.pid", "--iptables=false", "--ip6tables=false",
		"--bridge=none"}
	group := "vrnic-test-" + filepath.Base(s.dir)
	if s.uid == 0 {
		words = slices.Concat([]string{"/usr/sbin/dockerd"}, words, []string{"--cgroup-parent",
			"/" + group})
	} else {
		words = slices.Concat([]string{"/bin/sh", dockerdRootless}, words, []string{"--storage-driver",
			"vfs"})
	}
	daemon := s.start(words...)
	s.t.Cleanup(func() {
		daemon.Signal(syscall.SIGTERM)
		if err := daemon.Wait(patience); err != nil {
			s.t.Errorf("dockerd: %v", err)
		}
		// These are not of the namespaces: they go here.
		left, _ := filepath.Glob("/sys/fs/cgroup/*/" + group)
		for _, dir := range append(left, "/sys/fs/cgroup/"+group) {
			if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
				s.t.Errorf("dockerd's control groups: %v", err)
			}
		}
	})
	daemon.WaitOutput("API listen on", 1)
	return func(args ...string) []string {
		return append([]string{"/usr/bin/docker", "--host", socket}, args...)
	}
}
