package vnic

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
)

// An stagSource gives out STags that cannot be predicted and come back only after all 2^32 have
// been given: a counter under a random permutation of the 32-bit numbers, a Feistel network of
// eight rounds with AES under a fresh key as the round function. RFC 5042, section 6.1.1.
//
// It is not safe for use by several goroutines.
type stagSource struct {
	block   cipher.Block
	counter uint32
	in, out [aes.BlockSize]byte
}

func newSTagSource() (*stagSource, error) {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return &stagSource{block: b}, nil
}

// next returns the next STag; never 0, which stands for "none" in many programs.
func (s *stagSource) next() uint32 {
	for {
		v := s.permute(s.counter)
		s.counter++
		if v != 0 {
			return v
		}
	}
}

func (s *stagSource) permute(v uint32) uint32 {
	l, r := uint16(v>>16), uint16(v)
	for round := range byte(8) {
		s.in[0] = round
		binary.BigEndian.PutUint16(s.in[1:], r)
		s.block.Encrypt(s.out[:], s.in[:])
		l, r = r, l^binary.BigEndian.Uint16(s.out[:])
	}
	return uint32(l)<<16 | uint32(r)
}
