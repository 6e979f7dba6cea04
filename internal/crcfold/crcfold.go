// Package crcfold is the long part of a CRC of 32 bits, of whatever polynomial: it takes octets
// together until 16 are left that have the same remainder.
//
// Of processors that multiply without carries it is for those that do so with four pairs at once
// (VPCLMULQDQ with AVX-512). What has been seen is kept as 2048 bits, and with each step 128 of
// them are moved past all 2048 by two multiplications, to where the next octets are added.
package crcfold

const (
	// Step is what a number of octets that Fold takes is a multiple of, and Least the least of them.
	Step  = 64
	Least = 4 * Step
)

// A Polynomial is what Fold multiplies with. A pair moves 128 bits past 8*m octets: their first 64
// go 8 octets farther.
type Polynomial [14]uint64

// New makes the Polynomial of p, bit-reflected, as hash/crc32 has them.
func New(p uint32) *Polynomial {
	s := Shifts(p, Least/8+2)
	var k Polynomial
	for i, m := range [...]int{Least / 8, 2 * Step / 8, Step / 8, 6, 4, 2} {
		k[2*i], k[2*i+1] = s[m+1], s[m]
	}
	return &k
}

// Shifts are n factors: s[m] moves a sum past 8*m octets, and is x^(64m-33) mod p, bit-reflected.
// s[0] is none.
func Shifts(p uint32, n int) []uint64 {
	s := make([]uint64, n)
	r := uint32(1) // x^31
	for m := 1; m < n; m++ {
		s[m] = uint64(r)
		for range 64 {
			r = r>>1 ^ -(r&1)&p
		}
	}
	return s
}
