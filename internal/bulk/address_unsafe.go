package bulk

import "unsafe"

const line = 64 // of the caches

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// toLine is how many octets there are until a line begins.
func toLine(b []byte) int { return int(-address(b) % line) }

// overlap says whether two slices of one length have octets in common.
func overlap(a, b []byte) bool {
	n := uintptr(len(a))
	return address(a)-address(b) < n || address(b)-address(a) < n
}
