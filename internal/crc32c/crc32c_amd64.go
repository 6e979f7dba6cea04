package crc32c

import (
	"encoding/binary"
	"hash/crc32"

	"golang.org/x/sys/cpu"

	"github.com/vrnic/vrnic/internal/crcfold"
)

// The CRC32 instruction takes eight octets, has a latency of three cycles, and may begin in each:
// three lanes keep it busy. The first lane's sum is moved past the two others, and the second's
// past the third, by a carry-less multiplication with x^n mod P and one more CRC32, which reduces
// the product: that is 33 bits short of the place that CRC32 reduces from.
//
// Where crcfold is available it is faster without lanes.

var (
	fast = cpu.X86.HasSSE42 && cpu.X86.HasPCLMULQDQ
	wide = fast && crcfold.Available
)

const (
	laneWords  = 128 // at most, so that the table is short
	blockWords = 3   // what a step of the lanes takes
	short      = 96  // below, the reduction costs more than the lanes save
)

var (
	// shifts[m] moves a sum past 8*m octets.
	shifts     = crcfold.Shifts(crc32.Castagnoli, 2*laneWords+1)
	polynomial = crcfold.New(crc32.Castagnoli)
)

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
	if wide && len(p) >= crcfold.Least {
		n := len(p) &^ (crcfold.Step - 1)
		var rest [16]byte
		lo, hi := crcfold.Fold(c, &p[0], n, polynomial)
		binary.LittleEndian.PutUint64(rest[:], lo)
		binary.LittleEndian.PutUint64(rest[8:], hi)
		c = tail(0, &rest[0], len(rest))
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
