package mem

import "github.com/vrnic/vrnic/vnic/internal/handle"

// An stagSource gives out STags that cannot be predicted and come back as late as can be. RFC 5042,
// section 6.1.1.
//
// There are two kinds. A registration gets one STag of its own. A window, or a region for fast
// registration, gets a prefix: the 256 STags with the same upper 24 bits, of which its user
// chooses. A keyed function of the prefix says which kind all STags with it are of, half of them
// each, so the kinds never meet and a peer cannot tell them apart.
//
// Each kind comes from a counter under a random permutation; values of the other kind are passed
// over. So an STag comes back when the 2^31 of its kind have been given, and a prefix when 2^23
// have.
//
// It is not safe for use by several goroutines.
type stagSource struct {
	*handle.Permutation
	counter  uint32 // of registrations
	prefixes uint32 // of prefixes
}

// What the permutation is of.
const (
	stagUse    = 0x00
	prefixUse  = 0x40
	prefixKind = 0x80
)

func newSTagSource() (*stagSource, error) {
	p, err := handle.NewPermutation()
	return &stagSource{Permutation: p}, err
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
			return v<<8 | uint32(s.Random(prefixKind, v)[1])
		}
	}
}

// isPrefix reports whether the STags with the upper 24 bits v belong together.
func (s *stagSource) isPrefix(v uint32) bool { return s.Random(prefixKind, v)[0]&1 != 0 }

func (s *stagSource) permute(v uint32) uint32       { return s.Of(v, 32, stagUse) }
func (s *stagSource) permutePrefix(v uint32) uint32 { return s.Of(v, 24, prefixUse) }
