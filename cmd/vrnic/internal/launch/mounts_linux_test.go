package launch

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// openUp lets everybody through to a file that is below a directory of the test's.
func openUp(file string) error {
	for dir := filepath.Dir(file); dir != filepath.Clean(os.TempDir()) &&
		dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
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
