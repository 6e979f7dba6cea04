package osmem

import (
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
)

// maxAppCopies is how many copies to or from the program's own memory a session may have under way:
// each can hang, deaf to SIGKILL, and holds an OS thread then.
const maxAppCopies = 8

// A copyDir says which way a copy goes.
type copyDir uint8

const (
	copyOut  copyDir = iota // of the program's memory
	copyIn                  // into it
	copyLast                // into it, the last word behind all others
)

// An AppMem is a client's own memory: its /proc/self/mem and, where that is allowed, its process.
// The descriptor is what counts: it is bound to the address space, whatever becomes of the process.
// A process is faster for what is longer than a page, since its pages are copied once and not
// twice.
type AppMem struct {
	fd    int
	proc  atomic.Pointer[vmProc] // or nil
	refs  atomic.Int32
	slots chan struct{} // a copy holds one
	over  <-chan struct{}

	nonceAddr uint64
	nonce     [abi.NonceLen]byte
	looked    sync.Once // for proc
}

// NewAppMem takes over fd if it is the memory of the process that has mapped the session page with
// its nonce at addr: the ABI's threat model. It closes fd if not.
func NewAppMem(fd int, addr uint64, nonce [abi.NonceLen]byte, over <-chan struct{}) (
	*AppMem, error) {
	if err := checkAppMem(fd, addr, nonce); err != nil {
		unix.Close(fd)
		return nil, err
	}
	a := &AppMem{fd: fd, slots: make(chan struct{}, maxAppCopies), over: over, nonceAddr: addr,
		nonce: nonce}
	a.refs.Store(1)
	return a, nil
}

// NameProcess looks, once, whether the memory can be reached by the number of its process, peer,
// too.
func (a *AppMem) NameProcess(peer Peer, self ProcessRights) {
	a.looked.Do(func() { a.proc.Store(openVM(peer, self, a.nonceAddr, a.nonce)) })
}

// ByProcess reports whether long copies name the process.
func (a *AppMem) ByProcess() bool { return a.proc.Load().usable() }

func checkAppMem(fd int, addr uint64, nonce [abi.NonceLen]byte) error {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return syscall.EINVAL // a pipe or a device could block or do anything
	}
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return syscall.EINVAL // FUSE could block for ever
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil ||
		fl&unix.O_ACCMODE != unix.O_RDWR {
		return syscall.EINVAL
	}
	// Other files of /proc are short, and none has content at an address of a mapping. The low 64
	// KiB are what vm.mmap_min_addr keeps free.
	if addr < 65536 || addr > 1<<63-1-abi.NonceLen {
		return syscall.EINVAL
	}
	var got [abi.NonceLen]byte
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
func (a *AppMem) copy(p []byte, addr uint64, dir copyDir) error {
	if !a.Begin() {
		return syscall.EFAULT
	}
	defer a.End()
	if !a.acquire() {
		return syscall.EFAULT
	}
	defer a.Release()
	if proc := a.proc.Load(); len(p) >= vmMin && proc.usable() {
		n, err := proc.copy(p, addr, dir)
		switch {
		case err == nil && n == len(p):
			return nil
		case err == unix.ESRCH || err == unix.EPERM:
			proc.end() // the program's first thread has ended, or it has made itself undumpable
		}
		// Else it is not there, or the program has taken it from itself for a while, as vrnic exec
		// --check does: the descriptor reaches that, as it does what is short.
	}
	return a.copyFD(p, addr, dir)
}

// Begin takes a place among the copies that are under way, and waits for one; false if the session
// has ended meanwhile: all may be stuck.
func (a *AppMem) Begin() bool {
	select {
	case a.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case a.slots <- struct{}{}:
		return true
	case <-a.over:
		return false
	}
}

// End gives the place back.
func (a *AppMem) End() { <-a.slots }

// copyFD is copy through the descriptor.
func (a *AppMem) copyFD(p []byte, addr uint64, dir copyDir) error {
	if dir == copyOut {
		n, err := preadRetry(a.fd, p, addr)
		return whole(n, len(p), err)
	}
	if dir == copyLast {
		if n := len(p) - abi.LastWord(addr, len(p)); n > 0 {
			k, err := pwriteRetry(a.fd, p[:n], addr)
			if err := whole(k, n, err); err != nil {
				return err
			}
			p, addr = p[n:], addr+uint64(n)
		}
	}
	n, err := pwriteRetry(a.fd, p, addr)
	return whole(n, len(p), err)
}

func whole(n, want int, err error) error {
	if err != nil || n != want {
		return syscall.EFAULT
	}
	return nil
}

// Busy is how many copies are under way.
func (a *AppMem) Busy() int { return len(a.slots) }

func (a *AppMem) acquire() bool {
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

func (a *AppMem) Release() {
	if a.refs.Add(-1) == 0 {
		a.proc.Load().close()
		unix.Close(a.fd)
	}
}
