package bulk

import (
	"syscall"
	"testing"
)

// Memory of either side may be gone, at any place of it: that is a fault with its address, as of
// copy. What is asked for behind the source may be missing without one.
func TestCopyFaults(t *testing.T) {
	const n = 4 * block
	b, err := syscall.Mmap(-1, 0, 2*n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(b)
	ok := make([]byte, n)
	for _, hole := range []int{0, block + 4096, n - 4096} {
		if err := syscall.Mprotect(b[hole:hole+4096], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		for what, addr := range map[string]uintptr{"to": fault(t, b[:n], ok),
			"from": fault(t, ok, b[:n])} {
			if at := addr - address(b); at < uintptr(hole) || at >= uintptr(hole)+4096 {
				t.Errorf("%s memory without page %#x: fault at %#x", what, hole, at)
			}
		}
		if err := syscall.Mprotect(b[hole:hole+4096], syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mprotect(b[n:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	Copy(ok, b[:n], true)
}
