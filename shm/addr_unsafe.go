package shm

import "unsafe"

// addrOf is the address of b's first octet in this process. It is a name for the octet, in SGEs and
// for the peer; it is never made a pointer again.
func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
