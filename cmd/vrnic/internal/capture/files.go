package capture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Files is where a capture goes: a stream, one file, or as many of some size as shall be kept.
type Files struct {
	path string
	keep int   // files; 0: one, without a number
	size int64 // octets of each, roughly
	sect *Section

	out     io.Writer // of a stream
	file    *os.File
	w       *Writer
	written int64
	made    []string
	number  int
}

// NewStream writes to out.
func NewStream(out io.Writer, s *Section) (*Files, error) {
	f := &Files{out: out, sect: s}
	return f, f.open()
}

// NewFiles writes to path or, if keep is not 0, to files with numbers before the ending of path, of
// which the last keep stay. What is captured is in them: they are for the user only.
func NewFiles(path string, keep int, size int64, s *Section) (*Files, error) {
	f := &Files{path: path, keep: keep, size: size, sect: s}
	return f, f.open()
}

func (f *Files) open() (err error) {
	out := f.out
	if out == nil {
		path := f.path
		if f.keep > 0 {
			f.number++
			ext := filepath.Ext(path)
			path = fmt.Sprintf("%s_%05d%s", strings.TrimSuffix(path, ext), f.number, ext)
		}
		if f.file, err = Create(path); err != nil {
			return err
		}
		f.made = append(f.made, path)
		out = f.file
	}
	f.written = 0
	f.w, err = NewWriter(counting{out, &f.written}, f.sect)
	return err
}

// Create makes the file, or empties it, for its owner alone. What is somebody else's stays as it
// is, and is an error.
func Create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		if info.Mode().Perm() != 0o600 { // it was there
			err = f.Chmod(0o600)
		}
		if err == nil {
			err = f.Truncate(0)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// A counting counts what is written.
type counting struct {
	io.Writer
	n *int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	*c.n += int64(n)
	return n, err
}

// Packet writes p with its comments, into the next file if this one is full.
func (f *Files) Packet(p *Packet, comments []string) error {
	if f.size > 0 && f.written >= f.size {
		if err := f.end(0); err != nil {
			return err
		}
		if err := f.open(); err != nil {
			return err
		}
		if f.keep > 0 && len(f.made) > f.keep {
			if err := os.Remove(f.made[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			f.made = f.made[1:]
		}
	}
	return f.w.Packet(p, comments)
}

// Flush writes what waits.
func (f *Files) Flush() error { return f.w.Flush() }

// Close ends the last file.
func (f *Files) Close(dropped uint64) error { return f.end(dropped) }

func (f *Files) end(dropped uint64) error {
	err := f.w.End(dropped)
	if f.file != nil {
		err = errors.Join(err, f.file.Close())
	}
	return err
}
