package port

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"

	"github.com/vrnic/vrnic/netstack/frame"
)

// scattered makes a frame of n pieces of size octets each, and returns the octets too.
func scattered(n, size int) (*frame.Frame, []byte) {
	f := frame.Empty()
	var all []byte
	for i := range n {
		b := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2)
		all = append(all, b...)
		f.Append(buffer.NewViewWithData(b))
	}
	return f, all
}

// A frame goes to the kernel in one call, whatever it is made of: small messages make super-frames
// of many pieces.
func TestTAPTransmitPieces(t *testing.T) {
	fd, err := unix.MemfdCreate("frames", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "frames")
	defer file.Close()
	for _, offloads := range []bool{false, true} {
		tap := &TAP{fd: fd, offloads: offloads}
		for _, c := range []struct{ pieces, size int }{{1, 60}, {7, 100}, {8, 100}, {9, 100}, {600, 100},
			{maxPieces - 1, 60}, {maxPieces, 60}, {maxPieces + 1, 60}, {3000, 20}} {
			f, want := scattered(c.pieces, c.size)
			if offloads {
				var hdr [frame.VirtioHeaderLen]byte
				frame.PutVirtio(&hdr, f.Offload)
				want = append(hdr[:], want...)
			}
			send := func() {
				if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
					t.Fatal(err)
				}
				if !tap.Transmit(f, nil) {
					t.Fatalf("a frame of %d pieces was not taken", c.pieces)
				}
			}
			send()
			got := make([]byte, len(want)+1)
			if n, _ := file.ReadAt(got, 0); n < len(want) || !bytes.Equal(got[:len(want)], want) {
				t.Errorf("a frame of %d pieces arrived changed", c.pieces)
			}
			if at, err := unix.Seek(fd, 0, unix.SEEK_CUR); err != nil || int(at) != len(want) {
				t.Errorf("a frame of %d pieces: %d octets written of %d, %v", c.pieces, at, len(want), err)
			}
			f.Release()
		}
	}
}

// A device that is taken up while the port is closed is not waited for: Close would never return.
func TestTAPTakenUpWhileClosing(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[1])
	tap := &TAP{fd: p[0], stop: make(chan struct{})}
	defer tap.release()
	open := func() {
		if err := tap.openDoze(); err != nil {
			t.Fatal(err)
		}
	}
	open()
	close(tap.stop)
	if err := tap.endRead(); err != nil {
		t.Fatal(err)
	}
	open()
	tap.mu.Lock()
	defer tap.mu.Unlock()
	err := tap.waits.Wait(func(uintptr) bool { return false })
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it waits: %v", err)
	}
}
