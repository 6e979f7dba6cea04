package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
type process struct{ *proctest.Process }

// start runs vrnic with args, in ns if that is not nil, with env added to the environment.
func start(t *testing.T, ns *netlab.NS, env []string, args ...string) *process {
	t.Helper()
	path := program
	if args[0] == "up" {
		path = daemonProgram
	}
	return startProgram(t, ns, env, path, args...)
}

// startProgram is start with another program.
func startProgram(t *testing.T, ns *netlab.NS, env []string, path string, args ...string) *process {
	t.Helper()
	cfg := proctest.Config{
		NS: ns, Env: append([]string{"GORACE=halt_on_error=0 exitcode=66 atexit_sleep_ms=50"}, env...),
		Patience: patience, Late: (*proctest.Process).Output,
	}
	return &process{proctest.Start(t, cfg, append([]string{path}, args...)...)}
}

// succeed waits for exit status 0.
func (p *process) succeed() {
	p.T.Helper()
	if err := p.Wait(patience); err != nil {
		p.T.Fatalf("%s: %v\n%s", p, err, p.Output())
	}
}

// interrupt ends a server in the orderly way.
func (p *process) interrupt() {
	p.T.Helper()
	p.Signal(syscall.SIGINT)
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
	d.WaitOutput("ready socket="+socket, 1)
	return d
}

// stop ends the daemon as an operator does, which must leave nothing and succeed.
func (d *daemon) stop() {
	d.T.Helper()
	d.Signal(syscall.SIGTERM)
	d.succeed()
	if _, err := os.Stat(d.socket); !errors.Is(err, os.ErrNotExist) {
		d.T.Errorf("the daemon left its socket: %v", err)
	}
}

// start runs a client of the daemon.
func (d *daemon) start(args ...string) *process {
	d.T.Helper()
	return start(d.T, d.ns, []string{"VRNIC_SOCKET=" + d.socket}, args...)
}

// run runs a client of the daemon, which must succeed, and returns what it printed.
func (d *daemon) run(args ...string) string {
	d.T.Helper()
	p := d.start(args...)
	p.succeed()
	return p.Output()
}

// show returns the rows of `vrnic show KIND --json`.
func (d *daemon) show(kind string) []map[string]any {
	d.T.Helper()
	out := d.run("show", kind, "--json")
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		d.T.Fatalf("show %s --json: %v\n%s", kind, err, out)
	}
	return rows
}

// serve starts a ping server that takes any number of clients and waits until it listens.
func (d *daemon) serve(args ...string) *process {
	d.T.Helper()
	p := d.start(append([]string{"ping", "-s", "-P"}, args...)...)
	p.WaitOutput("listening on", 1)
	return p
}

// ping runs count verified rounds of size octets with the server at addr.
func (d *daemon) ping(addr string, count, size int, more ...string) {
	d.T.Helper()
	out := d.run(append([]string{"ping", "-c", "-a", addr, "-C", fmt.Sprint(count), "-S",
		fmt.Sprint(size), "-V"}, more...)...)
	if !strings.Contains(out, "data verified") {
		d.T.Errorf("ping did not verify its data: %s", out)
	}
}
