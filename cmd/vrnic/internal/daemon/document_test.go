package daemon_test

import (
	"os"
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
	script := filepath.Join("testdata", "client.py")
	document := filepath.Join("..", "..", "..", "..", "docs", "abi.md")
	for _, f := range []string{script, document} { // so that go test knows of them
		if _, err := os.Stat(f); err != nil {
			t.Fatal(err)
		}
	}
	d := daemontest.Start(t)
	client := daemontest.Dial(t, d.Socket())
	addr := daemontest.Addr(t, daemontest.Open(t, client, "vrnic0"), false, 0)
	cmd := exec.CommandContext(t.Context(), python, script, document, d.Socket(),
		addr.Addr().String())
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
