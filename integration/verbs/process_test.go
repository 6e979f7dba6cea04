package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// patience bounds every wait for something that must come; it is long because machines that run
// tests are slow at times, and costs nothing when all is well.
var patience = 30 * time.Second

// A process is one that a test started, with a process group of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
	out  proctest.Output
}

// start runs argv, in ns if that is not nil, with env added to the environment. The test's end
// kills it if it still runs, and a failed test shows what it has printed.
func start(t *testing.T, ns *netlab.NS, uid int, env []string, argv ...string) *process {
	t.Helper()
	return startWith(t, ns, uid, nil, env, argv...)
}

// startWith is start with a standard input.
func startWith(t *testing.T, ns *netlab.NS, uid int, stdin *os.File, env []string, argv ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.Dir = workDir
	if stdin != nil {
		p.cmd.Stdin = stdin
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A grandchild that is left must not keep Wait from returning.
	p.cmd.WaitDelay = 2 * time.Second
	if uid != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	begin := p.cmd.Start
	if ns != nil {
		begin = func() error { return ns.Start(p.cmd) }
	}
	if err := begin(); err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.killGroup()
		<-p.done
		if t.Failed() {
			t.Logf("%s (%v):\n%s", p, p.cmd.ProcessState, tail(p.output()))
		}
		p.sanitizerSays()
		if strings.Contains(p.output(), "WARNING: DATA RACE") {
			t.Errorf("%s: data race:\n%s", p, p.output())
		}
	})
	return p
}

// tail is the end of what a process has said, where a failure's cause is.
func tail(s string) string {
	const most = 6000
	if len(s) > most {
		return "...\n" + s[len(s)-most:]
	}
	return s
}

func (p *process) output() string { return p.out.String() }
func (p *process) String() string { return strings.Join(p.cmd.Args, " ") }
func (p *process) pid() int       { return p.cmd.Process.Pid }

// signal sends sig; a process that has ended does not mind.
func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal %v: %v", sig, err)
	}
}

// killGroup ends the process and what it has started. The group may outlive the process.
func (p *process) killGroup() { _ = syscall.Kill(-p.pid(), syscall.SIGKILL) }

// kill ends the process as kill -9 does and waits for it.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// waitOutput waits until the process has printed s n times.
func (p *process) waitOutput(s string, n int) {
	p.t.Helper()
	err := p.out.Wait(s, n, p.done, patience)
	switch {
	case err == nil:
	case p.ended():
		p.t.Fatalf("%s %v", p, err)
	default:
		p.t.Fatalf("%s %v\n%s", p, err, p.stacks()+daemonsSay())
	}
}

// wait waits for the end of the process for at most limit and returns how it ended.
func (p *process) wait(limit time.Duration) error {
	p.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		p.t.Fatalf("%s still runs after %v\n%s", p, limit, p.stacks()+daemonsSay())
		return nil
	}
}

// succeed waits for exit status 0 and for what the output must match.
func (p *process) succeed(limit time.Duration, want ...string) {
	p.t.Helper()
	if err := p.wait(limit); err != nil {
		p.t.Fatalf("%s: %v", p, err)
	}
	p.wantOutput(want...)
}

// fail waits for another exit status than 0, not for a signal, and for what the output must match.
func (p *process) fail(limit time.Duration, want ...string) {
	p.t.Helper()
	err := p.wait(limit)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		p.t.Fatalf("%s ended with %v, want an exit status that says failure", p, err)
	}
	p.wantOutput(want...)
}

// wantOutput wants the output to match each of some regular expressions; one that begins with ! must
// not match.
func (p *process) wantOutput(want ...string) {
	p.t.Helper()
	out := p.output()
	for _, w := range want {
		expr, not := strings.CutPrefix(w, "!")
		if regexp.MustCompile("(?m)"+expr).MatchString(out) == not {
			p.t.Errorf("%s: its output and %q", p, w)
		}
	}
}

// stacks shows what the threads of a process group are at.
func (p *process) stacks() string {
	var s strings.Builder
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended meanwhile
		}
		var pgrp int
		var pid, ppid int
		rest := b[bytes.LastIndexByte(b, ')')+1:]
		var state string
		if n, _ := fmt.Sscan(string(rest), &state, &ppid, &pgrp); n != 3 || pgrp != p.pid() {
			continue
		}
		fmt.Sscan(string(b), &pid)
		fmt.Fprintf(&s, "--- %s", b)
		if tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid)); len(tasks) > 0 {
			for _, w := range tasks {
				c, _ := os.ReadFile(w)
				fmt.Fprintf(&s, "%s: %s\n", w, c)
			}
		}
		if len(missing("gdb")) == 0 {
			out, _ := exec.Command("timeout", "20", "gdb", "-batch", "-nx", "-p", fmt.Sprint(pid), "-ex", "thread apply all bt 14").CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "Thread") {
					s.WriteString(line)
				}
			}
		}
	}
	return s.String()
}

// eventually waits until ok, which is asked again and again, and fails with what otherwise.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond) // before it looks again
	}
}
