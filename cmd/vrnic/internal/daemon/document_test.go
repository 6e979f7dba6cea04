package daemon_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// docs/abi.md is enough to write a client from: one in Python, which reads the numbers from the
// document's tables and has no line of ours, moves data.
func TestClientOfTheDocument(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		needtest.Lacking(t, "python", err)
	}
	d := daemontest.Start(t)
	client := daemontest.Dial(t, d.Socket())
	addr := daemontest.Addr(t, daemontest.Open(t, client, "vrnic0"), false, 0)
	cmd := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "client.py"),
		filepath.Join("..", "..", "..", "..", "docs", "abi.md"), d.Socket(), addr.Addr().String())
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
