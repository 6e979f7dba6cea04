package crc32c

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// The CRC32 instruction takes eight octets, has a latency of three cycles, and may begin in each:
// three lanes keep it busy. The first lane's sum is moved past the two others, and the second's
// past the third, by a carry-less multiplication with x^n mod P and one more CRC32, which reduces
// the product.
//
// A processor that multiplies four pairs at once (VPCLMULQDQ with AVX-512) is faster without lanes:
// what has been seen is kept as 2048 bits that have the same remainder, and with each step 128 of
// them are moved past all 2048 by two multiplications, to where the next octets are added.

var (
	fast = cpu.X86.HasSSE42 && cpu.X86.HasPCLMULQDQ
	wide = fast && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ
)

const (
	laneWords  = 128 // at most, so that the table is short
	blockWords = 3   // what a step of the lanes takes
	short      = 96  // below, the reduction costs more than the lanes save
	vector     = 64  // octets that are folded at once
	folded     = 4 * vector
)

// shifts[m] moves a sum past 8*m octets: x^(64m-33) mod P, bit-reflected. The product with a sum is
// 33 bits short of the place that CRC32 reduces from.
var shifts = makeShifts()

func makeShifts() (s [2*laneWords + 1]uint64) {
	r := uint32(1) // x^31
	for m := 1; m < len(s); m++ {
		s[m] = uint64(r)
		for range 64 {
			r = r>>1 ^ -(r&1)&crc32.Castagnoli
		}
	}
	return s
}

// folds are what fold multiplies with. A pair moves 128 bits past 8*m octets: their first 64 go 8
// octets farther.
var folds = func() (k [14]uint64) {
	for i, m := range [...]int{folded / 8, 2 * vector / 8, vector / 8, 6, 4, 2} {
		k[2*i], k[2*i+1] = shifts[m+1], shifts[m]
	}
	return k
}()

// fold adds n octets at p to c; n is a multiple of vector, and folded at least.
//
//go:noescape
func fold(c uint32, p *byte, n int, k *[14]uint64) uint32

// lanes adds 24*words octets at p to c; words is not 0. shift1 moves past a lane, shift2 past two.
// Here and below c is inverted already.
//
//go:noescape
func lanes(c uint32, p *byte, words int, shift1, shift2 uint64) uint32

// tail adds n octets at p to c; n is not 0.
//
//go:noescape
func tail(c uint32, p *byte, n int) uint32

func update(c uint32, p []byte) uint32 {
	if !fast {
		return crc32.Update(c, table, p)
	}
	c = ^c
	if wide && len(p) >= folded {
		n := len(p) &^ (vector - 1)
		c = fold(c, &p[0], n, &folds)
		p = p[n:]
	}
	for len(p) >= short {
		k := min(len(p)/(8*blockWords), laneWords)
		c = lanes(c, &p[0], k, shifts[k], shifts[2*k])
		p = p[8*blockWords*k:]
	}
	if len(p) != 0 {
		c = tail(c, &p[0], len(p))
	}
	return ^c
}
