package mem

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"unsafe"

	"github.com/vrnic/vrnic/internal/bulk"
)

var (
	// ErrGone says that a region was deregistered or invalidated.
	ErrGone = errors.New("the region was deregistered or invalidated")
	// ErrBlocking says that a region can block, and the caller must not.
	ErrBlocking = errors.New("the region can block")
)

// A faultError says that a mapping lent by a context's owner was not there when it was touched.
type faultError struct{ cause any }

func (e *faultError) Error() string {
	return fmt.Sprintf("fault in registered memory: %v", e.cause)
}

// Read fills p from m, from address addr on. The range has been checked.
func (m *MR) Read(p []byte, addr uint64) error {
	if !m.Pin() {
		return ErrGone
	}
	err := m.readPinned(p, addr)
	m.Unpin()
	return err
}

func (m *MR) readPinned(p []byte, addr uint64) error {
	off := addr - m.base
	switch {
	case m.mem != nil:
		n, err := m.mem.ReadAt(p, int64(m.skip+off))
		return full(n, len(p), err)
	case m.foreign:
		_, err := m.guarded(p, m.b[off:off+uint64(len(p))], CopyMode{})
		return m.blame(err)
	}
	copy(p, m.b[off:])
	return nil
}

// Write copies p into m at address addr. The range has been checked. The last octet is written
// behind all others if last is set: programs poll it (ib_write_lat). See lastWord.
func (m *MR) Write(p []byte, addr uint64, last bool) error {
	if !m.Pin() {
		return ErrGone
	}
	err := m.writePinned(p, addr, last)
	m.Unpin()
	return err
}

func (m *MR) writePinned(p []byte, addr uint64, last bool) error {
	off := addr - m.base
	switch {
	case m.mem != nil:
		return writeMem(m.mem, p, int64(m.skip+off), last)
	case m.foreign:
		_, err := m.guarded(m.b[off:off+uint64(len(p))], p, CopyMode{Last: last})
		return m.blame(err)
	}
	m.place(m.b[off:off+uint64(len(p))], p, CopyMode{Last: last})
	return nil
}

// LongMessage is the length from which on a message goes past the caches on its way within a
// device: see bulk.Copy. A shorter one is still in a cache when the program that it is for looks at
// it.
const LongMessage = 1 << 20

// A CopyMode says what octets are of the message that they belong to.
type CopyMode struct {
	Last bool // its end: see lastWord
	Long bool // it has LongMessage octets, or more
	More bool // its source goes on behind them
}

// Copy copies n octets between two regions that are directly addressable; both ranges have been
// checked. The error comes on the side of the region that was to blame.
func Copy(dst *MR, to uint64, src *MR, from uint64, n uint32, c CopyMode) (dstErr, srcErr error) {
	if !dst.Pin() {
		return ErrGone, nil
	}
	if !src.Pin() {
		dst.Unpin()
		return nil, ErrGone
	}
	dstErr, srcErr = CopyPinned(dst, to, src, from, n, c)
	src.Unpin()
	dst.Unpin()
	return dstErr, srcErr
}

// CopyPinned is Copy with both pinned.
func CopyPinned(dst *MR, to uint64, src *MR, from uint64, n uint32, c CopyMode) (dstErr,
	srcErr error) {
	switch { // the caller has looked
	case dst.mem != nil:
		return ErrBlocking, nil
	case src.mem != nil:
		return nil, ErrBlocking
	}
	d := dst.b[to-dst.base:][:n]
	s := src.b[from-src.base:][:n]
	if !dst.foreign && !src.foreign {
		dst.place(d, s, c)
		return nil, nil
	}
	addr, err := dst.guarded(d, s, c)
	if within(s, addr) {
		return nil, src.blame(err)
	}
	return dst.blame(err), nil
}

// place copies src to dst, which lies in m.
func (m *MR) place(dst, src []byte, c CopyMode) {
	if n := len(src); c.Last && n > 0 {
		n -= lastWord(uintptr(unsafe.Pointer(unsafe.SliceData(dst))), n)
		c.copy(dst[:n], src[:n])
		m.pins.Add(0) // a full barrier: the octets above are seen before those below
		copy(dst[n:], src[n:])
		return
	}
	c.copy(dst, src)
}

func (c CopyMode) copy(dst, src []byte) {
	if c.Long {
		bulk.Copy(dst, src, c.More)
	} else {
		copy(dst, src)
	}
}

// lastWord is how many octets at the end of n > 0 at addr are written behind the others, and
// together: the longest aligned word that ends there. Programs poll the last octet, or a word:
// docs/decisions.md#V16.
func lastWord(addr uintptr, n int) int {
	k := 8
	for k > n || (addr+uintptr(n))%uintptr(k) != 0 {
		k /= 2
	}
	return k
}

// guarded is place where a mapping that somebody else made is involved: a fault in it becomes an
// error and the address that faulted. The seals of such mappings exclude faults; this is the net
// below.
func (m *MR) guarded(dst, src []byte, c CopyMode) (addr uintptr, err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			f, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r) // not a fault, but a mistake of ours
			}
			addr, err = f.Addr(), &faultError{cause: r}
		}
	}()
	m.place(dst, src, c)
	return 0, nil
}

// blame tells whose m is of a fault in m.
func (m *MR) blame(err error) error {
	if err != nil {
		m.pd.space.cfg.Violation(err)
	}
	return err
}

func within(b []byte, addr uintptr) bool {
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return addr >= p && addr-p < uintptr(len(b))
}

// full turns a short ReadAt or WriteAt into an error.
func full(n, want int, err error) error {
	if n == want {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("registered memory: %w", err)
}
