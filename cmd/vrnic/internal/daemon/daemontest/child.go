package daemontest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// childEnv names the helper that a re-executed test binary is to run, and its arguments.
const childEnv = "VRNIC_TEST_CHILD"

// Child reports what a helper test was asked to do: its arguments, if this process was started by
// StartChild with the helper's name. Otherwise the helper skips itself.
func Child(t *testing.T) (args []string) {
	t.Helper()
	f := strings.Split(os.Getenv(childEnv), "\x1f")
	if f[0] != t.Name() {
		t.Skip("a helper of other tests, which run it as a process of its own")
	}
	return f[1:]
}

// A ChildProcess is a test binary that runs one helper test.
type ChildProcess struct {
	t   testing.TB
	cmd *exec.Cmd
	out *bufio.Scanner
}

// StartChild runs the helper test of this name in a process of its own. It is killed when the test
// ends.
func StartChild(t testing.TB, helper string, args ...string) *ChildProcess {
	t.Helper()
	return StartChildAs(t, os.Args[0], nil, helper, args...)
}

// StartChildAs is StartChild with another copy of the binary, and maybe another user.
func StartChildAs(t testing.TB, binary string, attr *syscall.SysProcAttr, helper string,
	args ...string) *ChildProcess {
	t.Helper()
	cmd := exec.Command(binary, "-test.run=^"+helper+"$", "-test.timeout=120s")
	cmd.Dir = "/" // the test's own may be closed to another user
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{helper}, args...),
		"\x1f"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &ChildProcess{t: t, cmd: cmd, out: bufio.NewScanner(out)}
	t.Cleanup(c.Kill)
	return c
}

// PID is the process's number.
func (c *ChildProcess) PID() int { return c.cmd.Process.Pid }

// Want waits for a line that a helper has printed with Tell, and returns what follows the word.
func (c *ChildProcess) Want(word string) string {
	c.t.Helper()
	var seen []string
	for c.out.Scan() {
		if rest, ok := strings.CutPrefix(c.out.Text(), tellPrefix+word); ok {
			return strings.TrimSpace(rest)
		}
		seen = append(seen, c.out.Text())
	}
	c.t.Fatalf("the child ended without %q; it printed:\n%s", word, strings.Join(seen, "\n"))
	return ""
}

// Line waits for the next line that a helper has printed with Tell, and returns it without the
// values.
func (c *ChildProcess) Line() string {
	c.t.Helper()
	for c.out.Scan() {
		if rest, ok := strings.CutPrefix(c.out.Text(), tellPrefix); ok {
			word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return word
		}
	}
	c.t.Fatal("the child has ended")
	return ""
}

const tellPrefix = "child: "

// Tell tells the parent that a helper has come to a point.
func Tell(word string, values ...any) {
	fmt.Println(tellPrefix + word + " " + strings.TrimSpace(fmt.Sprintln(values...)))
}

// Kill ends the process with SIGKILL, if it still runs, and waits for it.
func (c *ChildProcess) Kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()         // by the signal
	}
}

// Wait waits until the process ends by itself.
func (c *ChildProcess) Wait() error {
	for c.out.Scan() {
		c.t.Log(c.out.Text())
	}
	return c.cmd.Wait()
}
