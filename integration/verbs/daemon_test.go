package verbs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/shm"
)

const (
	deviceA = "vrnic0,addr=10.77.0.2/24,addr=fd77::2/64"
	deviceB = "vrnic0,addr=10.77.0.3/24,addr=fd77::3/64"
	// As deviceB, beside deviceA.
	deviceB1 = "vrnic1,addr=10.77.0.3/24,addr=fd77::3/64"
)

// addrsA and addrsB are the devices' addresses, IPv4 and IPv6.
var (
	addrsA = [2]string{"10.77.0.2", "fd77::2"}
	addrsB = [2]string{"10.77.0.3", "fd77::3"}
)

// A daemon is a `vrnic up` that is ready.
type daemon struct {
	*process
	ns     *netlab.NS
	socket string
	uid    int         // of programs that are run; 0: the test's
	client *shm.Client // asks what there is
	before proctest.Holding
	stdin  *os.File // of programs that are run
	// checked is where the checker writes what it tells of programs, PROGRAM-NUMBER each; "": it does
	// not look at them
	checked string
}

// up starts a daemon with a socket of its own and waits until it is ready. At the test's end
// nothing may be left in it.
func up(t *testing.T, ns *netlab.NS, args ...string) *daemon {
	t.Helper()
	return upAs(t, ns, 0, args...)
}

// ownDir makes a folder of a user's, 0: the test's, that all can read.
func ownDir(t *testing.T, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp(workDir, "user-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, max(uid, os.Getuid()), -1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func upAs(t *testing.T, ns *netlab.NS, uid int, args ...string) *daemon {
	t.Helper()
	d := &daemon{ns: ns, socket: filepath.Join(ownDir(t, uid), "s")}
	d.process = start(t, ns, uid, []string{"GORACE=halt_on_error=0 exitcode=66 atexit_sleep_ms=50"},
		append([]string{daemonProgram, "up", "-v", "--socket", d.socket}, args...)...)
	d.WaitOutput("ready socket="+d.socket, 1)
	var err error
	if d.client, err = shm.Dial(d.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.client.Close() })
	running.Store(d, true)
	t.Cleanup(func() { running.Delete(d) })
	d.before = d.holding()
	t.Cleanup(func() {
		switch {
		case t.Failed():
			d.explain()
		case !d.Ended():
			d.settle()
			d.stop()
		}
	})
	return d
}

// stop ends the daemon as an operator does, which must leave nothing and succeed.
func (d *daemon) stop() {
	d.T.Helper()
	d.Signal(syscall.SIGTERM)
	d.succeed(patience)
	if _, err := os.Stat(d.socket); !errors.Is(err, os.ErrNotExist) {
		d.T.Errorf("the daemon left its socket: %v", err)
	}
}

// explain logs what the daemon has when a test has failed.
func (d *daemon) explain() {
	d.T.Helper()
	for _, kind := range []string{"client", "qp", "cm", "cq"} {
		rows, err := d.client.List(kind)
		if err != nil {
			d.T.Logf("show %s: %v", kind, err)
			return
		}
		for _, r := range rows {
			d.T.Logf("%s %s", kind, r)
		}
	}
}

// running has the daemons of all tests that run.
var running sync.Map

// daemonsSay is what the daemons have and what their goroutines are at, when something has not come
// in time. It ends them.
func daemonsSay() string {
	var out strings.Builder
	running.Range(func(key, _ any) bool {
		d := key.(*daemon)
		fmt.Fprintf(&out, "--- %s\n", d)
		rows := make(chan string, 1)
		go func() { // perhaps it does not answer
			var b strings.Builder
			say := func(kind string, rows []json.RawMessage, err error) {
				if err != nil {
					fmt.Fprintf(&b, "%s: %v\n", kind, err)
				}
				for _, r := range rows {
					fmt.Fprintf(&b, "%s %s\n", kind, r)
				}
			}
			for _, kind := range []string{"client", "qp", "cm", "cq"} {
				list, err := d.client.List(kind)
				say(kind, list, err)
			}
			list, err := d.client.Stat()
			say("stat", list, err)
			rows <- b.String()
		}()
		select {
		case s := <-rows:
			out.WriteString(s)
		case <-time.After(5 * time.Second):
			out.WriteString("it does not answer\n")
		}
		said := len(d.Output())
		_ = d.Cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
		select {
		case <-d.Done:
		case <-time.After(10 * time.Second):
		}
		out.WriteString(d.Output()[said:])
		return true
	})
	return out.String()
}

// show returns the daemon's rows of a kind.
func (d *daemon) show(kind string) []map[string]any {
	d.T.Helper()
	raw, err := d.client.List(kind)
	return d.decode(raw, err)
}

// stat returns the daemon's counters.
func (d *daemon) stat() []map[string]any {
	d.T.Helper()
	raw, err := d.client.Stat()
	return d.decode(raw, err)
}

