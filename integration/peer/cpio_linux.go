package peer

import (
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// A cpioWriter writes an initrd: the "newc" format of cpio, as the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst gives it.
type cpioWriter struct {
	w    *cpio.Writer
	seen map[string]bool
	err  error
}

func newCPIO(w io.Writer) *cpioWriter {
	return &cpioWriter{w: cpio.NewWriter(w), seen: make(map[string]bool)}
}

func (c *cpioWriter) dir(name string) { c.entry(name, cpio.TypeDir|0o755, nil) }

func (c *cpioWriter) file(name string, data []byte) { c.entry(name, cpio.TypeReg|0o755, data) }

func (c *cpioWriter) symlink(name, target string) {
	c.entry(name, cpio.TypeSymlink|0o777, []byte(target))
}

// modules writes kernel modules, and the list of them by which the agent loads them.
func (c *cpioWriter) modules(mods []module) {
	var list strings.Builder
	for _, m := range mods {
		name := "/usr/lib/modules/" + m.name + ".ko"
		c.file(name, m.data)
		fmt.Fprintln(&list, name)
	}
	c.file("etc/modules", []byte(list.String()))
}

// entry writes one entry, the directories above it first. A name that was written is left alone.
func (c *cpioWriter) entry(name string, mode cpio.FileMode, data []byte) {
	name = strings.Trim(name, "/")
	if c.seen[name] {
		return
	}
	if up := path.Dir(name); up != "." {
		c.dir(up)
	}
	c.seen[name] = true
	if c.err == nil {
		c.err = c.w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data)), Links: 1})
	}
	if c.err == nil {
		_, c.err = c.w.Write(data)
	}
}

// close ends the archive and returns the first error of any call.
func (c *cpioWriter) close() error {
	if c.err == nil {
		c.err = c.w.Close()
	}
	return c.err
}
