// Package terminal tells whether somebody looks.
package terminal

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Is says whether somebody looks at what is written to w, so that a line can be rewritten.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
