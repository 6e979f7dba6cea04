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
	s := newDockerSite(t, twoDevices...)
	in := func(device string, words ...string) []string {
		return s.docker(slices.Concat([]string{"run", "--network", "none"}, s.options(device), words)...)
	}
	n := s.listeners()
	s.run(in("vrnic0", "--detach", "--name", "server", "perftest", "ib_write_bw", "-R", "-F", "-n",
		"200")...)
	proctest.Eventually(t, patience, "the server listens", func() bool { return s.listeners() > n })
	if out := s.run(s.docker("exec", "server", "ibv_devices")...); !strings.Contains(out, "vrnic0 ") ||
		strings.Contains(out, "vrnic1") {
		t.Errorf("docker exec:\n%s", out)
	}
	if out := s.run(in("vrnic1", "--rm", "perftest", "ib_write_bw", "-R", "-F", "-n", "200",
		"10.77.0.2")...); !strings.Contains(out, "65536      200") {
		t.Errorf("ib_write_bw:\n%s", out)
	}
	s.run(s.docker("wait", "server")...)
	s.run(s.docker("rm", "server")...)
	if out := s.run(in("vrnic1", "--rm", "perftest", "sh", "-ec", `ls /sys/class/infiniband
		ls /dev/infiniband; ls /run/vrnic/socket`)...); out != "vrnic1\nrdma_cm\nuverbs0\nvrnic.sock\n" {
		t.Errorf("a container sees\n%s", out)
	}
	s.refused("has no device nope", program(), "cdi", "options", "nope")
}

// A dockerSite has a dockerd beside, with the image perftest, and the specification.
type dockerSite struct {
	*site
	docker func(args ...string) []string // words for docker's client
}

func newDockerSite(t *testing.T, args ...string) *dockerSite {
	t.Helper()
	if !thorough() {
		needtest.Skip(t, "docker is for make containers")
	}
	need(t)
	needDocker(t)
	s := newSite(t, 0, args...)
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

// needDocker skips a test where there is none.
func needDocker(t *testing.T) {
	t.Helper()
	if err := needtest.Missing("/usr/sbin/dockerd", "/usr/bin/docker", "containerd",
		"runc"); err != nil {
		needtest.Lacking(t, "docker", fmt.Errorf("%w; apt-get install docker.io", err))
	}
}

// dockerd starts one, and returns what makes words for its client.
func (s *site) dockerd() func(args ...string) []string {
	s.t.Helper()
	socket := "unix://" + s.dir + "/docker.sock"
	group := "vrnic-test-" + filepath.Base(s.dir)
	daemon := s.start("/usr/sbin/dockerd", "--host", socket, "--data-root", s.dir+"/docker",
		"--exec-root", s.dir+"/exec", "--pidfile", s.dir+"/docker.pid", "--iptables=false",
		"--ip6tables=false", "--bridge=none", "--cgroup-parent", "/"+group)
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
