package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A demoRun is `vrnic demo` with a temporary directory of its own.
type demoRun struct {
	t           *testing.T
	cmd         *exec.Cmd
	tmp         string
	out, stderr bytes.Buffer
}

func startDemo(t *testing.T) *demoRun {
	t.Helper()
	r := &demoRun{t: t, cmd: vrnicCommand(t, "demo"), tmp: t.TempDir()}
	r.cmd.Env = append(r.cmd.Env, "TMPDIR="+r.tmp)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// wait waits for the demo's end and checks that nothing is left of it.
func (r *demoRun) wait() (status int) {
	r.t.Helper()
	timer := time.AfterFunc(2*time.Minute, func() { r.cmd.Process.Kill() })
	err := r.cmd.Wait()
	if !timer.Stop() {
		r.t.Errorf("the demo hangs; it printed\n%s%s", &r.out, &r.stderr)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	if left, _ := os.ReadDir(r.tmp); len(left) > 0 {
		r.t.Errorf("the demo has left %v behind", left)
	}
	for _, p := range r.processes() {
		r.t.Errorf("process %d is left: %s", p.pid, p.args)
		syscall.Kill(p.pid, syscall.SIGKILL)
	}
	return r.cmd.ProcessState.ExitCode()
}

type demoProcess struct {
	pid  int
	args string
}

// processes are those that have the demo's directory among their arguments.
func (r *demoRun) processes() (ps []demoProcess) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(b, []byte(r.tmp)) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
		ps = append(ps, demoProcess{pid, string(bytes.ReplaceAll(b, []byte{0}, []byte{' '}))})
	}
	return ps
}

// stopDemo starts a demo and stops it when it has a process whose arguments hold what, which waits
// for the demo then, at the latest when its work is done.
func stopDemo(t *testing.T, what string) (*demoRun, demoProcess) {
	t.Helper()
	for range 20 {
		r := startDemo(t)
		if p, ok := r.stop(what); ok {
			return r, p
		}
		r.wait() // it was over before anybody looked, or nearly so
	}
	t.Fatalf("no demo was caught with a process %q", what)
	panic("unreachable")
}

// stop stops the demo when it has a process whose arguments hold what. false: that was missed.
func (r *demoRun) stop(what string) (p demoProcess, ok bool) {
	r.t.Helper()
	find := func() bool {
		for _, p = range r.processes() {
			if strings.Contains(p.args, what) {
				return true
			}
		}
		return false
	}
	for deadline := time.Now().Add(2 * time.Minute); !find(); time.Sleep(time.Millisecond) {
		if r.state() == 'Z' {
			return p, false
		}
		if time.Now().After(deadline) {
			r.cmd.Process.Kill()
			r.t.Fatalf("no process with %q, and the demo goes on", what)
		}
	}
	r.cmd.Process.Signal(syscall.SIGSTOP)
	for s := r.state(); s != 'T'; s = r.state() {
		if s == 'Z' {
			return p, false
		}
		time.Sleep(time.Millisecond) // before it looks again
	}
	if find() {
		return p, true
	}
	r.resume()
	return p, false
}

func (r *demoRun) resume() { r.cmd.Process.Signal(syscall.SIGCONT) }

// state is the state of the demo's own process: Z when it has ended, T when it is stopped.
func (r *demoRun) state() byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	i := bytes.LastIndex(b, []byte(") "))
	return b[i+2]
}

