package containers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// client is the row of the program of that name among those that the daemon's user is told of.
func (s *site) client(comm string) map[string]any {
	s.t.Helper()
	for _, row := range s.show("client") {
		if row["comm"] == comm {
			return row
		}
	}
	s.t.Fatalf("no %s among %v", comm, s.show("client"))
	return nil
}

// wantPeer wants the daemon to know the program of a container by the number and the user that it
// has on the host, whatever they are in the container's namespaces.
func (s *site) wantPeer(comm string, uid int) {
	s.t.Helper()
	row := s.client(comm)
	pid, _ := row["pid"].(float64)
	proc := fmt.Sprintf("/proc/%d/", int(pid))
	if is, err := os.ReadFile(proc + "comm"); err != nil || strings.TrimSpace(string(is)) != comm {
		s.t.Errorf("the daemon takes process %v for %s, which is %q, %v", pid, comm, is, err)
	}
	inside, err := os.Readlink(proc + "ns/pid")
	if err != nil {
		s.t.Fatal(err)
	}
	if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own == inside {
		s.t.Errorf("%s is in the daemon's own namespace of processes, %s", comm, inside)
	}
	if row["uid"] != float64(uid) {
		s.t.Errorf("the daemon takes %s for a program of user %v, want %d", comm, row["uid"], uid)
	}
}

// What one container has is nothing to another, though both have one device and both are root: it
// sees itself alone, and changes nothing. All behind one socket share what one user may have,
// whoever they are; those behind another do not notice.
func TestIsolation(t *testing.T) {
	if !thorough() {
		needtest.Skip(t, "what the daemon makes of sockets is tested there: this is for make containers")
	}
	s := newSite(t, 0, append([]string{"--limit", "sessions-per-uid=3"}, twoDevices...)...)
	s.generate()
	s.serve("vrnic0", "server", "rping", "-s", "-a", "10.77.0.2")
	s.wantPeer("rping", 0)
	tool := "--volume=" + program() + ":/usr/local/bin/vrnic:ro"
	in := func(device string, argv ...string) []string {
		return s.container(device, append([]string{"--rm", tool, "--", "vrnic"}, argv...)...)
	}
	for _, kind := range []string{"qp", "mr", "cq", "cm"} {
		if out := s.run(in("vrnic0", "show", "--json", kind)...); strings.TrimSpace(out) != "[]" {
			t.Errorf("another container is told of %s: %s", kind, out)
		}
	}
	for _, kind := range []string{"client", "user"} {
		if out := s.run(in("all", "show", "--json", kind)...); strings.Contains(out, "rping") ||
			strings.Count(out, `"socket":`) != 1 {
			t.Errorf("another container is told of %s: %s", kind, out)
		}
	}
	s.refused("may change it", in("all", "dev", "del", "--force", "vrnic0")...)
	s.refused("may change it", in("vrnic0", "limit", "qps=1")...)
	s.refused("", in("vrnic0", "capture", "-d", "vrnic0", "-w", "-")...)
	s.refused("what it is made of", in("vrnic0", "save")...)

	for i, user := range []string{"1000", "1001"} {
		n := s.listeners()
		s.run(s.container("vrnic0", "--detach", "--name", "user"+user, "--user", user, "--", "rping",
			"-s", "-a", "10.77.0.2", "-p", strconv.Itoa(8000+i))...)
		proctest.Eventually(t, patience, "it listens", func() bool { return s.listeners() > n })
	}
	s.refused("socket vrnic0 has 3 sessions", s.container("vrnic0", "--rm", "--user", "1002", "--",
		"ibv_devices")...)
	if out := s.in("vrnic1", "ibv_devices"); !strings.Contains(out, "vrnic1 ") {
		t.Errorf("the other device's container has\n%s", out)
	}
	s.podman("kill", "--signal", "KILL", "user1000", "user1001")
	s.podman("rm", "--force", "--time", "0", "user1000", "user1001")
	if out := s.in("vrnic0", "ibv_devices"); !strings.Contains(out, "vrnic0 ") {
		t.Errorf("when there is room again a container has\n%s", out)
	}
}

// An image of Alpine's kind has a device, too: its programs are for musl, whose loader takes our
// libraries, and not those of the image.
func TestMuslImage(t *testing.T) {
	if !thorough() {
		needtest.Skip(t, "it builds a program: make containers")
	}
	if err := needtest.Missing("musl-gcc", "/usr/include/infiniband/verbs.h"); err != nil {
		needtest.Lacking(t, "podman", err)
	}
	s := newSite(t, 0, twoDevices...)
	s.generate()
	root := t.TempDir()
	for _, d := range []string{"bin", "lib", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	loaders, err := filepath.Glob("/lib/ld-musl-*.so.1")
	if err != nil || len(loaders) != 1 {
		t.Fatalf("loaders of musl: %q, %v", loaders, err)
	}
	libc, err := os.ReadFile(loaders[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(root, loaders[0]), libc, 0o755)
	}
	for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1"} { // of rdma-core, say
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "usr/lib", name), nil, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	const sources = "../verbs/testdata/"
	libs := "../../verbs/build/libmusl/"
	s.run("musl-gcc", "-std=gnu11", "-O1", "-I"+proctest.MuslHeaders(t), "-o",
		filepath.Join(root, "bin/transfer"), abs(t, sources+"transfer.c"), abs(t, sources+"vt.c"),
		"-Wl,--unresolved-symbols=ignore-in-shared-libs", abs(t, libs+"librdmacm.so.1"),
		abs(t, libs+"libibverbs.so.1"))
	const image = "localhost/musl:1"
	tar := filepath.Join(t.TempDir(), "musl.tar")
	s.run("tar", "-C", root, "-cf", tar, ".")
	s.podman("import", "--quiet", tar, image)
	for _, user := range []string{"0", "1000"} {
		out := s.run(s.words("run", "--rm", "--network", "none", "--cgroups", "disabled", "--pull",
			"never", "--user", user, "--device", "vrnic.io/rnic=all", "--env", "VT_SERVER=10.77.0.2",
			"--env", "VT_CLIENT=10.77.0.3", image, "/bin/transfer", "sends", "writes_and_reads")...)
		if !strings.Contains(out, "ok writes_and_reads") {
			t.Errorf("as user %s it prints\n%s", user, out)
		}
	}
}

// abs is a file of the tree, for who is elsewhere.
func abs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
