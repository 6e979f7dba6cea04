package shm

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxAppCopies is how many copies to or from the program's own memory a session may have under way:
// each can hang, deaf to SIGKILL, and holds an OS thread then.
const maxAppCopies = 8

// A Memory is what a client lent for one region. Offsets count from the region's first octet. The
// rights of the region are the caller's business.
type Memory struct {
	length uint64
	s      *Session // told of faults; nil in tests

	shared *region // ModeShared: octets off.. of it
	off    uint64

	app  *appMem // ModeApp: octets addr.. of the program
	addr uint64
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

func (m *Memory) copy(p []byte, off uint64, write bool) error {
	if off > m.length || uint64(len(p)) > m.length-off {
		return syscall.EFAULT
	}
	if len(p) == 0 {
		return nil
	}
	if m.shared == nil {
		return m.app.copy(p, m.addr+off, write)
	}
	// The reference keeps the mapping for the time of the copy, whatever the session does.
	if !m.shared.acquire() {
		return syscall.EFAULT
	}
	defer m.shared.release()
	at := m.shared.mem[m.off+off:][:len(p)]
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
	if m.s != nil {
		m.s.Fail(violation("lent memory faulted"))
	}
	return syscall.EFAULT
}

// release gives the region's hold on the memory back.
func (m *Memory) release() {
	if m.shared != nil {
		m.shared.release()
	} else if m.app != nil {
		m.app.release()
	}
}

// An appMem is a client's /proc/self/mem.
type appMem struct {
	fd    int
	refs  atomic.Int32
	slots chan struct{} // a copy holds one
	over  <-chan struct{}
}

// newAppMem takes over fd if it is the memory of the process that has mapped the session page with
// its nonce at addr: verbs-abi 6.8. It closes fd if not.
func newAppMem(fd int, addr uint64, nonce [NonceLen]byte, over <-chan struct{}) (*appMem, error) {
	if err := checkAppMem(fd, addr, nonce); err != nil {
		unix.Close(fd)
		return nil, err
	}
	a := &appMem{fd: fd, slots: make(chan struct{}, maxAppCopies), over: over}
	a.refs.Store(1)
	return a, nil
}

func checkAppMem(fd int, addr uint64, nonce [NonceLen]byte) error {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return syscall.EINVAL // a pipe or a device could block or do anything
	}
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return syscall.EINVAL // FUSE could block for ever
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || fl&unix.O_ACCMODE != unix.O_RDWR {
		return syscall.EINVAL
	}
	// Other files of /proc are short, and none has content at an address of a mapping. The low 64
	// KiB are what vm.mmap_min_addr keeps free.
	if addr < 65536 || addr > 1<<63-1-NonceLen {
		return syscall.EINVAL
	}
	var got [NonceLen]byte
	if n, err := preadRetry(fd, got[:], addr); err != nil || n != len(got) || got != nonce {
		return syscall.EINVAL
	}
	return nil
}

func preadRetry(fd int, p []byte, addr uint64) (n int, err error) {
	for {
		if n, err = unix.Pread(fd, p, int64(addr)); err != unix.EINTR {
			return n, err
		}
	}
}

func pwriteRetry(fd int, p []byte, addr uint64) (n int, err error) {
	for {
		if n, err = unix.Pwrite(fd, p, int64(addr)); err != unix.EINTR {
			return n, err
		}
	}
}

// copy moves all of p or fails: a short transfer means that a page is missing, or that the process
// has gone.
func (a *appMem) copy(p []byte, addr uint64, write bool) error {
	select {
	case a.slots <- struct{}{}:
	case <-a.over: // all are stuck perhaps, and the session has ended
		return syscall.EFAULT
	}
	defer func() { <-a.slots }()
	if !a.acquire() {
		return syscall.EFAULT
	}
	defer a.release()
	var n int
	var err error
	if write {
		n, err = pwriteRetry(a.fd, p, addr)
	} else {
		n, err = preadRetry(a.fd, p, addr)
	}
	if err != nil || n != len(p) {
		return syscall.EFAULT
	}
	return nil
}

// busy is how many copies are under way.
func (a *appMem) busy() int { return len(a.slots) }

func (a *appMem) acquire() bool {
	for {
		n := a.refs.Load()
		if n <= 0 {
			return false
		}
		if a.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (a *appMem) release() {
	if a.refs.Add(-1) == 0 {
		unix.Close(a.fd)
	}
}

// checkLentMem looks whether fd is memory that cannot shrink under a mapping, and returns its size.
func checkLentMem(fd int) (int64, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, syscall.EINVAL
	}
	// Not hugetlbfs: a hole there can SIGBUS when no huge page is free.
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0, syscall.EINVAL
	}
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return 0, syscall.EINVAL
	}
	// The size is read again: it could shrink until the seal was there.
	if err := unix.Fstat(fd, &st); err != nil || st.Size <= 0 || st.Size > 1<<46 {
		return 0, syscall.EINVAL
	}
	return st.Size, nil
}