func (d *daemon) decode(raw []json.RawMessage, err error) (rows []map[string]any) {
	d.T.Helper()
	if err != nil {
		d.T.Fatal(err)
	}
	for _, r := range raw {
		var row map[string]any
		if err := json.Unmarshal(r, &row); err != nil {
			d.T.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

func (d *daemon) holding() proctest.Holding {
	d.T.Helper()
	return proctest.HoldingOf(d.T, d.PID(), d.show)
}

// settle waits until the daemon holds what it held in the beginning: nothing of any program's.
// Descriptors beyond that are those of its own that it makes when it first needs them.
func (d *daemon) settle() {
	d.T.Helper()
	const own = 4
	var got proctest.Holding
	if !needtest.Within(patience, func() bool {
		got = d.holding()
		more := got.FDs - d.before.FDs
		same := got
		same.FDs = d.before.FDs
		return same == d.before && more <= own
	}) {
		d.T.Fatalf("the daemon holds %+v, held %+v in the beginning", got, d.before)
	}
}

// listens waits until n ids listen at a port; 0: at any.
func (d *daemon) listens(p *process, port, n int) {
	d.T.Helper()
	proctest.Eventually(d.T, patience, fmt.Sprintf("%s listens at port %d", p, port), func() bool {
		if p.Ended() {
			d.T.Fatalf("%s has ended (%v) and does not listen", p, p.Err)
		}
		found := 0
		for _, row := range d.show("cm") {
			local, _ := row["local"].(string)
			if row["state"] == "LISTEN" && (port == 0 || strings.HasSuffix(local,
				fmt.Sprintf(":%d", port))) {
				found++
			}
		}
		return found >= n
	})
}

// env is what a program needs to find the libraries and the daemon without `vrnic exec`. Its /sys
// is the kernel's: the keeper of another would be a client of the daemon, and settle counts those.
func (d *daemon) env() []string {
	return []string{"VRNIC_SOCKET=" + d.socket, "VRNIC_LIB_DIR=" + libs, "LD_LIBRARY_PATH=" + libs,
		"VRNIC_SYS=off"}
}

// start runs a program on the daemon. It has the libraries under test as `vrnic exec` gives them.
func (d *daemon) start(argv ...string) *process {
	d.T.Helper()
	return d.startEnv(nil, argv...)
}

// startOn is start with one of several devices.
func (d *daemon) startOn(dev string, argv ...string) *process {
	d.T.Helper()
	if dev == "" {
		return d.start(argv...)
	}
	return d.begin(d.env(), slices.Concat([]string{program, "exec", "-d", dev, "--"}, argv)...)
}

func (d *daemon) startEnv(env []string, argv ...string) *process {
	d.T.Helper()
	return d.begin(append(d.env(), env...), slices.Concat([]string{program, "exec", "--"}, argv)...)
}

func (d *daemon) begin(env []string, argv ...string) *process {
	d.T.Helper()
	if at := slices.Index(argv, "--"); d.checked != "" && at >= 0 {
		argv = slices.Insert(slices.Clone(argv), at, "--check", "--check-status", "0", "--check-json",
			filepath.Join(d.checked, fmt.Sprintf("%s-%d", filepath.Base(argv[at+1]), nextPort.Add(1))))
	}
	env, argv = sanitized(d.T, env, argv)
	return startWith(d.T, d.ns, d.uid, d.stdin, env, argv...)
}

// A place is where a program runs: a device of a daemon, at addrs.
type place struct {
	*daemon
	dev   string // "": the daemon has but one
	addrs [2]string
}

func (p *place) start(argv ...string) *process {
	p.T.Helper()
	return p.startOn(p.dev, argv...)
}

// A topology is two places that reach each other: of the server, and of the client.
type topology struct {
	name           string
	server, client *place
}

// settle wants nothing left on either side.
func (top *topology) settle() {
	top.server.T.Helper()
	top.server.settle()
	top.client.settle()
}

func oneDevice(t *testing.T) *topology {
	t.Helper()
	p := &place{up(t, nil, "--device", deviceA), "", addrsA}
	return &topology{"one device", p, p}
}

func twoDevices(t *testing.T) *topology {
	t.Helper()
	d := up(t, nil, "--device", deviceA, "--device", deviceB1)
	return &topology{"two devices", &place{d, "vrnic0", addrsA}, &place{d, "vrnic1", addrsB}}
}

func twoDaemons(t *testing.T) *topology {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	a := up(t, nil, "--device", deviceA, "--port", "unix-listen:"+link)
	b := up(t, nil, "--device", deviceB, "--port", "unix-connect:"+link)
	return &topology{"two daemons", &place{a, "", addrsA}, &place{b, "", addrsB}}
}

// overTAP is two daemons, with more args, on TAPs in two namespaces, joined by bridges.
func overTAP(t *testing.T, args ...string) *topology {
	t.Helper()
	return devicesOverTAP(t, deviceA, deviceB, args...)
}

// devicesOverTAP is that with such devices, at addrsA and addrsB.
func devicesOverTAP(t *testing.T, deviceA, deviceB string, args ...string) *topology {
	t.Helper()
	ns, err := netlab.NewNS() // tells whether it can be done
	if err != nil {
		needtest.Lacking(t, "root", err)
	}
	ns.Close()
	lab, err := netlab.NewLab()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	args = append(args, "--port", "tap:vtap0")
	a := up(t, lab.A, append(args, "--device", deviceA)...)
	b := up(t, lab.B, append(args, "--device", deviceB)...)
	for _, ns := range []*netlab.NS{lab.A, lab.B} {
		if err := lab.Plug(ns, "vtap0"); err != nil {
			t.Fatal(err)
		}
	}
	return &topology{"TAP", &place{a, "", addrsA}, &place{b, "", addrsB}}
}

var topologies = []struct {
	name string
	make func(t *testing.T) *topology
}{
	{"one device", oneDevice}, {"two devices", twoDevices}, {"two daemons", twoDaemons},
	{"TAP", func(t *testing.T) *topology { return overTAP(t) }},
}
