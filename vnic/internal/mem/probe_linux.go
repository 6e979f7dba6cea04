package mem

import (
	"sync"
	"syscall"
	"unsafe"
)

// Since Linux 5.14: fault a page in as a read or a write would, without changing it.
const (
	madvPopulateRead  = 22
	madvPopulateWrite = 23
)

// probe is an error if this process may not read b, or write it, itself: there is nothing, or it is
// mapped with fewer rights, or it is a device's. It looks at the first and the last page of b,
// which is not empty.
func probe(b []byte, write bool) error {
	if !canProbe() {
		return nil
	}
	advice := madvPopulateRead
	if write {
		advice = madvPopulateWrite
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	first, last := start&^(pageSize-1), (start+uintptr(len(b))-1)&^(pageSize-1)
	e := populate(first, advice)
	if e == 0 && last != first {
		e = populate(last, advice)
	}
	switch e {
	case syscall.EFAULT, syscall.ENOMEM, syscall.EINVAL:
		return e
	}
	return nil
}

// canProbe asks about a page that is there: an older kernel does not know the question.
var canProbe = sync.OnceValue(func() bool {
	page := Pages(pageSize)
	return populate(uintptr(unsafe.Pointer(unsafe.SliceData(page))), madvPopulateWrite) == 0
})

func populate(page uintptr, advice int) syscall.Errno {
	_, _, e := syscall.Syscall(syscall.SYS_MADVISE, page, pageSize, uintptr(advice))
	return e
}
