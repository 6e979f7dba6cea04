package verbs

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
)

// program is the vrnic that clients are run with, and daemonProgram the one that runs daemons:
// with the race detector if the tests have it.
var program, daemonProgram string

// libs is where the libraries under test are, and workDir where programs in C are built.
var libs, workDir string

// topDir is the repository's.
const topDir = "../.."

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if sanitize == nil {
			fmt.Fprintln(os.Stderr, "VRNIC_TEST_SANITIZE is none of address, thread and valgrind")
			return 2
		}
		patience *= time.Duration(sanitize.slowness)
		// Behind & in a script SIGINT is ignored, and so it would be by programs that are sent it.
		if signal.Ignored(os.Interrupt) {
			signal.Notify(make(chan os.Signal, 1), os.Interrupt)
		}
		dir, err := os.MkdirTemp("", "vrnic-verbs-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // other users run programs in it
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		workDir = dir
		program = filepath.Join(dir, "vrnic")
		daemonProgram = program
		builds := [][]string{{"go", "build", "-o", program, "github.com/vrnic/vrnic/cmd/vrnic"}}
		if len(sanitize.preload) > 0 {
			// Static: what is preloaded is for programs. As in Debian packages, so that it is compiled once.
			builds[0] = slices.Concat([]string{"env", "CGO_ENABLED=0", "go", "build", "-trimpath"},
				builds[0][2:])
		}
		if raceDetector {
			daemonProgram = filepath.Join(dir, "vrnic-race")
			builds = append(builds, []string{"go", "build", "-race", "-o", daemonProgram,
				"github.com/vrnic/vrnic/cmd/vrnic"})
		}
		// VRNIC_TEST_LIBS names libraries that are there, such as ones built with a sanitizer. What is
		// used is a copy: other users may not get to where they are.
		if from := os.Getenv("VRNIC_TEST_LIBS"); from != "" {
			libs = filepath.Join(dir, "lib")
			builds = append(builds, []string{"sh", "-c", `mkdir "$1" && cp -P "$0"/*.so* "$1"`, from, libs})
		} else if len(missing("gcc", "make")) == 0 {
			libs = filepath.Join(dir, "lib")
			builds = append(builds, append([]string{"make", "-s", "-C", filepath.Join(topDir, "verbs"),
				"BUILD=" + libs}, sanitize.build...))
		}
		for _, args := range builds {
			cmd := exec.Command(args[0], args[1:]...)
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n%s", cmd, err, out)
				return 1
			}
		}
		code := m.Run()
		if thorough() {
			printTable(os.Stdout)
		}
		if err := keepOutcomes(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// packages says which of Debian's packages has a program, or a file.
var packages = map[string]string{
	"gcc": "gcc", "musl-gcc": "musl-tools", "make": "make", "clang": "clang", "valgrind": "valgrind",
	"rping": "rdmacm-utils", "ucmatose": "rdmacm-utils", "rdma_server": "rdmacm-utils",
	"rdma_client":  "rdmacm-utils",
	"rdma_xserver": "rdmacm-utils", "rdma_xclient": "rdmacm-utils", "cmtime": "rdmacm-utils",
	"rstream": "rdmacm-utils", "riostream": "rdmacm-utils", "rcopy": "rdmacm-utils",
	"udpong":      "rdmacm-utils",
	"ibv_devices": "ibverbs-utils", "ibv_devinfo": "ibverbs-utils", "ibv_asyncwatch": "ibverbs-utils",
	"ibv_rc_pingpong": "ibverbs-utils", "ibv_uc_pingpong": "ibverbs-utils",
	"ibv_ud_pingpong": "ibverbs-utils", "ibv_srq_pingpong": "ibverbs-utils",
	"ibv_xsrq_pingpong": "ibverbs-utils",
	"udaddy":            "rdmacm-utils", "mckey": "rdmacm-utils", "stdbuf": "coreutils",
	"/usr/bin/python3": "python3-pyverbs", pythonTests: "python3-pyverbs",
	"run_tests.py": "python3-pyverbs",
	"dapltest":     "dapl2-utils",
	"dtest":        "dapl2-utils",
	"dtestcm":      "dapl2-utils",
	"dtestsrq":     "dapl2-utils",
	"dtestx":       "dapl2-utils",
	"ucx_info":     "ucx-utils", "ucx_perftest": "ucx-utils", "ucp_client_server": "libucx-dev",
	ucxExampleSource: "libucx-dev",
	"binding.go":     "librdmacm-dev", "binding.rs": "libibverbs-dev", "go": "golang-go",
	"qemu-system-x86_64": "qemu-system-x86",
	"tgtd":               "tgt", "tgtadm": "tgt", "iscsi-inq": "libiscsi-bin",
	"iscsi-readcapacity16": "libiscsi-bin", "iscsi-perf": "libiscsi-bin",
	"iscsi-test-cu":  "libiscsi-bin",
	"mpirun.openmpi": "openmpi-bin", "mpicc.openmpi": "libopenmpi-dev",
	"mpirun.mpich": "mpich", "mpicc.mpich": "libmpich-dev",
	"redis-server": "redis-server", "redis-cli": "redis-tools", "redis-benchmark": "redis-tools",
	"ssh": "openssh-client", "sftp": "openssh-client", sshdPath: "openssh-server",
	nginxPath: "nginx-light",
	"fio":     "fio", "fi_info": "libfabric-bin", "fi_pingpong": "libfabric-bin",
	"/usr/include/infiniband/verbs.h": "libibverbs-dev",
	"/usr/include/rdma/rdma_cma.h":    "librdmacm-dev",
}

func packageOf(name string) string {
	if p := packages[name]; p != "" {
		return p
	}
	if strings.HasPrefix(name, "ib_") {
		return "perftest"
	}
	return name
}

// missing returns the packages that programs and files are lacking of.
func missing(names ...string) (pkgs []string) {
	for _, n := range names {
		var err error
		if filepath.IsAbs(n) {
			_, err = os.Stat(n)
		} else {
			_, err = exec.LookPath(n)
		}
		if p := packageOf(n); err != nil && !slices.Contains(pkgs, p) {
			pkgs = append(pkgs, p)
		}
	}
	return pkgs
}

// need skips a test that needs programs which are not there.
func need(t *testing.T, names ...string) {
	t.Helper()
	if m := missing(names...); len(m) > 0 {
		needtest.Lacking(t, "verbs", "packages are missing: apt-get install "+strings.Join(m, " "))
	}
	if libs == "" {
		needtest.Lacking(t, "verbs", "the libraries cannot be built: apt-get install gcc make libc6-dev")
	}
}

// thorough reports whether everything is to be run: `make verbs-programs`.
func thorough() bool { return os.Getenv("VRNIC_TEST_VERBS") == "all" }
