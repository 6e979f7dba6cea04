package sctppeer

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A Lockstep is a program on AF_CONN. All of its methods wait for the program's answer.
type Lockstep struct {
	Packets [][]byte // that it has sent; the user takes them away
	Said    []string // what else it has said, but for "ok"

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// StartLockstep starts the program.
func StartLockstep(path string) (*Lockstep, error) {
	p := &Lockstep{cmd: exec.Command(path, "conn")}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out, p.cmd.Stderr = bufio.NewReaderSize(out, 1<<16), os.Stderr
	return p, p.cmd.Start()
}

// Close ends the program, as a crash would.
func (p *Lockstep) Close() {
	p.in.Close()
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // with whatever status
}

// Input gives it a packet.
func (p *Lockstep) Input(packet []byte) error {
	return p.line("packet " + hex.EncodeToString(packet))
}

// Tick lets time pass.
func (p *Lockstep) Tick(d time.Duration) error {
	return p.line(fmt.Sprintf("tick %d", d.Milliseconds()))
}

// Do gives it a command.
func (p *Lockstep) Do(format string, args ...any) error {
	return p.line(fmt.Sprintf(format, args...))
}

func (p *Lockstep) line(s string) (refused error) {
	if _, err := io.WriteString(p.in, s+"\n"); err != nil {
		return fmt.Errorf("sctppeer: %w", err)
	}
	for {
		line, err := p.out.ReadString('\n')
		if err != nil {
			return fmt.Errorf("sctppeer: %.80s: the program has ended: %w", s, err)
		}
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "packet "); ok {
			b, err := hex.DecodeString(text)
			if err != nil {
				return fmt.Errorf("sctppeer: %w", err)
			}
			p.Packets = append(p.Packets, b)
			continue
		}
		if text, ok := strings.CutPrefix(line, "error "); ok {
			refused = fmt.Errorf("sctppeer: %.80s: %w", s, errors.New(text))
			continue
		}
		switch line {
		case ".":
			return refused
		case "ok":
		default:
			p.Said = append(p.Said, line)
		}
	}
}