func TestDemo(t *testing.T) {
	r := startDemo(t)
	if status := r.wait(); status != 0 {
		t.Fatalf("exit %d: %s%s", status, &r.out, &r.stderr)
	}
	lines := strings.Split(strings.TrimRight(r.out.String(), "\n"), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "PASS") {
		t.Errorf("the last line is %q", last)
	}
	if len(lines) > 40 {
		t.Errorf("%d lines do not fit a terminal of 40:\n%s", len(lines), &r.out)
	}
	for _, line := range lines {
		if len(line) > 160 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
	if r.stderr.Len() > 0 {
		t.Errorf("stderr: %s", &r.stderr)
	}
}

func TestDemoInterrupted(t *testing.T) {
	for _, what := range []string{" up ", " server ", " client "} {
		r, _ := stopDemo(t, what)
		if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		r.resume()
		if status := r.wait(); status != exitFailed || !strings.Contains(r.stderr.String(),
			"interrupted") {
			t.Errorf("interrupted when there was%s: exit %d: %s", what, status, &r.stderr)
		}
	}
}

// Whichever of its processes dies, the demo says so and leaves nothing.
func TestDemoProcessDies(t *testing.T) {
	for _, what := range []string{"up", "server", "client"} {
		r, p := stopDemo(t, " "+what+" ")
		syscall.Kill(p.pid, syscall.SIGKILL)
		r.resume()
		if status := r.wait(); status != exitFailed || strings.Count(r.stderr.String(), "\n") != 1 {
			t.Errorf("%s killed: exit %d: %s%s", what, status, &r.out, &r.stderr)
		}
	}
}

// Should the demo itself be killed, its processes end too.
func TestDemoKilled(t *testing.T) {
	r, _ := stopDemo(t, " client ")
	r.cmd.Process.Kill()
	r.cmd.Wait()
	needtest.Eventually(t, "the demo's processes end", func() bool {
		return len(r.processes()) == 0
	})
}

// The two ends, in this process.
func TestDemoPeers(t *testing.T) {
	ctx := t.Context() // 54 MB under the race detector take as long as the machine lets them
	a, b := vnictest.Pair(t)
	client, server := vnictest.Open(t, a, vnic.ContextConfig{}),
		vnictest.Open(t, b, vnic.ContextConfig{})
	listening := make(chan netip.AddrPort, 1)
	var steps [2][]demoEvent
	served := make(chan error, 1)
	release := make(chan struct{})
	go func() {
		served <- demoServer(ctx, server, netip.AddrPortFrom(b.Config().Addrs[0].Addr(), 0),
			func(e demoEvent) {
				switch e.Event {
				case "listening":
					listening <- e.Addr
				case "step":
					steps[0] = append(steps[0], e)
				case "done":
					close(release) // the client disconnects when it may
				}
			})
	}()
	err := demoClient(ctx, client, <-listening, release, func(e demoEvent) {
		if e.Event == "step" {
			steps[1] = append(steps[1], e)
		}
	})
	if err != nil {
		t.Errorf("client: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	octets, messages := demoTotals(steps[0], steps[1])
	want := 0
	for _, size := range demoSizes {
		want += 2 * 3 * size * demoMessages
	}
	if octets != want || messages != 2*3*len(demoSizes)*demoMessages {
		t.Errorf("%d octets in %d messages, want %d octets", octets, messages, want)
	}
}

func TestDemoNoticesWrongData(t *testing.T) {
	p := &demoPeer{}
	b := make([]byte, 4096)
	demoFill(b, 5)
	if err := p.compare(b, 5); err != nil {
		t.Error(err)
	}
	for _, i := range []int{0, 511, 512, 4095} {
		b[i] ^= 1
		if err := p.compare(b, 5); !errors.Is(err, errDemoData) {
			t.Errorf("a change of octet %d: %v", i, err)
		}
		b[i] ^= 1
	}
	if p.compare(b, 6) == nil {
		t.Error("another seed has the same data")
	}
}

func TestDemoMessages(t *testing.T) {
	for _, m := range []demoMsg{{op: demoSend, size: 64, seed: 1<<63 + 5}, {op: demoAnswer, ok: true},
		{op: demoYield}, {op: demoRead, size: demoMaxSize}} {
		b := bytes.Repeat([]byte{0xff}, demoMsgLen)
		m.put(b)
		if got, err := parseDemoMsg(b); got != m || err != nil {
			t.Errorf("%+v came back as %+v, %v", m, got, err)
		}
		for n := range b {
			if _, err := parseDemoMsg(b[:n]); err == nil {
				t.Errorf("%d octets make a message", n)
			}
		}
	}
	for name, m := range map[string]demoMsg{"op 0": {}, "op high": {op: demoRecv},
		"size": {op: demoSend, size: demoMaxSize + 1}} {
		b := make([]byte, demoMsgLen)
		m.put(b)
		if _, err := parseDemoMsg(b); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
