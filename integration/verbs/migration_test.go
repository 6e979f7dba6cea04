package verbs

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const qemuWords = "qemu-system-x86_64 -machine q35,accel=tcg -m 64 -display none -S -nodefaults " +
	"-monitor stdio"

// migrate has QEMU move a machine's memory, on qemuWords.
func migrate(t *testing.T, top *topology) {
	t.Helper()
	need(t, programOf(qemuWords))
	to := fmt.Sprintf("rdma:%s:%d", top.server.addrs[0], nextPort.Add(1))
	// A monitor reads commands until it is told to end.
	command := func(p *place, lines ...string) (*process, *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		defer r.Close()
		in := p.in(t)
		in.stdin = r
		for _, l := range lines {
			fmt.Fprintln(w, l)
		}
		extra := []string{}
		if len(lines) == 0 {
			extra = []string{"-incoming", to}
		}
		return in.startWith([]string{"TERM=dumb"}, append(strings.Fields(qemuWords), extra...)...), w
	}
	target, told := command(top.server)
	top.server.in(t).listens(target, 0, 1)
	source, asked := command(top.client, "migrate "+to, "info migrate")
	source.WaitOutput("Migration status: completed", 1)
	fmt.Fprintln(asked, "quit")
	source.succeed(patience)
	fmt.Fprintln(told, "info status")
	target.WaitOutput("VM status: paused", 1)
	fmt.Fprintln(told, "quit")
	target.succeed(patience, "!rdma: ", "![Ee]rror while")
}
