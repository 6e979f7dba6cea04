package main

import (
	"os"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

func TestPathsForRootSaySo(t *testing.T) {
	if os.Geteuid() == 0 {
		needtest.AsNobody(t, t.Name())
		return
	}
	for _, path := range []string{"wire", "tap"} {
		status, _, stderr := call(t, "--path", path, "--vrnic", "/bin/true")
		if status != exitFailed || !strings.Contains(stderr, "root") {
			t.Errorf("%s: exit %d, stderr %q", path, status, stderr)
		}
	}
}
