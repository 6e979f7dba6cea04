//go:build !race

package port

import (
	"testing"

	"golang.org/x/sys/unix"
)

// No frame allocates on its way to the kernel, also not one of more pieces than the kernel takes.
func TestTAPTransmitAllocs(t *testing.T) {
	fd, err := unix.MemfdCreate("frames", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	tap := &TAP{fd: fd, offloads: true}
	for _, pieces := range []int{1, 9, 600, maxPieces + 1} {
		f, _ := scattered(pieces, 60)
		send := func() {
			unix.Seek(fd, 0, unix.SEEK_SET)
			tap.Transmit(f, nil)
		}
		send()
		if n := testing.AllocsPerRun(100, send); n != 0 {
			t.Errorf("a frame of %d pieces: %v allocations", pieces, n)
		}
		f.Release()
	}
}
