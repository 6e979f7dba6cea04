package shm

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A region is a mapping of a memfd with a count of those who use it. It is unmapped when the count
// comes to zero, never before and never by the garbage collector.
type region struct {
	mem   []byte
	refs  atomic.Int32
	empty bool   // give its pages back at the end, although the client may still hold the fd
	free  func() // accounting, after the munmap; may be nil
}

// newRegion makes a zeroed memfd of size octets (rounded up to pages) whose size is fixed, maps it
// and returns the fd for the client; the caller closes it.
func newRegion(name string, size int, free func()) (_ *region, fd int, err error) {
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
	size = pageUp(size)
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fd, os.NewSyscallError("ftruncate", err)
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return nil, fd, os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	r, err := mapRegion(fd, size, free)
	if err != nil {
		return nil, fd, err
	}
	r.empty = true
	return r, fd, nil
}

// mapRegion maps size octets of fd. The mapping does not need the fd any more.
func mapRegion(fd, size int, free func()) (*region, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	liveRegions.Add(1)
	r := &region{mem: mem, free: free}
	r.refs.Store(1)
	return r, nil
}

// liveRegions counts mappings, for leak checks.
var liveRegions atomic.Int64

// acquire adds a user; false if the region has gone.
func (r *region) acquire() bool {
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

// release takes a user away.
func (r *region) release() {
	switch n := r.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("shm: region released too often")
	}
	if r.empty {
		unix.Madvise(r.mem, unix.MADV_REMOVE) //nolint:errcheck // the client pays for the pages then
	}
	if err := unix.Munmap(r.mem); err != nil {
		panic(fmt.Sprintf("shm: munmap: %v", err))
	}
	liveRegions.Add(-1)
	if r.free != nil {
		r.free()
	}
}

var pageSize = os.Getpagesize()

func pageUp(n int) int { return (n + pageSize - 1) &^ (pageSize - 1) }

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
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) //nolint:errcheck // always there
	return time.Now(), uint64(ts.Nano())
}()
