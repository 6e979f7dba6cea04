package containers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// insideVariable in the environment tells the test program that it is in namespaces of its own: its
// value is the directory for what the tests share.
const insideVariable = "VRNIC_TEST_CONTAINERS_DIR"

// workDir holds the program vrnic, the image, and what the runtimes store.
var workDir = os.Getenv(insideVariable)

// namespaces are those that the tests are in.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC

// program is the vrnic under test.
func program() string { return filepath.Join(workDir, "vrnic") }

// lacking says why there are no containers here; nil: there are.
var lacking error

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case ipamName:
		ipamMain()
		return
	case frontName:
		frontMain()
		return
	}
	os.Exit(func() int {
		if workDir == "" {
			if lacking = missing(); lacking != nil {
				return m.Run()
			}
			return again()
		}
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// missing says what keeps containers from being started.
func missing() error {
	if os.Geteuid() != 0 {
		return errors.New("only root makes namespaces of its own here")
	}
	try := exec.Command("/bin/true")
	try.SysProcAttr = &unix.SysProcAttr{Cloneflags: namespaces}
	if err := try.Run(); err != nil { // root of a container perhaps
		return fmt.Errorf("this root makes no namespaces of its own: %w", err)
	}
	if err := needtest.Missing("podman", "crun", "apt-cache", "dpkg-query", "ib_write_bw", "rping",
		"ibv_devinfo"); err != nil {
		return fmt.Errorf("%w; apt-get install podman crun perftest rdmacm-utils ibverbs-utils", err)
	}
	return nil
}

// need skips a test where there are no containers.
func need(t *testing.T) {
	t.Helper()
	if lacking != nil {
		needtest.Lacking(t, "podman", lacking)
	}
}

// again runs this program in namespaces, below a shell: the first process of one has to look after
// orphans, which runtimes have.
func again() int {
	dir, err := os.MkdirTemp("", "vrnic-containers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // other users' containers come from there
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "vrnic"),
		"github.com/vrnic/vrnic/cmd/vrnic")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n%s", build, err, out)
		return 1
	}
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", `"$@"; exit $?`, "sh", exe},
		os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// As a plugin this program runs often, and under the race detector would sleep a second at each
	// end.
	cmd.Env = append(os.Environ(), insideVariable+"="+dir,
		"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Cloneflags: namespaces}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// setUp makes the namespaces ready.
func setUp() error {
	for _, m := range []struct {
		what, at, kind string
		flags          uintptr
		data           string
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	} {
		if err := unix.Mount(m.what, m.at, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	// crun takes no hierarchy of both kinds; there may be none.
	if err := unix.Unmount("/sys/fs/cgroup/unified", 0); err != nil && err != unix.ENOENT &&
		err != unix.EINVAL {
		return fmt.Errorf("unmount the second hierarchy of control groups: %w", err)
	}
	return makeImage(imageFile())
}
