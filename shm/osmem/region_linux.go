package osmem

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Region is a mapping of a memfd with a count of those who use it. It is unmapped when the count
// comes to zero, never before and never by the garbage collector.
type Region struct {
	Mem   []byte
	refs  atomic.Int32
	empty bool   // give its pages back at the end, although the client may still hold the fd
	free  func() // accounting, after the munmap; may be nil
}

// NewRegion makes a zeroed memfd of size octets (rounded up to pages) whose size is fixed, maps it
// and returns the fd for the client; the caller closes it.
func NewRegion(name string, size int, free func()) (*Region, int, error) {
	return newRegion(name, size, free, 0)
}

// NewReadOnlyRegion is NewRegion for what nobody but this process may write.
func NewReadOnlyRegion(name string, size int, free func()) (*Region, int, error) {
	return newRegion(name, size, free, unix.F_SEAL_FUTURE_WRITE)
}

func newRegion(name string, size int, free func(), seals int) (_ *Region, fd int, err error) {
	fd, err = unix.MemfdCreate("vrnic-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	size = PageUp(size)
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fd, os.NewSyscallError("ftruncate", err)
	}
	r, err := MapRegion(fd, size, nil)
	if err != nil {
		return nil, fd, err
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL|seals); err != nil {
		r.Release()
		return nil, fd, os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	r.empty, r.free = true, free
	return r, fd, nil
}

// MapRegion maps size octets of fd. The mapping does not need the fd any more.
func MapRegion(fd, size int, free func()) (*Region, error) {
	return mapRegion(fd, size, unix.PROT_READ|unix.PROT_WRITE, free)
}

func mapRegion(fd, size, prot int, free func()) (*Region, error) {
	mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	LiveRegions.Add(1)
	r := &Region{Mem: mem, free: free}
	r.refs.Store(1)
	return r, nil
}

// KeepFromDumps leaves the memory out of core dumps of this process: a daemon's are not to hold
// what is its clients'.
func (r *Region) KeepFromDumps() {
	_ = unix.Madvise(r.Mem, unix.MADV_DONTDUMP) // of memory that may have it
}

// maxDaemonMem bounds one memfd of the daemon, in octets: far above the largest ring, and far below
// what would exhaust the address space.
const maxDaemonMem = 1 << 30

// MapSealed maps the whole of a memfd that the daemon sent and closes fd. It does so only if the
// memory cannot shrink under the mapping (docs/abi.md#threat-model): a regular, sealed file of
// minSize octets at least.
func MapSealed(fd, minSize int) (*Region, error) {
	defer unix.Close(fd)
	size, err := sealedSize(fd, minSize, maxDaemonMem)
	if err != nil {
		return nil, err
	}
	r, err := MapRegion(fd, size, nil)
	if err != nil {
		return nil, fmt.Errorf("shm: memory from the daemon: %w", err)
	}
	return r, nil
}

// MapPeers is MapSealed for what another program has lent, or is told of it: whole pages, of any
// size, for writing too if write is set. It is left out of core dumps of this process.
func MapPeers(fd, minSize int, write bool) (*Region, error) {
	defer unix.Close(fd)
	size, err := sealedSize(fd, minSize, math.MaxInt/2)
	if err != nil {
		return nil, err
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	r, err := mapRegion(fd, PageUp(size), prot, nil)
	if err != nil {
		return nil, err
	}
	r.KeepFromDumps()
	return r, nil
}

// sealedSize is that of memory from the daemon that cannot shrink.
func sealedSize(fd, least, most int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("shm: memory from the daemon: %w", os.NewSyscallError("fstat", err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, errors.New("shm: memory from the daemon is not a regular file")
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return 0, errors.New("shm: memory from the daemon is not sealed against shrinking")
	}
	if st.Size < int64(least) || st.Size > int64(most) {
		return 0, fmt.Errorf("shm: memory from the daemon has %d octets, want %d to %d", st.Size, least,
			most)
	}
	return int(st.Size), nil
}

// LiveRegions counts mappings, for leak checks.
var LiveRegions atomic.Int64

// Acquire adds a user; false if the region has gone.
func (r *Region) Acquire() bool {
	for {
		n := r.refs.Load()
		if n <= 0 {
			return false
		}
		if r.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release takes a user away.
func (r *Region) Release() {
	switch n := r.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("shm: region released too often")
	}
	if r.empty {
		_ = unix.Madvise(r.Mem, unix.MADV_REMOVE) // the client pays for the pages then
	}
	if err := unix.Munmap(r.Mem); err != nil {
		panic(fmt.Sprintf("shm: munmap: %v", err))
	}
	LiveRegions.Add(-1)
	if r.free != nil {
		r.free()
	}
}

// CloseFD closes a descriptor with nothing left to write.
func CloseFD(fd int) { unix.Close(fd) } // nothing to lose

// CloseFDs closes descriptors with nothing left to write.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

var PageSize = os.Getpagesize()

func PageUp(n int) int { return (n + PageSize - 1) &^ (PageSize - 1) }

// guardedCopy copies src to dst, of which one or both are mappings that a client made. The seals
// exclude a SIGBUS; should one come all the same, it is false instead of the end of the daemon.
func guardedCopy(dst, src []byte) (ok bool) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if ok {
			return
		}
		if r := recover(); r != nil {
			if _, fault := r.(interface {
				runtime.Error
				Addr() uintptr
			}); !fault {
				panic(r)
			}
		}
	}()
	copy(dst, src)
	return true
}

// MonotonicNS is CLOCK_MONOTONIC in nanoseconds, for CQE.Timestamp, without a system call.
func MonotonicNS() uint64 { return monoBase + uint64(time.Since(monoStart)) }

var monoStart, monoBase = func() (time.Time, uint64) {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // always there
	return time.Now(), uint64(ts.Nano())
}()

// An ID tells namespaces that there are from each other.
type ID struct{ dev, ino uint64 }

// NamespaceID is that of the namespace that fd is; EINVAL: of none. Of another file it may take as
// long as its file system does.
func NamespaceID(fd int) (ID, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return ID{}, syscall.EINVAL
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ID{}, err
	}
	return ID{st.Dev, st.Ino}, nil
}

// DupFD returns another descriptor of what fd is.
func DupFD(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
