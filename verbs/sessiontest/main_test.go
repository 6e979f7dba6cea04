package sessiontest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

func TestMain(m *testing.M) { ctest.Main(m) }

// A built is a library under test, and the program that uses it.
type built struct{ libs, shell string }

var build = sync.OnceValues(func() (b built, err error) {
	if b.libs, err = ctest.Libs(); err != nil {
		return b, err
	}
	b.shell, err = compile("shell", b.libs, "testdata/shell.c", "-l:libibverbs.so.1")
	return b, err
})

// compile makes a program that uses the libraries.
func compile(name, libs string, args ...string) (path string, err error) {
	if _, err := ctest.Sources("testdata/*.[ch]"); err != nil {
		return "", err
	}
	return ctest.CC(name, slices.Concat([]string{"-std=gnu11", "-O1", "-g", "-Wextra", "-L" + libs,
		"-Wl,-rpath," + libs, "-pthread"}, args, ctest.Flags())...)
}

// need builds what the tests run, or skips the test where there is no compiler.
func need(t testing.TB) built {
	t.Helper()
	ctest.Need(t)
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answerTime bounds the answer of a program that does not hang, on a machine that is busy.
const answerTime = 30 * time.Second

// noMadvise is why an emulator does not run a test: QEMU 7.2 says of all that madvise(2) asks for
// that it is done, and does nothing.
const noMadvise = "the emulator does nothing for MADV_POPULATE_WRITE and MADV_DONTFORK"

// A program is a shell.c that runs.
type program struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	errs  *needtest.Buffer
	done  chan struct{} // closed when it has ended
}

// start runs the shell with the daemon's socket, and variables NAME=VALUE.
func start(t testing.TB, socket string, env ...string) *program {
	t.Helper()
	return startFile(t, need(t).shell, socket, env...)
}

func startFile(t testing.TB, file, socket string, env ...string) *program {
	t.Helper()
	return startAs(t, file, socket, -1, env...)
}

// startAs runs file as a user, below 0 as the test's.
func startAs(t testing.TB, file, socket string, uid int, env ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: ctest.Command(file), lines: make(chan string, 1000),
		errs: &needtest.Buffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "VRNIC_DEBUG=shm", "VRNIC_SOCKET="+socket,
		// Cancelled threads confuse its check of the alternate stack, and allocations that fail are
		// meant.
		"ASAN_OPTIONS=use_sigaltstack=0:allocator_may_return_null=1:"+os.Getenv("ASAN_OPTIONS"),
		"TSAN_OPTIONS=allocator_may_return_null=1:"+os.Getenv("TSAN_OPTIONS"))
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = p.errs
	if uid >= 0 {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid),
			Gid: uint32(uid)}}
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		s := bufio.NewScanner(out)
		for s.Scan() {
			p.lines <- s.Text()
		}
		close(p.lines)
		p.cmd.Wait() // ProcessState says it
	}()
	t.Cleanup(func() {
		p.in.Close()
		select {
		case <-p.done:
		case <-time.After(answerTime):
			p.cmd.Process.Kill()
			<-p.done
			t.Error("the program does not end")
		}
	})
	return p
}

// send gives the program a command.
func (p *program) send(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatalf("%s: %v\n%s", command, err, p.errs)
	}
}

// line is the program's next line.
func (p *program) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok {
			<-p.done
			p.t.Fatalf("the program ended: %v\n%s", p.cmd.ProcessState, p.errs)
		}
		return l
	case <-time.After(answerTime):
		p.cmd.Process.Kill()
		p.t.Fatalf("the program hangs\n%s", p.errs)
	}
	return ""
}

// do gives the program a command and returns what it answers, without the command's name.
func (p *program) do(command string) string {
	p.t.Helper()
	p.send(command)
	name, _, _ := strings.Cut(command, " ")
	l := p.line()
	rest, ok := strings.CutPrefix(l, name+" ")
	if !ok {
		p.t.Fatalf("%s: answer %q", command, l)
	}
	return rest
}

// want gives the program commands, and compares the answers: pairs of them.
func (p *program) want(pairs ...string) {
	p.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := p.do(pairs[i]); got != pairs[i+1] {
			p.t.Fatalf("%s: %q, want %q\n%s", pairs[i], got, pairs[i+1], p.errs)
		}
	}
}

// wantLine compares the program's next line.
func (p *program) wantLine(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("%q, want %q\n%s", got, want, p.errs)
	}
}

// quiet checks that the program has nothing to say. It cannot fail for a machine that is slow.
func (p *program) quiet(why string) {
	p.t.Helper()
	select {
	case l := <-p.lines:
		p.t.Fatalf("%s: %q\n%s", why, l, p.errs)
	case <-time.After(50 * time.Millisecond):
	}
}

// end waits for the program's end after the last command, and checks how it ended.
func (p *program) end(status int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(answerTime):
		p.cmd.Process.Kill()
		p.t.Fatalf("the program does not end\n%s", p.errs)
	}
	if got := p.cmd.ProcessState; got.ExitCode() != status {
		p.t.Fatalf("the program ended with %v, want exit status %d\n%s", got, status, p.errs)
	}
}

// said ends the program and returns what it wrote on standard error.
func (p *program) said() string {
	p.t.Helper()
	p.in.Close()
	p.end(0)
	return p.errs.String()
}
