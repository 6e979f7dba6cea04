package needtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// AsNobody runs a test of the package in a process of another user's.
func AsNobody(t *testing.T, test string, env ...string) {
	t.Helper()
	Root(t)
	// The test's binary is in a directory of root's.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	here := filepath.Join(dir, "test")
	if err := errors.Join(os.Chmod(dir, 0o755), linkOrCopy(self, here)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(here, "-test.v", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// linkOrCopy has a program at another place too. What is linked cannot be busy, as what has just
// been written can be.
func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
