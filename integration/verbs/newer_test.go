package verbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// newerPackages are Debian's programs of RDMA with all that they load but our libraries.
var newerPackages = []string{"libc6", "rdmacm-utils", "ibverbs-utils", "perftest", "qperf",
	"libibumad3", "libpci3", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200", "libudev1",
	"zlib1g", "libcap2"}

// V1: the programs of newer releases of Debian, linked against newer libraries, run on ours from a
// folder, with the C library and the loader that they have been built for.
func TestNewerDebian(t *testing.T) {
	if !thorough() {
		needtest.Lacking(t, "time", "make verbs-programs fetches packages of newer releases of Debian")
	}
	need(t, "apt-get", "dpkg-deb")
	lib := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu"
	loader := map[string]string{"amd64": "ld-linux-x86-64.so.2",
		"arm64": "ld-linux-aarch64.so.1"}[runtime.GOARCH]
	for _, suite := range []string{"trixie", "sid"} {
		t.Run(suite, func(t *testing.T) {
			root := unpackedRoot(t, suite, newerPackages)
			libDir := filepath.Join(root, "usr/lib", lib)
			// One device: a listener at any address of two is at the first one's before the second's.
			d := up(t, nil, "--device", "vrnic0,addr=10.77.0.2/24")
			// The shell is this machine's: the variable is for what it becomes.
			run := func(argv ...string) *process {
				script := fmt.Sprintf(`p=$1; shift; LD_LIBRARY_PATH=$LD_LIBRARY_PATH:%s exec `+
					`%s %s/$p "$@"`, libDir, filepath.Join(libDir, loader), filepath.Join(root, "usr/bin"))
				return d.start(append([]string{"sh", "-c", script, "sh"}, argv...)...)
			}
			run("ibv_devices").succeed(patience, "vrnic0")
			run("ibv_devinfo", "-v", "-d", "vrnic0").succeed(patience, "PORT_ACTIVE", "iWARP")
			// Each at a port of its own: the daemon hears of a listener's end a moment after it.
			port := 7400
			pair := func(server, client []string, want ...string) {
				t.Helper()
				for {
					port++
					p := run(append(slices.Clone(server), "-p", strconv.Itoa(port))...)
					d.listens(p, port, 1)
					c := run(append(slices.Clone(client), "-p", strconv.Itoa(port))...)
					_ = c.Wait(patience)
					if strings.Contains(c.Output(), perfTooEarly) && port < 7420 {
						p.Signal(syscall.SIGKILL)
						_ = p.Wait(patience)
						continue
					}
					c.succeed(patience, want...)
					p.succeed(patience)
					return
				}
			}
			pair([]string{"rping", "-s", "-a", "10.77.0.2", "-C", "10", "-V"},
				[]string{"rping", "-c", "-a", "10.77.0.2", "-C", "10", "-v", "-V"},
				"ping data: rdma-ping-9", "!mismatch")
			for _, program := range []string{"ib_write_bw", "ib_read_lat", "ib_send_bw"} {
				args := []string{program, "-R", "-F", "-d", "vrnic0", "-n", "100"}
				pair(args, append(slices.Clone(args), "10.77.0.2"), "#bytes")
			}
		})
	}
}

var (
	sourceSuites = regexp.MustCompile(`(?m)^Suites:.*`)
	sourceStanza = regexp.MustCompile(`(?s)^Types:.*?(\n\n|$)`)
)

// unpackedRoot is a folder with what is in packages of a release of Debian, from where this machine
// gets its own.
func unpackedRoot(t *testing.T, suite string, names []string) string {
	t.Helper()
	source, err := os.ReadFile("/etc/apt/sources.list.d/debian.sources")
	if err != nil {
		needtest.Lacking(t, "debian", err)
	}
	dir := filepath.Join(workDir, "root-"+suite)
	for _, d := range []string{"parts", "lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := sourceSuites.ReplaceAllString(sourceStanza.FindString(string(source)), "Suites: "+suite)
	conf := fmt.Sprintf("Dir::Etc::sourcelist \"/dev/null\";\n"+
		"Dir::Etc::sourceparts \"%[1]s/parts\";\nDir::State::lists \"%[1]s/lists\";\n"+
		"Dir::State::status \"%[1]s/status\";\nDir::Cache \"%[1]s/cache\";\n", dir)
	for name, text := range map[string]string{"parts/newer.sources": text, "apt.conf": conf,
		"status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	apt := func(args ...string) error {
		cmd := exec.Command("apt-get", append([]string{"-q"}, args...)...)
		cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"))
		cmd.Dir = filepath.Join(dir, "cache")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := apt("update"); err != nil {
		needtest.Lacking(t, "debian", err)
	}
	if err := apt(slices.Concat([]string{"download"}, names)...); err != nil {
		needtest.Lacking(t, "debian", err)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "cache", "*.deb"))
	if err != nil || len(packages) != len(names) {
		t.Fatalf("%d packages, %v", len(packages), err)
	}
	for _, p := range packages {
		unpack := exec.Command("dpkg-deb", "-x", p, filepath.Join(dir, "root"))
		if out, err := unpack.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", p, err, out)
		}
	}
	return filepath.Join(dir, "root")
}
