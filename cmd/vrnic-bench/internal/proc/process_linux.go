package proc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Process is a child that prints a line when it is ready, and may print more when asked.
type Process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	done  chan struct{}
	ready string

	mu     sync.Mutex
	stderr bytes.Buffer // +checklocks:mu
}

const (
	readyTimeout = 20 * time.Second
	endTimeout   = 10 * time.Second
)

// Start runs name with args and waits for a line that begins with prefix. The child gets a
// SIGTERM when this process dies.
func Start(prefix, name string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p.cmd.Stderr = p
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// A pipe of our own: Wait would close StdoutPipe's under a reader.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.out = w, bufio.NewReader(r)
	started := make(chan error)
	go func() {
		// Pdeathsig is about the thread that starts the child: it stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		w.Close()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // its end is what counts
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		r.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	_ = r.SetReadDeadline(time.Now().Add(readyTimeout)) // a closed pipe says so in Line
	line, err := p.Line()
	_ = r.SetReadDeadline(time.Time{})
	if err == nil && !strings.HasPrefix(line, prefix) {
		err = fmt.Errorf("%s says %q", filepath.Base(name), line)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	p.ready = strings.TrimPrefix(line, prefix)
	return p, nil
}

// Ready is what the child has said behind the prefix.
func (p *Process) Ready() string { return strings.TrimSpace(p.ready) }

// Write takes the child's stderr.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stderr.Len() > 4096 {
		p.stderr.Reset()
	}
	return p.stderr.Write(b)
}

// Line reads the child's next line.
func (p *Process) Line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err == nil {
		return strings.TrimSpace(line), nil
	}
	if errors.Is(err, io.EOF) {
		<-p.done // it closes its output when it ends
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return "", fmt.Errorf("%s: %w: %s", strings.Join(p.cmd.Args, " "), err,
		strings.TrimSpace(p.stderr.String()))
}

// Ask sends the child a question and waits for its answer: JSON, a line each. If ctx ends first, so
// does the child.
func (p *Process) Ask(ctx context.Context, question, answer any) error {
	line, err := json.Marshal(question)
	if err != nil {
		return err
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%s: %w", p.cmd.Path, err)
	}
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) })()
	got, err := p.Line()
	if err != nil {
		return both(ctx.Err(), err)
	}
	if err := json.Unmarshal([]byte(got), answer); err != nil {
		return fmt.Errorf("%s says %q: %w", p.cmd.Path, got, err)
	}
	return nil
}

// both is the first error if there is one, and what came of it.
func both(cause, err error) error {
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// Close asks the child to end, waits, and kills it if need be.
func (p *Process) Close() {
	p.stdin.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(endTimeout):
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	}
}

// PID is the child's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// FindVrnic finds the vrnic program: beside this one, else in $PATH, else it builds it from the
// sources in the current directory; then remove is what to call at the end.
func FindVrnic() (path string, remove func(), err error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), "vrnic")
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, func() {}, nil
		}
	}
	if path, err := exec.LookPath("vrnic"); err == nil {
		return path, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "vrnic-bench-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "vrnic")
	out, err := exec.Command("go", "build", "-o", path,
		"github.com/vrnic/vrnic/cmd/vrnic").CombinedOutput()
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, fmt.Errorf("no vrnic program beside this one nor in $PATH, and it cannot be "+
			"built here (%w: %s): name it with --vrnic",
			err, bytes.TrimSpace(out))
	}
	return path, func() { os.RemoveAll(dir) }, nil
}
