package check

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A place may be in a file that is something else by now: a FIFO is not waited for.
func TestNoProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, n := tell(t, Options{}, strings.Replace(leak, "/no/such/program", path, 1)); n != 1 ||
		!strings.Contains(out, "made by fifo+0x1234") {
		t.Errorf("%d findings: %q", n, out)
	}
}

// What a shell stops it expects to be stopped: the program alone is not.
func TestJobControl(t *testing.T) {
	for _, s := range passed() {
		if s == unix.SIGTSTP || s == unix.SIGTTIN || s == unix.SIGTTOU {
			t.Errorf("%v is caught", s)
		}
	}
}
