package prefetch

import (
	"syscall"
	"testing"
)

// Memory that is not there may be asked for: whoever lent it may have taken it back.
func TestReadDoesNotFault(t *testing.T) {
	b, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	Read(b)
	if err := syscall.Munmap(b); err != nil {
		t.Fatal(err)
	}
	Read(b)
}
