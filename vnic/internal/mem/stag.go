package mem

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
)

// An stagSource gives out STags that cannot be predicted and come back as late as can be. RFC 5042,
// section 6.1.1.
//
// There are two kinds. A registration gets one STag of its own. A window, or a region for fast
// registration, gets a prefix: the 256 STags with the same upper 24 bits, of which its user
// chooses. A keyed function of the prefix says which kind all STags with it are of, half of them
// each, so the kinds never meet and a peer cannot tell them apart.
//
// Each kind comes from a counter under a random permutation, a Feistel network of eight rounds with
// AES under a fresh key as the round function; values of the other kind are passed over. So an STag
// comes back when the 2^31 of its kind have been given, and a prefix when 2^23 have.
//
// It is not safe for use by several goroutines.
type stagSource struct {
	block    cipher.Block
	counter  uint32 // of registrations
	prefixes uint32 // of prefixes
	in, out  [aes.BlockSize]byte
}

// What a block under the key is for: the first octet of the plaintext. Rounds are added to it.
const (
	stagRound   = 0x00
	prefixRound = 0x40
	prefixKind  = 0x80
)

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

// next returns the next STag of a registration; never 0, which stands for "none" in many programs.
func (s *stagSource) next() uint32 {
	for {
		v := s.permute(s.counter)
		s.counter++
		if v != 0 && !s.isPrefix(v>>8) {
			return v
		}
	}
}

// nextPrefix returns an STag whose prefix is the next one for a window or for fast registration.
// Its lower 8 bits are random.
func (s *stagSource) nextPrefix() uint32 {
	for {
		v := s.permutePrefix(s.prefixes & (1<<24 - 1))
		s.prefixes++
		if v != 0 && s.isPrefix(v) {
			return v<<8 | uint32(s.out[1])
		}
	}
}

// isPrefix reports whether the STags with the upper 24 bits v belong together.
func (s *stagSource) isPrefix(v uint32) bool {
	s.random(prefixKind, v)
	return s.out[0]&1 != 0
}

func (s *stagSource) permute(v uint32) uint32 {
	l, r := v>>16, v&0xffff
	for round := range byte(8) {
		s.random(stagRound+round, r)
		l, r = r, l^uint32(binary.BigEndian.Uint16(s.out[:]))
	}
	return l<<16 | r
}

func (s *stagSource) permutePrefix(v uint32) uint32 {
	l, r := v>>12, v&0xfff
	for round := range byte(8) {
		s.random(prefixRound+round, r)
		l, r = r, l^uint32(binary.BigEndian.Uint16(s.out[:])&0xfff)
	}
	return l<<12 | r
}

func (s *stagSource) random(use byte, v uint32) {
	s.in[0] = use
	binary.BigEndian.PutUint32(s.in[1:], v)
	s.block.Encrypt(s.out[:], s.in[:])
}
