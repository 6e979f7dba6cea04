package shm

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
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

// An appMem is a client's own memory: its /proc/self/mem and, where that is allowed, its process. The
// descriptor is what counts: it is bound to the address space, whatever becomes of the process. A
// process is faster for what is longer than a page, since its pages are copied once and not twice.
type appMem struct {
	fd    int
	proc  *vmProc // or nil; set before the first region is registered
	refs  atomic.Int32
	slots chan struct{} // a copy holds one
	over  <-chan struct{}

	// The control goroutine's.
	nonceAddr uint64
	looked    bool // for proc
}

// newAppMem takes over fd if it is the memory of the process that has mapped the session page with
// its nonce at addr: the ABI's threat model. It closes fd if not.
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
func (a *appMem) copy(p []byte, addr uint64, dir copyDir) error {
	select {
	case a.slots <- struct{}{}:
	default:
		select {
		case a.slots <- struct{}{}:
		case <-a.over: // all are stuck perhaps, and the session has ended
			return syscall.EFAULT
		}
	}
	defer func() { <-a.slots }()
	if !a.acquire() {
		return syscall.EFAULT
	}
	defer a.release()
	if len(p) >= vmLeast && a.proc.usable() {
		n, err := a.proc.copy(p, addr, dir)
		if err != unix.ESRCH && err != unix.EPERM {
			return whole(n, len(p), err)
		}
		a.proc.end() // the program's first thread has ended, or it has made itself undumpable
	}
	return a.copyFD(p, addr, dir)
}

// copyFD is copy through the descriptor.
func (a *appMem) copyFD(p []byte, addr uint64, dir copyDir) error {
	if dir == copyOut {
		n, err := preadRetry(a.fd, p, addr)
		return whole(n, len(p), err)
	}
	if dir == copyLast {
		if n := len(p) - lastWord(addr, len(p)); n > 0 {
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

// lastWord is how many octets at the end of n > 0 at addr are copied behind the others, and at once: the
// longest aligned word that ends there. Programs poll the last octet, or a word:
// docs/decisions.md#V16.
func lastWord(addr uint64, n int) int {
	k := 8
	for k > n || (addr+uint64(n))%uint64(k) != 0 {
		k /= 2
	}
	return k
}

func whole(n, want int, err error) error {
	if err != nil || n != want {
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
		a.proc.close()
		unix.Close(a.fd)
	}
}
