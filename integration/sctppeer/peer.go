package sctppeer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// A Peer is a program that runs by real time.
type Peer struct {
	in   io.Writer
	stop func()

	mu sync.Mutex
	// +checklocks:mu
	lines []string // that nobody has asked for yet
	// +checklocks:mu
	err    error         // no more will come
	change chan struct{} // +checklocks:mu
}

// NewPeer uses a program by its standard input and output; stop ends it.
func NewPeer(in io.Writer, out io.Reader, stop func()) *Peer {
	p := &Peer{in: in, stop: stop, change: make(chan struct{})}
	go func() {
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			p.add(s.Text(), nil)
		}
		p.add("", errors.Join(s.Err(), io.EOF))
	}()
	return p
}

func (p *Peer) add(line string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err == nil {
		p.lines = append(p.lines, line)
	}
	close(p.change)
	p.change = make(chan struct{})
}

// StartPeer starts cmd, the program, by way of begin: cmd.Start, for one.
func StartPeer(cmd *exec.Cmd, begin func() error) (*Peer, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := begin(); err != nil {
		return nil, err
	}
	return NewPeer(in, out, sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // with whatever status
	})), nil
}

// Stop ends the program, as a crash would. It may be called twice.
func (p *Peer) Stop() { p.stop() }

// Wait waits for a line with one of the prefixes, and takes the first such away. Others stay.
func (p *Peer) Wait(ctx context.Context, prefixes ...string) (string, error) {
	return p.wait(ctx, func(s string) bool {
		return slices.ContainsFunc(prefixes, func(x string) bool { return strings.HasPrefix(s, x) })
	}, strings.Join(prefixes, " or "))
}

func (p *Peer) wait(ctx context.Context, ok func(string) bool, what string) (string, error) {
	for {
		p.mu.Lock()
		i, change, err := slices.IndexFunc(p.lines, ok), p.change, p.err
		if i >= 0 {
			line := p.lines[i]
			p.lines = slices.Delete(p.lines, i, i+1)
			p.mu.Unlock()
			return line, nil
		}
		p.mu.Unlock()
		if err != nil {
			return "", fmt.Errorf("sctppeer: no %q: the program has ended: %w", what, err)
		}
		select {
		case <-change:
		case <-ctx.Done():
			return "", fmt.Errorf("sctppeer: no %q: %w", what, ctx.Err())
		}
	}
}

// Do gives it a command and waits for the answer.
func (p *Peer) Do(ctx context.Context, format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return fmt.Errorf("sctppeer: %.80s: %w", line, err)
	}
	s, err := p.wait(ctx, func(s string) bool { return s == "ok" || strings.HasPrefix(s, "error ") },
		"answer")
	if err != nil {
		return err
	}
	if text, bad := strings.CutPrefix(s, "error "); bad {
		return fmt.Errorf("sctppeer: %.80s: %w", line, errors.New(text))
	}
	return nil
}

// Said are the lines that nobody has asked for.
func (p *Peer) Said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// Fill makes message n of a bulk as the program does.
func Fill(n, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n*7 + i*13 + i>>8)
	}
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], uint32(n))
	copy(b, head[:])
	return b
}
