package mem

import "unsafe"

const pageSize = 4096

// Pages returns size zeroes that start on a page.
func Pages(size int) []byte {
	b := make([]byte, size+pageSize-1)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (pageSize - 1))
	return b[off : off+size : off+size]
}
