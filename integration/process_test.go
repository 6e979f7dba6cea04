package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// patience bounds every wait for something that must come; it is long because machines that run
// tests are slow at times, and costs nothing when all is well.
const patience = 30 * time.Second

// A process is a vrnic that a test started.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
	out  proctest.Output
}

// start runs vrnic with args, in ns if that is not nil, with env added to the environment. The
// test's end kills it if it still runs, and a failed test shows what it has printed.
func start(t *testing.T, ns *netlab.NS, env []string, args ...string) *process {
	t.Helper()
	path := program
	if args[0] == "up" {
		path = daemonProgram
	}
	p := &process{t: t, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=0 exitcode=66"), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	begin := p.cmd.Start
	if ns != nil {
		begin = func() error { return ns.Start(p.cmd) }
	}
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("vrnic %s (%v):\n%s", strings.Join(args, " "), p.cmd.ProcessState, p.output())
		}
		if strings.Contains(p.output(), "WARNING: DATA RACE") {
			t.Errorf("vrnic %s: data race:\n%s", strings.Join(args, " "), p.output())
		}
	})
	return p
}

func (p *process) output() string { return p.out.String() }

// signal sends sig; a process that has ended does not mind.
func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal %v: %v", sig, err)
	}
}

// waitOutput waits until the process has printed s n times.
func (p *process) waitOutput(s string, n int) {
	p.t.Helper()
	if err := p.out.Wait(s, n, p.done, patience); err != nil {
		p.t.Fatalf("%s %v:\n%s", p, err, p.output())
	}
}

func (p *process) String() string { return "vrnic " + strings.Join(p.cmd.Args[1:], " ") }

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for the end of the process for at most limit and returns how it ended.
func (p *process) wait(limit time.Duration) error {
	p.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		p.t.Fatalf("%s still runs after %v:\n%s", p, limit, p.output())
		return nil
	}
}

// succeed waits for exit status 0.
func (p *process) succeed() {
	p.t.Helper()
	if err := p.wait(patience); err != nil {
		p.t.Fatalf("%s: %v\n%s", p, err, p.output())
	}
}

// interrupt ends a server in the orderly way.
func (p *process) interrupt() {
	p.t.Helper()
	p.signal(syscall.SIGINT)
	p.succeed()
}

// A daemon is a `vrnic up` that is ready.
type daemon struct {
	*process
	ns     *netlab.NS
	socket string
}

// up starts a daemon with a socket of its own and waits until it is ready.
func up(t *testing.T, ns *netlab.NS, args ...string) *daemon {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	d := &daemon{ns: ns, socket: socket}
	d.process = start(t, ns, nil, append([]string{"up", "--socket", socket}, args...)...)
	d.waitOutput("ready socket="+socket, 1)
	return d
}

// stop ends the daemon as an operator does, which must leave nothing and succeed.
func (d *daemon) stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	d.succeed()
	if _, err := os.Stat(d.socket); !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("the daemon left its socket: %v", err)
	}
}

// start runs a client of the daemon.
func (d *daemon) start(args ...string) *process {
	d.t.Helper()
	return start(d.t, d.ns, []string{"VRNIC_SOCKET=" + d.socket}, args...)
}

// run runs a client of the daemon, which must succeed, and returns what it printed.
func (d *daemon) run(args ...string) string {
	d.t.Helper()
	p := d.start(args...)
	p.succeed()
	return p.output()
}

// show returns the rows of `vrnic show KIND --json`.
func (d *daemon) show(kind string) []map[string]any {
	d.t.Helper()
	out := d.run("show", kind, "--json")
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		d.t.Fatalf("show %s --json: %v\n%s", kind, err, out)
	}
	return rows
}

// serve starts a ping server that takes any number of clients and waits until it listens.
func (d *daemon) serve(args ...string) *process {
	d.t.Helper()
	p := d.start(append([]string{"ping", "-s", "-P"}, args...)...)
	p.waitOutput("listening on", 1)
	return p
}

// ping runs count verified rounds of size octets with the server at addr.
func (d *daemon) ping(addr string, count, size int, more ...string) {
	d.t.Helper()
	out := d.run(append([]string{"ping", "-c", "-a", addr, "-C", fmt.Sprint(count), "-S", fmt.Sprint(size), "-V"}, more...)...)
	if !strings.Contains(out, "data verified") {
		d.t.Errorf("ping did not verify its data: %s", out)
	}
}

// eventually waits until ok, which is asked again and again, and fails with what otherwise. It
// returns how long that took.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond) // before it looks again
	}
	return time.Since(begin)
}
