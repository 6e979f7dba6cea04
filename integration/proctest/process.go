package proctest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// A Config says how Start starts a process.
type Config struct {
	Env   []string   // added to the environment
	Dir   string     // its working directory; "": the test's
	NS    *netlab.NS // its network namespace; nil: the test's
	UID   int        // its user and group; 0: the test's
	Stdin *os.File
	// Patience bounds WaitOutput.
	Patience time.Duration
	// Late is what the test says of a process that has not done in time what it should; it may be nil.
	Late func(*Process) string
	// Over is called when the test is over and the process has ended; it may be nil.
	Over func(*Process)
}

// A Process is one that a test has started, with a process group of its own.
type Process struct {
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended
	Err  error         // how, once Done is closed
	T    *testing.T    // whose it is now

	cfg  Config
	out  Output
	left bool // once Done is closed: some of its group are there without it
}

// Start runs argv. The test's end kills it, and what it has started, if it still runs; a failed
// test shows what it has printed, and one in which it has printed a data race, or made a system
// call that its sandbox does not allow, fails.
func Start(t *testing.T, cfg Config, argv ...string) *Process {
	t.Helper()
	p := &Process{
		Cmd: exec.Command(argv[0], argv[1:]...), Done: make(chan struct{}), T: t, cfg: cfg,
	}
	// A daemon that makes a system call it has forbidden itself ends, and says where.
	p.Cmd.Env = append(append(os.Environ(), "VRNIC_SANDBOX_TRAP=1"), cfg.Env...)
	p.Cmd.Stdout, p.Cmd.Stderr = &p.out, &p.out
	p.Cmd.Dir = cfg.Dir
	if cfg.Stdin != nil {
		p.Cmd.Stdin = cfg.Stdin
	}
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A grandchild that is left must not keep Wait from returning.
	p.Cmd.WaitDelay = 2 * time.Second
	if cfg.UID != 0 {
		id := uint32(cfg.UID)
		p.Cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id}
	}
	begin := p.Cmd.Start
	if cfg.NS != nil {
		begin = func() error { return cfg.NS.Start(p.Cmd) }
	}
	if err := begin(); err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	go func() {
		p.Err = p.Cmd.Wait()
		p.left = syscall.Kill(-p.PID(), 0) == nil
		close(p.Done)
	}()
	t.Cleanup(func() {
		p.KillGroup()
		<-p.Done
		if t.Failed() {
			t.Logf("%s (%v):\n%s", p, p.Cmd.ProcessState, p.Tail())
		}
		if cfg.Over != nil {
			cfg.Over(p)
		}
		if strings.Contains(p.Output(), "WARNING: DATA RACE") {
			t.Errorf("%s: data race:\n%s", p, p.Output())
		}
		if strings.Contains(p.Output(), "SIGSYS: bad system call") {
			t.Errorf("%s: a system call that the sandbox does not allow:\n%s", p, p.Output())
		}
	})
	return p
}

// Tail is the end of what the process has said, where a failure's cause is.
func (p *Process) Tail() string {
	const most = 6000
	if s := p.Output(); len(s) > most {
		return "...\n" + s[len(s)-most:]
	}
	return p.Output()
}

// String is how it was called.
func (p *Process) String() string {
	return strings.Join(append([]string{filepath.Base(p.Cmd.Path)}, p.Cmd.Args[1:]...), " ")
}

// Output is what it has printed so far.
func (p *Process) Output() string { return p.out.String() }

// PID is its number, and that of its process group.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

// Signal sends sig; a process that has ended does not mind.
func (p *Process) Signal(sig syscall.Signal) {
	p.T.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.T.Errorf("signal %v: %v", sig, err)
	}
}

// KillGroup ends it and what it has started, and waits for neither. The group may outlive the
// process. The number of one that has ended, too, is anybody's: in a test of 20,000 processes the
// kernel gives each number out again.
func (p *Process) KillGroup() {
	if !p.Ended() || p.left {
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	}
}

// Kill ends it as kill -9 does and waits for that.
func (p *Process) Kill() {
	p.T.Helper()
	p.Signal(syscall.SIGKILL)
	<-p.Done
}

// Ended reports whether it has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// WaitOutput waits until it has printed s n times.
func (p *Process) WaitOutput(s string, n int) {
	p.T.Helper()
	err := p.out.Wait(s, n, p.Done, p.cfg.Patience)
	switch {
	case err == nil:
	case p.Ended():
		p.T.Fatalf("%s %v", p, err)
	default:
		p.T.Fatalf("%s %v\n%s", p, err, p.late())
	}
}

// Wait waits for its end for at most limit and returns how it ended.
func (p *Process) Wait(limit time.Duration) error {
	p.T.Helper()
	select {
	case <-p.Done:
		return p.Err
	case <-time.After(limit):
		p.T.Fatalf("%s still runs after %v\n%s", p, limit, p.late())
		return nil
	}
}

// late is what there is to know when something has not come in time.
func (p *Process) late() string {
	s := p.stacks()
	if p.cfg.Late != nil {
		s += p.cfg.Late(p)
	}
	return s
}

// stacks shows what the threads of the process group are at.
func (p *Process) stacks() string {
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
		if n, _ := fmt.Sscan(string(rest), &state, &ppid, &pgrp); n != 3 || pgrp != p.PID() {
			continue
		}
		fmt.Sscan(string(b), &pid)
		fmt.Fprintf(&s, "--- %s", b)
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
		for _, w := range tasks {
			c, _ := os.ReadFile(w)
			fmt.Fprintf(&s, "%s: %s\n", w, c)
		}
		if _, err := exec.LookPath("gdb"); err != nil {
			continue
		}
		out, _ := exec.Command("timeout", "20", "gdb", "-batch", "-nx", "-p", fmt.Sprint(pid),
			"-ex", "thread apply all bt 14").CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "Thread") {
				s.WriteString(line)
			}
		}
	}
	return s.String()
}

// Eventually waits until ok, which is asked again and again, and fails with what otherwise.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	if !needtest.Within(limit, ok) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// NewNS makes an empty network namespace of the test's own, or skips the test.
func NewNS(t testing.TB) *netlab.NS {
	t.Helper()
	ns, err := netlab.NewNS()
	if err != nil {
		needtest.Lacking(t, "root", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}
