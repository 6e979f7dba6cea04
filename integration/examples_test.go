package integration

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
)

// examples builds the programs of examples, with the race detector if the tests have it.
var examples = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(filepath.Dir(program), "examples")
	args := []string{"build", "-o", dir + "/"}
	if raceDetector {
		args = append(args, "-race")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", append(args, "github.com/vrnic/vrnic/examples/...")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return dir, nil
})

// example starts a program of examples on a device.
func (d *daemon) example(device, name string, args ...string) *process {
	d.T.Helper()
	dir, err := examples()
	if err != nil {
		d.T.Fatal(err)
	}
	env := []string{"VRNIC_SOCKET=" + d.socket}
	return startProgram(d.T, nil, env, filepath.Join(dir, name),
		append([]string{"-device", device}, args...)...)
}

// exampleServer starts a server at a free port of vrnic0 and returns where it listens.
func (d *daemon) exampleServer(name, verb string, more ...string) (server *process, addr string) {
	d.T.Helper()
	server = d.example("vrnic0", name, append([]string{verb, "10.77.0.2:0"}, more...)...)
	server.WaitOutput("\n", 1)
	addr, ok := strings.CutPrefix(server.Output(), "listening on ")
	if !ok {
		d.T.Fatalf("%s: %s", server, server.Output())
	}
	return server, strings.TrimSpace(addr)
}

// says waits for the end of an example, with success or without, and for what it prints.
func (p *process) says(success bool, want string) {
	p.T.Helper()
	err := p.Wait(patience)
	if out := p.Output(); (err == nil) != success || !regexp.MustCompile(want).MatchString(out) {
		p.T.Errorf("%s: %v, it printed %q, want %q", p, err, out, want)
	}
}

