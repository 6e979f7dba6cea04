package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// A child is a process of this program that runs another of its commands.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // of stdout; closed at its end
	done  chan struct{}
	err   error // how it ended; read after done

	mu     sync.Mutex
	stderr tail // +checklocks:mu
}

// startChild runs this program with args. The child is in a process group of its own, so that an
// interrupt at the terminal comes to the parent only, which then ends it in order; and it gets
// a SIGTERM should the parent die.
func startChild(name string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &child{name: name, cmd: exec.Command(self, args...), lines: make(chan string, 64),
		done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p.cmd.Stderr = p
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The parent, for Pdeathsig, is the thread that starts the child: it stays until the end.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		in := bufio.NewScanner(stdout)
		for in.Scan() {
			p.lines <- in.Text()
		}
		close(p.lines)
		_, _ = io.Copy(io.Discard, stdout)
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	return p, nil
}

// Write takes the child's stderr.
func (p *child) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// line returns the child's next line of output. That there is none is an error that says why.
func (p *child) line(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.lines:
		if ok {
			return line, nil
		}
		if err := p.wait(ctx); err != nil {
			return "", err
		}
		return "", fmt.Errorf("the %s ended too early", p.name)
	case <-ctx.Done():
		return "", fmt.Errorf("waiting for the %s: %w", p.name, ctx.Err())
	}
}

// wait waits for the child's end and says how it was if it was not exit 0. What it still says is
// discarded.
func (p *child) wait(ctx context.Context) error {
	for {
		select {
		case _, ok := <-p.lines:
			if ok {
				continue
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of the %s: %w", p.name, ctx.Err())
		}
		break
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of the %s: %w", p.name, ctx.Err())
	}
	if p.err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Not wrapped: an ExitError has a status of its own, which is not that of the demo.
	text := fmt.Sprintf("the %s failed: %v", p.name, p.err)
	if said := p.stderr.String(); said != "" {
		text += ": " + said
	}
	return errors.New(text)
}

// kill ends the child if it has not ended: asks it first, and waits.
func (p *child) kill() {
	select {
	case <-p.done:
		return
	default:
	}
	p.stdin.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	ctx, cancel := context.WithTimeout(context.Background(), demoGrace)
	defer cancel()
	_ = p.wait(ctx)
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.wait(context.Background())
}

// A tail keeps the end of what is written to it.
type tail struct{ b []byte }

const tailLen = 2048

func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if n := len(t.b) - tailLen; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

// String is the last lines as one.
func (t *tail) String() string {
	lines := bytes.Split(bytes.TrimSpace(t.b), []byte("\n"))
	if n := len(lines) - 4; n > 0 {
		lines = lines[n:]
	}
	return strings.Join(strings.Fields(string(bytes.Join(lines, []byte("; ")))), " ")
}
