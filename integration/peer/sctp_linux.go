package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/vrnic/vrnic/integration/peer/internal/ctl"
)

// sctpModules are loaded after the others: SCTP, and what it signs cookies with.
var sctpModules = []string{"hmac", "sha1_generic", "sctp"}

// WithSCTP returns an image in dir that is img with the kernel's SCTP and with program, a static
// one, as /bin/sctp-peer.
func (img *Image) WithSCTP(dir, program string) (*Image, error) {
	out := *img
	out.Initrd = filepath.Join(dir, "initrd-sctp")
	if err := img.withSCTP(out.Initrd, program); err != nil {
		return nil, fmt.Errorf("peer: with SCTP: %w", err)
	}
	return &out, nil
}

// withSCTP writes img's archive with a second one behind it; the kernel unpacks both, and what is
// in both is that of the second.
func (img *Image) withSCTP(to, program string) error {
	tree, err := findModules(filepath.Join(filepath.Dir(img.Initrd), "image", "lib", "modules"))
	if err != nil {
		return err
	}
	tree["siw"] = filepath.Join(filepath.Dir(img.Initrd), "siw.ko")
	names := modules
	for _, m := range sctpModules {
		if _, ok := tree[m]; ok { // else it is in the kernel
			names = append(names[:len(names):len(names)], m)
		}
	}
	mods, err := tree.resolve(names...)
	if err != nil {
		return err
	}
	first, err := os.ReadFile(img.Initrd)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(first)
	c := newCPIO(&b)
	c.modules(mods)
	if err := addFile(c, "usr/bin/sctp-peer", program); err != nil {
		return err
	}
	if err := c.close(); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// Pipe starts a command with a standard input, for a program that is talked to. Closing it kills
// the command, and reads end when that has ended.
func (g *Guest) Pipe(argv ...string) (io.ReadWriteCloser, error) {
	c := newCommand(g, argv...)
	if err := g.send(ctl.Request{Run: &ctl.Run{Argv: argv, Input: true}}, c); err != nil {
		return nil, err
	}
	return &pipe{c: c}, nil
}

type pipe struct {
	c    *Command
	read int // octets of the output that have been read
	once sync.Once
	err  error
}

func (p *pipe) Write(b []byte) (int, error) {
	// The port's lines are not endless.
	for n := 0; n < len(b); n += 1 << 18 {
		if err := p.c.g.send(ctl.Request{ID: p.c.id, Input: b[n:min(len(b), n+1<<18)]}, nil); err != nil {
			return n, err
		}
	}
	return len(b), nil
}

func (p *pipe) Read(b []byte) (int, error) {
	for {
		p.c.mu.Lock()
		n, change := copy(b, p.c.out.Bytes()[p.read:]), p.c.change
		p.c.mu.Unlock()
		if n > 0 {
			p.read += n
			return n, nil
		}
		select {
		case <-change:
		case <-p.c.done:
			return 0, errors.Join(p.c.err, io.EOF)
		}
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() {
		if p.err = p.c.Signal(9); p.err != nil {
			return
		}
		var status *ExitError
		if err := p.c.Wait(context.Background()); err != nil && !errors.As(err, &status) {
			p.err = err
		}
	})
	return p.err
}
