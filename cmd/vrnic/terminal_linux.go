package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal says that somebody looks at what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
