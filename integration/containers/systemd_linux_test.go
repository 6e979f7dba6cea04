package containers

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// boot goes into a copy of this machine's root in memory, with the package's files and no other
// units, and becomes systemd there. It runs in namespaces of its own: a folder for the root, the
// program, the folder of the package's files, units to start.
const boot = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc; mount -t sysfs -o ro sysfs sys; mount --rbind /dev dev
mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp
if [ -d /sys/fs/cgroup/systemd ]; then
	mount -t tmpfs tmpfs sys/fs/cgroup; mkdir sys/fs/cgroup/systemd
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
else
	mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
rm -rf etc/systemd/system; mkdir -p etc/systemd/system etc/vrnic
cp "$2" usr/bin/vrnic; cp "$3"/vrnic*.service "$3"/vrnic*.socket etc/systemd/system
cp "$3/vrnic.sysusers" usr/lib/sysusers.d/vrnic.conf; cp "$3/vrnic.yaml" etc/vrnic
echo 'device: two0,addr=10.88.0.2/24' > etc/vrnic/two.yaml
echo 0123456789abcdef0123456789abcdef > etc/machine-id
pivot_root . mnt; cd /; umount -l /mnt
systemd-sysusers vrnic.conf
exec env -i container=oci PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd \
	--log-target=console --show-status=0 --unit="$4" < /dev/null`

// A machine is one that systemd has started.
type machine struct {
	*site
	init string // the number of systemd's process
}

// newMachine boots one that starts a unit.
func newMachine(t *testing.T, unit string) *machine {
	t.Helper()
	need(t)
	if err := needtest.Missing("/lib/systemd/systemd", "systemctl", "unshare", "nsenter"); err != nil {
		needtest.Lacking(t, "podman", err)
	}
	dir, err := os.MkdirTemp("/run", "m")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // behind that of its processes
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	m := &machine{site: &site{t: t, dir: dir}}
	group := "/sys/fs/cgroup"
	if _, err := os.Stat(group + "/systemd"); err == nil {
		group += "/systemd"
	}
	group += "/vrnic-test-" + filepath.Base(dir)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, group) })
	files, err := filepath.Abs("../../packaging/debian")
	if err != nil {
		t.Fatal(err)
	}
	p := m.start("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group, "unshare",
		"--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--net", "--ipc", "--uts", "sh", "-c",
		boot, "sh", dir, program(), files, unit)
	proctest.Eventually(t, patience, "systemd runs", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID()))
		if err != nil {
			t.Fatalf("%v: %s", err, p.Tail())
		}
		m.init = strings.TrimSpace(string(children))
		is, err := os.ReadFile("/proc/" + m.init + "/comm")
		return m.init != "" && err == nil && string(is) == "systemd\n"
	})
	proctest.Eventually(t, patience, unit+" is there", func() bool {
		return m.try("systemctl", "is-active", unit) == "active\n"
	})
	return m
}

// removeGroup removes a control group, when all that was in it has gone.
func removeGroup(t *testing.T, group string) {
	proctest.Eventually(t, patience, "its control groups can go", func() bool {
		var all []string
		err := filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return err
		})
		slices.Reverse(all)
		for _, dir := range all {
			err = os.Remove(dir)
		}
		return len(all) == 0 || err == nil || os.IsNotExist(err)
	})
}

// inside are the words for a program there.
func (m *machine) inside(argv ...string) []string {
	return append([]string{"nsenter", "--target", m.init, "--all"}, argv...)
}

// do runs a program there, to a good end, and try to whichever.
func (m *machine) do(argv ...string) string {
	m.t.Helper()
	return m.run(m.inside(argv...)...)
}

func (m *machine) try(argv ...string) string {
	m.t.Helper()
	p := m.start(m.inside(argv...)...)
	_ = p.Wait(patience) // what it prints says whether it was well
	return p.Output()
}

// devices are those that a program sees which connects to a daemon's socket.
func (m *machine) devices(socket string) string {
	m.t.Helper()
	return m.do("/usr/bin/vrnic", "show", "dev", "--socket", socket)
}

// The package's units do what docs/operating.md says of them, under a real systemd with all that
// bounds them: the first program that connects has the daemon started, a reload takes the file or
// says why not, who is killed is started again, and a stop leaves nothing.
func TestSystemd(t *testing.T) {
	if !thorough() {
		needtest.Skip(t, "it boots a machine: make containers")
	}
	m := newMachine(t, "vrnic.socket")
	if out := m.try("systemctl", "is-active", "vrnic.service"); out != "inactive\n" {
		t.Errorf("before anybody connects vrnic.service is %s", out)
	}
	const socket = "/run/vrnic.sock"
	if out := m.devices(socket); !strings.Contains(out, "vrnic0") || !strings.Contains(out, "roce0") {
		t.Errorf("the first program sees\n%s", out)
	}
	// The daemon may have answered before systemd has heard that it is ready.
	proctest.Eventually(t, patience, "vrnic.service is active behind it", func() bool {
		return m.try("systemctl", "is-active", "vrnic.service") == "active\n"
	})
	main := func() string {
		return strings.TrimSpace(m.do("systemctl", "show", "--property=MainPID", "--value",
			"vrnic.service"))
	}
	first := main()
	if out := m.do("stat", "--format=%U", "/proc/"+first); out != "vrnic\n" {
		t.Errorf("the daemon is of user %s", out)
	}

	const file = "/etc/vrnic/vrnic.yaml"
	m.do("sh", "-c", "echo '  - late0,addr=10.77.0.9/24' >> "+file)
	m.do("systemctl", "reload", "vrnic.service")
	if out := m.devices(socket); !strings.Contains(out, "late0") {
		t.Errorf("after a reload there are\n%s", out)
	}
	m.do("sh", "-c", "echo 'colour: red' >> "+file)
	m.refused("systemctl status vrnic.service", m.inside("systemctl", "reload", "vrnic.service")...)
	if out := m.devices(socket); !strings.Contains(out, "late0") || main() != first {
		t.Errorf("after a reload that was refused there are\n%s", out)
	}
	m.do("sed", "-i", "/colour/d", file)

	m.do("kill", "-KILL", first)
	proctest.Eventually(t, patience, "another daemon is there", func() bool {
		now := main()
		return now != "0" && now != first
	})
	if out := m.devices(socket); !strings.Contains(out, "late0") {
		t.Errorf("the next daemon has\n%s", out)
	}

	m.do("systemctl", "restart", "vrnic.service")
	if out := m.devices(socket); !strings.Contains(out, "late0") {
		t.Errorf("after a restart there are\n%s", out)
	}

	m.do("systemctl", "start", "vrnic@two.socket", "vrnic@two.service")
	if out := m.devices("/run/vrnic-two.sock"); !strings.Contains(out, "two0") ||
		strings.Contains(out, "vrnic0") {
		t.Errorf("vrnic@two has\n%s", out)
	}
	m.do("systemctl", "stop", "vrnic.socket", "vrnic.service", "vrnic@two.socket", "vrnic@two.service")
	if out := m.try("systemctl", "--failed", "--no-legend", "--plain"); strings.Contains(out,
		"vrnic") {
		t.Errorf("in the end these have failed: %s", out)
	}
	if out := m.do("find", "/run", "-maxdepth", "1", "-name", "*vrnic*"); out != "" {
		t.Errorf("in the end there are %s", out)
	}
	if err := unix.Kill(atoi(t, m.init), unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
