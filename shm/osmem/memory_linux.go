package osmem

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
)

// A Memory is what a client lent for one region. Offsets count from the region's first octet. The
// rights of the region are the caller's business.
type Memory struct {
	length uint64
	fail   func(error) // told of faults

	shared *Region // ModeShared: octets off.. of it
	off    uint64

	app  *AppMem // ModeApp: octets addr.. of the program
	addr uint64
}

// SharedMemory is a region of length octets from off on of a mapping, which it holds until release.
// fail is told when a copy faults.
func SharedMemory(r *Region, off, length uint64, fail func(error)) *Memory {
	r.Acquire()
	return &Memory{length: length, fail: fail, shared: r, off: off}
}

// AppMemory is a region of length octets from addr on of the program's own memory, which it holds
// until release.
func AppMemory(a *AppMem, addr, length uint64) *Memory {
	a.acquire()
	return &Memory{length: length, app: a, addr: addr}
}

// Len is how many octets the region has.
func (m *Memory) Len() uint64 { return m.length }

// Shared reports whether any goroutine may touch the memory (ModeShared). If not, only those
// started by Session.Go may, with no lock that another session or the network needs: the copy can
// hang for as long as the client likes.
func (m *Memory) Shared() bool { return m.shared != nil }

// ReadAt copies octets from off on to p. EFAULT if they are not all there.
func (m *Memory) ReadAt(p []byte, off uint64) error { return m.copy(p, off, false) }

// WriteAt copies p to off. EFAULT if it did not all fit; a part may have been written.
func (m *Memory) WriteAt(p []byte, off uint64) error { return m.copy(p, off, true) }

// WriteLast is WriteAt for the end of a message: whoever sees the last octet of p sees all of it.
func (m *Memory) WriteLast(p []byte, off uint64) error {
	if n := len(p); m.shared != nil && n > 0 {
		n -= abi.LastWord(m.off+off, n) // the mapping begins at a page
		if err := m.copy(p[:n], off, true); err != nil {
			return err
		}
		return m.copy(p[n:], off+uint64(n), true) // behind an atomic operation on the reference count
	}
	return m.copyAs(p, off, copyLast)
}

func (m *Memory) copy(p []byte, off uint64, write bool) error {
	dir := copyOut
	if write {
		dir = copyIn
	}
	return m.copyAs(p, off, dir)
}

func (m *Memory) copyAs(p []byte, off uint64, dir copyDir) error {
	write := dir != copyOut
	if off > m.length || uint64(len(p)) > m.length-off {
		return syscall.EFAULT
	}
	if len(p) == 0 {
		return nil
	}
	if m.shared == nil {
		return m.app.copy(p, m.addr+off, dir)
	}
	// The reference keeps the mapping for the time of the copy, whatever the session does.
	if !m.shared.Acquire() {
		return syscall.EFAULT
	}
	defer m.shared.Release()
	at := m.shared.Mem[m.off+off:][:len(p)]
	ok := false
	if write {
		ok = guardedCopy(at, p)
	} else {
		ok = guardedCopy(p, at)
	}
	if !ok {
		return m.faulted()
	}
	return nil
}

func (m *Memory) faulted() error {
	m.fail(abi.Violation("lent memory faulted"))
	return syscall.EFAULT
}

// Close gives the region's hold on the memory back.
func (m *Memory) Close() {
	if m.shared != nil {
		m.shared.Release()
	} else if m.app != nil {
		m.app.Release()
	}
}

// CheckLent looks whether fd is memory that cannot shrink under a mapping, and returns its size. It
// never waits: only memory has seals, and what has none is asked for nothing else.
func CheckLent(fd int) (int64, error) {
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil ||
		seals&unix.F_SEAL_SHRINK == 0 {
		return 0, syscall.EINVAL
	}
	// Not hugetlbfs: a hole there can SIGBUS when no huge page is free.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0, syscall.EINVAL
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG ||
		st.Size <= 0 || st.Size > 1<<46 {
		return 0, syscall.EINVAL
	}
	return st.Size, nil
}
