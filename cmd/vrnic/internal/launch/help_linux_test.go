package launch

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// openUp lets everybody through to a file that is below a directory of the test's.
func openUp(file string) error {
	for dir := filepath.Dir(file); dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// asNobody runs a test of this package in a process of another user's.
func asNobody(t *testing.T, test string, env ...string) {
	t.Helper()
	needtest.Root(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test's binary is in a directory of root's, maybe.
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "test")
	if err := os.WriteFile(copied, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := openUp(copied); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copied, "-test.v", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// inMountNS runs f, which must not end the test, on a thread with mounts of its own.
func inMountNS(t *testing.T, f func()) {
	t.Helper()
	needtest.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the thread ends with its mounts
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			t.Errorf("unshare: %v", err)
		} else if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			t.Errorf("mount: %v", err)
		} else {
			f()
		}
	}()
	<-done
}

// mounted is a directory of a file system of its own.
func mounted(t *testing.T, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", flags, "mode=755"); err != nil {
		t.Errorf("mount on %s: %v", dir, err)
	}
	return dir
}
