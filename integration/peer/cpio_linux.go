package peer

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// A cpioWriter writes an initrd: the "newc" format of cpio, as the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst gives it.
type cpioWriter struct {
	w    io.Writer
	off  int
	ino  int
	seen map[string]bool
	err  error
}

const (
	modeDir     = 0o040755
	modeFile    = 0o100755
	modeSymlink = 0o120777
)

func newCPIO(w io.Writer) *cpioWriter { return &cpioWriter{w: w, seen: make(map[string]bool)} }

func (c *cpioWriter) dir(name string) { c.entry(name, modeDir, nil) }

func (c *cpioWriter) file(name string, data []byte) { c.entry(name, modeFile, data) }

func (c *cpioWriter) symlink(name, target string) { c.entry(name, modeSymlink, []byte(target)) }

// entry writes one entry, the directories above it first. A name that was written is left alone.
func (c *cpioWriter) entry(name string, mode int, data []byte) {
	name = strings.Trim(name, "/")
	if c.seen[name] {
		return
	}
	if up := path.Dir(name); up != "." {
		c.entry(up, modeDir, nil)
	}
	c.seen[name] = true
	c.ino++
	c.record(c.ino, name, mode, data)
}

func (c *cpioWriter) record(ino int, name string, mode int, data []byte) {
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	c.write([]byte(head))
	c.pad()
	c.write(data)
	c.pad()
}

func (c *cpioWriter) write(b []byte) {
	if c.err != nil {
		return
	}
	_, c.err = c.w.Write(b)
	c.off += len(b)
}

func (c *cpioWriter) pad() { c.write(make([]byte, -c.off&3)) }

// close ends the archive and returns the first error of any call.
func (c *cpioWriter) close() error {
	c.record(0, "TRAILER!!!", 0, nil)
	return c.err
}
