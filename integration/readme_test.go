package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The Go program of the README runs as it stands there.
func TestReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	source, _, end := strings.Cut(rest, "```\n")
	if !ok || !end {
		t.Fatal("no Go program in the README")
	}
	// Run from here, a file by itself finds its imports in this module.
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gofmt", "-l", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("gofmt would change it: %s %v", out, err)
	}
	d := up(t, nil, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24")
	cmd := exec.Command("go", "run", file)
	cmd.Env = append(os.Environ(), "VRNIC_SOCKET="+d.socket)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "written by RDMA\n" {
		t.Errorf("it printed %q, %v", out, err)
	}
	d.stop()
}
