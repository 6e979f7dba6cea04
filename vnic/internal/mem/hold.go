package mem

import "github.com/vrnic/vrnic/internal/prefetch"

// A Hold keeps one region pinned over several copies, so that each needs no atomic operation. It is
// dropped before its owner waits for anything. Memory that can block is never pinned so; its copies
// are put together instead. The zero Hold is ready; it is not safe for several goroutines.
type Hold struct {
	m      *MR
	gather gather
}

// Take pins m unless it is held already; false: it is gone.
func (h *Hold) Take(m *MR) bool {
	if h.m == m {
		return !m.Revoked() // who revokes it waits for us, and need not wait long
	}
	h.Drop()
	if !m.Pin() {
		return false
	}
	h.m = m
	return true
}

// Drop unpins what is held.
func (h *Hold) Drop() {
	if h.m != nil {
		h.m.Unpin()
		h.m = nil
	}
}

// Read fills p from m, from address addr on; the range has been checked. What is wanted next goes
// on for ahead octets.
func (h *Hold) Read(m *MR, p []byte, addr uint64, ahead uint32) error {
	if m.mem != nil {
		return h.gather.read(m, p, addr, ahead)
	}
	if !h.Take(m) {
		return ErrGone
	}
	m.prefetch(addr, uint64(len(p)), uint64(ahead))
	return m.readPinned(p, addr)
}

// Write copies p into m at address addr; the range has been checked. last: p is the end of a
// message.
func (h *Hold) Write(m *MR, p []byte, addr uint64, last bool) error {
	if m.mem != nil {
		return h.gather.write(m, p, addr, last)
	}
	if !h.Take(m) {
		return ErrGone
	}
	return m.writePinned(p, addr, last)
}

// SetCollect says whether what is written to memory that can block may wait for Flush.
func (h *Hold) SetCollect(on bool) { h.gather.collect = on }

// Collected is the region of what waits for Flush, nil: nothing does.
func (h *Hold) Collected() *MR {
	if h.gather.n == 0 {
		return nil
	}
	return h.gather.m
}

// Flush writes what waits.
func (h *Hold) Flush() error { return h.gather.flush(false) }

// ForgetAhead forgets what was read ahead: a message is not made of what was there for another.
func (h *Hold) ForgetAhead() { h.gather.forget() }

// Release gives back the buffer in which copies were put together. Nothing waits for Flush.
func (h *Hold) Release() { h.gather.release() }

// How far before it is copied memory is asked for, in segments, and the longest segment that it is
// done for: in longer ones the processor sees by itself what comes next. Measured with segments of
// 1448 octets and memory beyond the caches.
const (
	prefetchSegments = 3
	prefetchMax      = 4096
)

// prefetch asks the caches for what is read some segments after the n octets at addr, if the piece
// goes on as far: ahead octets.
func (m *MR) prefetch(addr, n, ahead uint64) {
	from := addr - m.base + prefetchSegments*n
	if ahead <= (prefetchSegments-1)*n || n > prefetchMax || from >= uint64(len(m.b)) {
		return
	}
	prefetch.Read(m.b[from:][:min(n, ahead-(prefetchSegments-1)*n, uint64(len(m.b))-from)])
}
