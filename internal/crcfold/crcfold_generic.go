//go:build !amd64

package crcfold

// Available says whether Fold can be called.
const Available = false

// Fold is of other processors.
func Fold(c uint32, p *byte, n int, k *Polynomial) (lo, hi uint64) {
	panic("crcfold: this processor has no Fold")
}
