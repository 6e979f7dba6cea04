package sim

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Registered memory lies at the same addresses in each run: they are on the wire, in each tagged
// segment.
const (
	arenaAddr = 0x5a_0000_0000
	arenaSize = 64 << 20
)

// arena is that memory. One run at a time uses it.
var arena = sync.OnceValues(func() ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, arenaAddr), arenaSize,
		unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory for the simulation at %#x: %w", uint64(arenaAddr), err)
	}
	return unsafe.Slice((*byte)(p), arenaSize), nil
})

// A pool gives parts of the arena, and takes them back.
type pool struct {
	rest []byte
	free map[int][][]byte // by size, the last one first
}

func (p *pool) take(n int) []byte {
	if f := p.free[n]; len(f) > 0 {
		b := f[len(f)-1]
		p.free[n] = f[:len(f)-1]
		return b
	}
	if n > len(p.rest) {
		panic("the arena is full")
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *pool) give(b []byte) { p.free[len(b)] = append(p.free[len(b)], b) }
