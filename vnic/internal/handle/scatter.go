package handle

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
)

// A Permutation is a random one of numbers, of which nobody can guess the next: a Feistel network
// of eight rounds with AES under a fresh key as the round function. Its user has a lock for it.
type Permutation struct {
	block   cipher.Block
	in, out [aes.BlockSize]byte
}

// NewPermutation makes one; an error says that there are no random numbers.
func NewPermutation() (*Permutation, error) {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return &Permutation{block: b}, nil
}

// Of is where v of so many bits, an even number, goes to. Numbers use that are 8 apart make
// permutations that have nothing to do with each other.
func (p *Permutation) Of(v uint32, bits int, use byte) uint32 {
	half := bits / 2
	mask := uint32(1)<<half - 1
	l, r := v>>half, v&mask
	for round := range byte(8) {
		l, r = r, l^uint32(binary.BigEndian.Uint16(p.Random(use+round, r)))&mask
	}
	return l<<half | r
}

// Random is octets that hang on use and v, until the next call.
func (p *Permutation) Random(use byte, v uint32) []byte {
	p.in[0] = use
	binary.BigEndian.PutUint32(p.in[1:], v)
	p.block.Encrypt(p.out[:], p.in[:])
	return p.out[:]
}

// A Scatter gives all numbers of 24 bits in an order that nobody can guess, each again only when
// all others were given: a counter under a Permutation.
type Scatter struct {
	*Permutation
	counter uint32
}

// NewScatter makes one; an error says that there are no random numbers.
func NewScatter() (*Scatter, error) {
	p, err := NewPermutation()
	return &Scatter{Permutation: p}, err
}

// Next is the next number.
func (s *Scatter) Next() uint32 {
	v := s.Of(s.counter, 24, 0)
	s.counter = (s.counter + 1) & Max
	return v
}
