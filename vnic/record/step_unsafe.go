package record

import "unsafe"

// distance is how far behind the beginning of a that of b is in memory, if they are of one piece of
// it, and any number else.
func distance(a, b []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) -
		uintptr(unsafe.Pointer(unsafe.SliceData(a))))
}
