package paths

import (
	"fmt"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
)

// mapped is a device of this process that gives memory off the Go heap, as a device of a daemon
// does: nothing zeroes, scans or watches it.
type mapped struct{ rdma.Device }

type mapping []byte

func (m mapping) Bytes() []byte { return m }
func (m mapping) Close() error  { return syscall.Munmap(m) }

func (mapped) AllocBuffer(n int) (rdma.Buffer, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d octets: %w", n, err)
	}
	return mapping(b), nil
}
