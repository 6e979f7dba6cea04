package ring

import (
	"runtime/debug"
	"syscall"
	"testing"
)

// A CQ that is closed is not looked at: its memory is gone while the peers of its QPs still ring.
func TestNotifyClosedCQ(t *testing.T) {
	mem, err := syscall.Mmap(-1, 0, CQMemSize(4), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	c := NewCQProducer(mem, 4, 1, nil, nil)
	c.Close()
	if err := syscall.Mprotect(mem, syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			t.Error(r)
		}
	}()
	c.Notify(false)
}
