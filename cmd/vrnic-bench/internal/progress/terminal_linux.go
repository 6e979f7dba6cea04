package progress

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal says whether w shows a line that is rewritten.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
