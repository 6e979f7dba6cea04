package verbs

import (
	"os"
	"testing"
)

// A victim transfers data and verifies it until in is closed.
type victim struct {
	*process
	in *os.File
}

func (top *topology) startVictim(t *testing.T) *victim {
	t.Helper()
	path := cProgram(t, "hostile")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	d := top.server.in(t)
	d.stdin = r
	v := &victim{d.startEnv([]string{"VT_SERVER=" + top.server.addrs[0], "VT_CLIENT=" +
		top.client.addrs[0]}, path, "victim"), w}
	r.Close()
	v.WaitOutput("transfers", 1)
	return v
}

// unharmed has it end, and say that all was well.
func (v *victim) unharmed() {
	v.T.Helper()
	v.in.Close()
	v.succeed(patience, "^ok victim$")
}