// upForExamples is a daemon with the two devices that the examples' comments have.
func upForExamples(t *testing.T) *daemon {
	t.Helper()
	return up(t, nil, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24")
}

// endsWell interrupts a server, which must leave nothing, and stops the daemon.
func (d *daemon) endsWell(server *process) {
	d.T.Helper()
	proctest.Eventually(d.T, patience, "the server has no QP left", func() bool {
		return len(d.show("qp")) == 0
	})
	server.interrupt()
	d.stop()
}

// Many clients of the RPC server at once, calls that fail, and a client that dies.
func TestExampleRPC(t *testing.T) {
	d := upForExamples(t)
	server, addr := d.exampleServer("rpc", "serve")
	var clients []*process
	for i := range 8 {
		clients = append(clients,
			d.example("vrnic1", "rpc", "call", addr, "sum", fmt.Sprintf("%d 1000", i), "40 2", ""))
	}
	for i, c := range clients {
		c.says(true, fmt.Sprintf("^%d\n42\n0\n$", 1000+i))
	}
	d.example("vrnic0", "rpc", "call", addr, "upper", "on the server's own device").
		says(true, "^ON THE SERVER'S OWN DEVICE\n$")
	d.example("vrnic1", "rpc", "call", addr, "sum", "1 x").
		says(false, `^rpc: sum: "x" is not a number\n$`)
	d.example("vrnic1", "rpc", "call", addr, "halve", "1").says(false, `no method "halve"`)
	d.example("vrnic1", "rpc", "call", addr, "upper", strings.Repeat("x", 1018)).
		says(true, "^X+\n$")
	d.example("vrnic1", "rpc", "call", addr, "upper", strings.Repeat("x", 1019)).
		says(false, "1025 octets")
	// The capital of this letter is longer than the letter.
	d.example("vrnic1", "rpc", "call", addr, "upper", strings.Repeat("ɐ", 509)).
		says(false, "the answer is too long")

	// One whose calls never end is killed: the others do not notice.
	endless := d.example("vrnic1", "rpc", append([]string{"call", addr, "sum"},
		strings.Fields(strings.Repeat("1 ", 50000))...)...)
	endless.WaitOutput("1\n", 10)
	endless.Signal(syscall.SIGKILL)
	d.example("vrnic1", "rpc", "call", addr, "sum", "7").says(true, "^7\n$")
	d.endsWell(server)
}

// Writers and readers of one key and of many, at once.
func TestExampleKV(t *testing.T) {
	d := upForExamples(t)
	server, addr := d.exampleServer("kv", "serve")
	d.example("vrnic1", "kv", "get", addr, "colour").says(false, `there is no "colour"`)
	d.example("vrnic1", "kv", "put", addr, "colour", "blue").says(true, "^$")
	var clients []*process
	for i := range 4 {
		clients = append(clients,
			d.example("vrnic1", "kv", "put", addr, "colour", fmt.Sprintf("green%d", i)),
			d.example("vrnic0", "kv", "put", addr, fmt.Sprintf("key%d", i), fmt.Sprint(i)),
			d.example("vrnic1", "kv", "get", addr, "colour"))
	}
	for i, c := range clients {
		if i%3 == 2 {
			c.says(true, "^(blue|green[0-3])\n$")
		} else {
			c.says(true, "^$")
		}
	}
	d.example("vrnic1", "kv", "get", addr, "colour").says(true, "^green[0-3]\n$")
	for i := range 4 {
		d.example("vrnic1", "kv", "get", addr, fmt.Sprintf("key%d", i)).
			says(true, fmt.Sprintf("^%d\n$", i))
	}
	d.example("vrnic1", "kv", "put", addr, "k", strings.Repeat("v", 239)).says(true, "^$")
	d.example("vrnic1", "kv", "get", addr, "k").says(true, "^v+\n$")
	d.example("vrnic1", "kv", "put", addr, "k", strings.Repeat("v", 240)).
		says(false, "at most 240 octets")
	d.example("vrnic1", "kv", "put", addr, "", "v").says(false, "want a key")
	d.endsWell(server)
}

// Files of all kinds of lengths arrive whole, several at once; others are refused with a word.
func TestExampleCopy(t *testing.T) {
	d := upForExamples(t)
	from, to := t.TempDir(), t.TempDir()
	receiver, addr := d.exampleServer("copy", "receive", to)
	var paths []string
	for _, n := range []int{0, 1, 65535, 65536, 65537, 8 * 65536, 8*65536 + 1, 3 << 20} {
		path := filepath.Join(from, fmt.Sprintf("file%d", n))
		data := make([]byte, n)
		rand.Read(data)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	all := d.example("vrnic1", "copy", append([]string{"send", addr}, paths[:6]...)...)
	d.example("vrnic0", "copy", append([]string{"send", addr}, paths[6:]...)...).says(true, "^$")
	all.says(true, "^$")
	for _, p := range paths {
		want, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(to, filepath.Base(p)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what was sent: %v", filepath.Base(p), err)
		}
	}
	if files, _ := os.ReadDir(to); len(files) != len(paths) {
		t.Errorf("the receiver's directory holds %v", files)
	}
	d.example("vrnic1", "copy", "send", addr, from).says(false, "want a regular file")
	d.example("vrnic1", "copy", "send", addr, from+"/none").says(false, "no such file")

	nowhere, other := d.exampleServer("copy", "receive", filepath.Join(to, "none"))
	d.example("vrnic1", "copy", "send", other, paths[0]).says(false, "no such file or directory")
	nowhere.interrupt()
	d.endsWell(receiver)
}

// A receiver that posts its receives late gets every message by ROI, at its own pace: the sender's
// wait for it. By iWARP they wait at the receiver, which ends the connection after 5 s.
func TestExampleSlow(t *testing.T) {
	d := upForExamples(t)
	server := d.example("vrnic0", "slow", "-pause", "100ms", "receive", "10.77.0.2:0")
	server.WaitOutput("\n", 1)
	addr := strings.TrimSpace(strings.TrimPrefix(server.Output(), "listening on "))
	d.example("vrnic1", "slow", "-roi", "send", addr, "8").
		says(true, `^( *[0-9.]+ s: message [1-8] is out\n){8} *[0-9.]+ s: all have arrived\n$`)
	server.WaitOutput("ROI: the sender has closed\n", 1)
	proctest.Eventually(t, patience, "the receiver keeps nothing of a sender", func() bool {
		return len(d.show("mr")) == 0 && len(d.show("cq")) == 0
	})
	server.interrupt()

	server = d.example("vrnic0", "slow", "-pause", "1h", "receive", "10.77.0.2:0")
	server.WaitOutput("\n", 1)
	addr = strings.TrimSpace(strings.TrimPrefix(server.Output(), "listening on "))
	waits := d.example("vrnic1", "slow", "-roi", "send", addr, "1")
	proctest.Eventually(t, patience, "the sender is connected", func() bool {
		return len(d.show("qp")) == 2
	})
	waits.interrupt()
	server.WaitOutput("ROI: ", 1)
	d.example("vrnic1", "slow", "send", addr, "3").
		says(false, `slow: after [0-9.]+ s: terminated by the peer: no receive buffer`)
	server.WaitOutput("iWARP: ", 1)
	d.endsWell(server)
}

// Wrong use is told in words, with the status of wrong use; and so is that there is no server, no
// such device, no daemon.
func TestExamplesWrongUse(t *testing.T) {
	d := upForExamples(t)
	for _, args := range []string{
		"rpc", "rpc serve", "rpc serve here:1", "rpc -what",
		"rpc call 10.77.0.2:1", "rpc call 10.77.0.2:1 sum",
		"kv", "kv get 10.77.0.2:1", "kv put 10.77.0.2:1 key", "kv drop 10.77.0.2:1",
		"kv get 10.77.0.2 key",
		"copy", "copy send 10.77.0.2:1", "copy receive 10.77.0.2:1", "copy send 10.77.0.2 file",
		"slow", "slow send 10.77.0.2:1", "slow send 10.77.0.2:1 some", "slow receive here", "slow keep 1",
	} {
		f := strings.Fields(args)
		p := d.example("vrnic1", f[0], f[1:]...)
		p.says(false, "usage: |ParseAddr|not an ip:port")
		if status := p.Cmd.ProcessState.ExitCode(); status != 2 {
			t.Errorf("%s: exit %d, want 2", args, status)
		}
	}
	for _, args := range []string{"rpc call 10.77.0.2:9 sum 1", "kv get 10.77.0.2:9 key"} {
		f := strings.Fields(args)
		d.example("vrnic1", f[0], f[1:]...).says(false, "refused")
		d.example("vrnic7", f[0], f[1:]...).says(false, `no device "vrnic7"`)
	}
	d.stop()
	d.example("vrnic1", "rpc", "call", "10.77.0.2:9", "sum", "1").says(false, "vrnic up")
}
