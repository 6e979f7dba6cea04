package peer

import (
	"context"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vrnic/vrnic/integration/peer/internal/ctl"
)

//go:embed probe/*.c probe/*.h
var probeSource embed.FS

// probe compiles the probe and returns its path.
func (b *builder) probe() (string, error) {
	if err := os.RemoveAll(b.path("probe.src")); err != nil {
		return "", err
	}
	if err := os.CopyFS(b.path("probe.src"), probeSource); err != nil {
		return "", err
	}
	sources, err := filepath.Glob(b.path("probe.src", "probe", "*.c"))
	if err != nil {
		return "", err
	}
	program := b.path("probe")
	_, err = b.output("gcc", append(append([]string{"-O2", "-Wall", "-Werror", "-o", program},
		sources...), "-lrdmacm", "-libverbs")...)
	return program, err
}

// A Probe is a verbs program in the guest that does one thing at a time, as it is told. Its
// source, in probe, lists the commands.
type Probe struct {
	g *Guest
	c *Command

	mu   sync.Mutex // one command at a time
	read int        // octets of the output that have been looked at
}

// StartProbe starts a probe on the guest's RDMA device.
func (g *Guest) StartProbe(ctx context.Context) (*Probe, error) {
	c := newCommand(g, "probe")
	if err := g.send(ctl.Request{Run: &ctl.Run{Argv: []string{"probe"}, Input: true}}, c); err != nil {
		return nil, err
	}
	p := &Probe{g: g, c: c}
	if _, err := p.answer(ctx, "start"); err != nil {
		return nil, err
	}
	return p, nil
}

// A ProbeError is what a probe says where a command has failed.
type ProbeError struct{ Command, Text string }

func (e *ProbeError) Error() string { return fmt.Sprintf("peer: %s: %s", e.Command, e.Text) }

// probeLimit bounds what one command may take; none waits as long by itself.
const probeLimit = 2 * time.Minute

// Do sends a command and returns the words of the answer; one that fails is a *ProbeError.
func (p *Probe) Do(ctx context.Context, format string, args ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if err := p.g.send(ctl.Request{ID: p.c.id, Input: []byte(line + "\n")}, nil); err != nil {
		return nil, err
	}
	return p.answer(ctx, line)
}

func (p *Probe) answer(ctx context.Context, command string) ([]string, error) {
	line, err := p.c.line(ctx, p.read)
	if err != nil {
		return nil, fmt.Errorf("peer: %s: %w", command, err)
	}
	p.read += len(line)
	if text, bad := strings.CutPrefix(line, "err "); bad {
		return nil, &ProbeError{command, strings.TrimSpace(text)}
	}
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "ok" {
		return nil, fmt.Errorf("peer: %s: answer %q", command, line)
	}
	return words[1:], nil
}

// Stop ends the probe and what it has made.
func (p *Probe) Stop(ctx context.Context) error {
	if err := p.c.Signal(9); err != nil {
		return err
	}
	var status *ExitError
	if err := p.c.Wait(ctx); err != nil && !errors.As(err, &status) {
		return err
	}
	return nil
}

// ProbeOctets is how octets are written in commands and answers.
func ProbeOctets(b []byte) string {
	if len(b) == 0 {
		return "-"
	}
	return hex.EncodeToString(b)
}

// line waits for a whole line of output from octet from on.
func (c *Command) line(ctx context.Context, from int) (string, error) {
	for {
		c.mu.Lock()
		rest, change := string(c.out.Bytes()[from:]), c.change
		c.mu.Unlock()
		if n := strings.IndexByte(rest, '\n'); n >= 0 {
			return rest[:n+1], nil
		}
		select {
		case <-change:
		case <-c.done:
			return "", fmt.Errorf("the probe has ended: %w: %s", errors.Join(c.err, errProbeGone), rest)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

var errProbeGone = errors.New("nobody answers")
