package abi

import (
	"sync/atomic"
	"unsafe"
)

// Word is the shared word at off of mem. All words that two processes share are reached through
// it. It panics if the word is not inside mem or not aligned: offsets are ours or have been
// checked.
func Word(mem []byte, off uint32) *atomic.Uint32 {
	p := unsafe.Pointer(&mem[off : off+4 : len(mem)][0])
	if uintptr(p)%4 != 0 {
		panic("shm: word not aligned")
	}
	return (*atomic.Uint32)(p)
}

// Word64 is Word for 64 bits.
func Word64(mem []byte, off uint32) *atomic.Uint64 {
	p := unsafe.Pointer(&mem[off : off+8 : len(mem)][0])
	if uintptr(p)%8 != 0 {
		panic("shm: word not aligned")
	}
	return (*atomic.Uint64)(p)
}

// Words is a run of n shared words from off on.
func Words(mem []byte, off, n uint32) []atomic.Uint32 {
	if n == 0 {
		return nil
	}
	first := Word(mem[:off+4*n:len(mem)], off)
	return unsafe.Slice(first, n)
}

// LastWord is how many octets at the end of n > 0 at addr are written behind the others, and at
// once: the longest aligned word that ends there. Programs poll the last octet, or a word:
// docs/decisions.md#V16.
func LastWord(addr uint64, n int) int {
	k := 8
	for k > n || (addr+uint64(n))%uint64(k) != 0 {
		k /= 2
	}
	return k
}
