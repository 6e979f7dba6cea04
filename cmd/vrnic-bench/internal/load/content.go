package load

import (
	"encoding/binary"
	"fmt"
)

const golden = 0x9e3779b97f4a7c15

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill makes b, a multiple of 8 octets, the content of seed (splitmix64).
func fill(b []byte, seed uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		seed += golden
		binary.LittleEndian.PutUint64(b[i:], mix(seed))
	}
}

// verify compares b with the content of seed.
func verify(b []byte, seed uint64) error {
	for i := 0; i+8 <= len(b); i += 8 {
		seed += golden
		if got, want := binary.LittleEndian.Uint64(b[i:]), mix(seed); got != want {
			return fmt.Errorf("wrong data at octet %d of %d: %016x, want %016x", i, len(b), got, want)
		}
	}
	return nil
}
