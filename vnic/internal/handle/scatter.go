package handle

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
)

// A Scatter gives all numbers of 24 bits in an order that nobody can guess, each again only when
// all others were given: a counter under a random permutation, a Feistel network of eight rounds
// with AES under a fresh key as the round function. Its user has a lock for it.
type Scatter struct {
	block   cipher.Block
	counter uint32
	in, out [aes.BlockSize]byte
}

// NewScatter makes one; an error says that there are no random numbers.
func NewScatter() (*Scatter, error) {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return &Scatter{block: b}, nil
}

// Next is the next number.
func (s *Scatter) Next() uint32 {
	l, r := s.counter>>12, s.counter&0xfff
	s.counter = (s.counter + 1) & Max
	for round := range byte(8) {
		s.in[0] = round
		binary.BigEndian.PutUint32(s.in[1:], r)
		s.block.Encrypt(s.out[:], s.in[:])
		l, r = r, l^uint32(binary.BigEndian.Uint16(s.out[:])&0xfff)
	}
	return l<<12 | r
}
