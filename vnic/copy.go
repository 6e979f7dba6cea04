package vnic

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"unsafe"

	"github.com/vrnic/vrnic/internal/bulk"
	"github.com/vrnic/vrnic/internal/prefetch"
)

var (
	errGone   = errors.New("the region was deregistered or invalidated")
	errStaged = errors.New("the region can block")
)

// A faultError says that a mapping lent by a context's owner was not there when it was touched.
type faultError struct{ cause any }

func (e *faultError) Error() string { return fmt.Sprintf("fault in registered memory: %v", e.cause) }

// readAt fills p from m, from address addr on. The range has been checked.
func (m *MR) readAt(p []byte, addr uint64) error {
	if !m.pin() {
		return errGone
	}
	defer m.unpin()
	return m.readPinned(p, addr)
}

func (m *MR) readPinned(p []byte, addr uint64) error {
	off := addr - m.base
	switch {
	case m.mem != nil:
		n, err := m.mem.ReadAt(p, int64(m.skip+off))
		return full(n, len(p), err)
	case m.foreign:
		_, err := m.guarded(p, m.b[off:off+uint64(len(p))], way{})
		return m.blame(err)
	}
	copy(p, m.b[off:])
	return nil
}

// writeAt copies p into m at address addr. The range has been checked. The last octet is written
// behind all others if last is set: programs poll it (ib_write_lat). See lastWord.
func (m *MR) writeAt(p []byte, addr uint64, last bool) error {
	if !m.pin() {
		return errGone
	}
	defer m.unpin()
	return m.writePinned(p, addr, last)
}

func (m *MR) writePinned(p []byte, addr uint64, last bool) error {
	off := addr - m.base
	switch {
	case m.mem != nil:
		return writeMem(m.mem, p, int64(m.skip+off), last)
	case m.foreign:
		_, err := m.guarded(m.b[off:off+uint64(len(p))], p, way{last: last})
		return m.blame(err)
	}
	m.place(m.b[off:off+uint64(len(p))], p, way{last: last})
	return nil
}

// A hold keeps one region pinned over several copies, so that each needs no atomic operation. It is
// dropped before its owner waits for anything. Memory that can block is never held: see farHold.
type hold struct {
	m   *MR
	far farHold
}

// take pins m unless it is held already; false: it is gone.
func (h *hold) take(m *MR) bool {
	if h.m == m {
		return !m.disabled() // who revokes it waits for us, and need not wait long
	}
	h.drop()
	if !m.pin() {
		return false
	}
	h.m = m
	return true
}

// read is m.readAt with m held. What is wanted next goes on for ahead octets.
func (h *hold) read(m *MR, p []byte, addr uint64, ahead uint32) error {
	if m.mem != nil {
		return h.far.read(m, p, addr, ahead)
	}
	if !h.take(m) {
		return errGone
	}
	m.soon(addr, uint64(len(p)), uint64(ahead))
	return m.readPinned(p, addr)
}

// How far before it is copied memory is asked for, in segments, and the longest segment that it is done for: in longer ones
// the processor sees by itself what comes next. Measured with segments of 1448 octets and memory beyond the caches.
const (
	soonSegments = 3
	soonMax      = 4096
)

// soon asks the caches for what is read some segments after the n octets at addr, if the piece goes on as far: ahead octets.
func (m *MR) soon(addr, n, ahead uint64) {
	from := addr - m.base + soonSegments*n
	if ahead <= (soonSegments-1)*n || n > soonMax || from >= uint64(len(m.b)) {
		return
	}
	prefetch.Read(m.b[from:][:min(n, ahead-(soonSegments-1)*n, uint64(len(m.b))-from)])
}

// write is m.writeAt with m held.
func (h *hold) write(m *MR, p []byte, addr uint64, last bool) error {
	if m.mem != nil {
		return h.far.write(m, p, addr, last)
	}
	if !h.take(m) {
		return errGone
	}
	return m.writePinned(p, addr, last)
}

func (h *hold) drop() {
	if h.m != nil {
		h.m.unpin()
		h.m = nil
	}
}

// longMessage is the length from which on a message goes past the caches on its way within a device: see bulk.Copy. A
// shorter one is still in a cache when the program that it is for looks at it.
const longMessage = 1 << 20

// A way says how octets are copied.
type way struct {
	last bool // they are the end of a message: see lastWord
	long bool // they are of a long message
	more bool // of one whose source goes on behind them
}

// copyMR copies n octets between two regions that are directly addressable; both ranges have been
// checked. The error comes on the side of the region that was to blame.
func copyMR(dst *MR, to uint64, src *MR, from uint64, n uint32, w way) (dstErr, srcErr error) {
	if !dst.pin() {
		return errGone, nil
	}
	defer dst.unpin()
	if !src.pin() {
		return nil, errGone
	}
	defer src.unpin()
	return copyPinned(dst, to, src, from, n, w)
}

// copyPinned is copyMR with both pinned.
func copyPinned(dst *MR, to uint64, src *MR, from uint64, n uint32, w way) (dstErr, srcErr error) {
	switch { // loopEnd has looked
	case dst.mem != nil:
		return errStaged, nil
	case src.mem != nil:
		return nil, errStaged
	}
	d := dst.b[to-dst.base:][:n]
	s := src.b[from-src.base:][:n]
	if !dst.foreign && !src.foreign {
		dst.place(d, s, w)
		return nil, nil
	}
	addr, err := dst.guarded(d, s, w)
	if within(s, addr) {
		return nil, src.blame(err)
	}
	return dst.blame(err), nil
}

// place copies src to dst, which lies in m.
func (m *MR) place(dst, src []byte, w way) {
	if n := len(src); w.last && n > 0 {
		n -= lastWord(uintptr(unsafe.Pointer(unsafe.SliceData(dst))), n)
		w.copy(dst[:n], src[:n])
		m.pins.Add(0) // a full barrier: the octets above are seen before those below
		copy(dst[n:], src[n:])
		return
	}
	w.copy(dst, src)
}

func (w way) copy(dst, src []byte) {
	if w.long {
		bulk.Copy(dst, src, w.more)
	} else {
		copy(dst, src)
	}
}

// lastWord is how many octets at the end of n > 0 at addr are written behind the others, and together: the
// longest aligned word that ends there. Programs poll the last octet, or a word.
func lastWord(addr uintptr, n int) int {
	k := 8
	for k > n || (addr+uintptr(n))%uintptr(k) != 0 {
		k /= 2
	}
	return k
}

// guarded is place where a mapping that somebody else made is involved: a fault in it becomes an
// error and the address that faulted. The seals of such mappings exclude faults; this is the net below.
func (m *MR) guarded(dst, src []byte, w way) (addr uintptr, err error) {
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
	m.place(dst, src, w)
	return 0, nil
}

// blame ends the context of m for a fault in m.
func (m *MR) blame(err error) error {
	if err != nil {
		m.pd.ctx.violation(err)
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
