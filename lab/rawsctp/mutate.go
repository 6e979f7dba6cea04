package rawsctp

import (
	"fmt"
	"math/rand/v2"
)

// Lie changes a packet, which has the right checksum afterwards in most cases, and says how. What
// it gives is sent in place of it: nothing, or one packet or more.
func Lie(rnd *rand.Rand, packet []byte) (packets [][]byte, lie string) {
	b := append([]byte(nil), packet...)
	at := headerLen
	if len(b) > headerLen+chunkHeaderLen {
		at += rnd.IntN(len(b) - headerLen)
	}
	switch rnd.IntN(10) {
	case 0:
		return nil, "it is not sent"
	case 1:
		n := 2 + rnd.IntN(30)
		for range n {
			packets = append(packets, b)
		}
		return packets, fmt.Sprintf("it is sent %d times", n)
	case 2:
		n := rnd.IntN(len(b))
		if n >= headerLen {
			Seal(b[:n])
		}
		return [][]byte{b[:n]}, fmt.Sprintf("it is cut at %d", n)
	case 3:
		b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
		return [][]byte{b}, "a wrong checksum"
	case 4:
		n := rnd.IntN(8)
		b[n] ^= byte(1 + rnd.IntN(255))
		return [][]byte{Seal(b)}, fmt.Sprintf("octet %d of the common header", n)
	case 5: // the length of the first chunk
		n := rnd.IntN(1 << 16)
		if rnd.IntN(2) == 0 {
			n = rnd.IntN(40)
		}
		b[headerLen+2], b[headerLen+3] = byte(n>>8), byte(n)
		return [][]byte{Seal(b)}, fmt.Sprintf("a first chunk of %d octets", n)
	case 6: // a chunk more, of any type
		c := make([]byte, rnd.IntN(60))
		for i := range c {
			c[i] = byte(rnd.Uint32())
		}
		x := Make(byte(rnd.IntN(256)), byte(rnd.Uint32()), c...)
		if rnd.IntN(2) == 0 {
			x[0] = byte(rnd.IntN(16))
		}
		return [][]byte{Seal(append(b, pad(x)...))}, fmt.Sprintf("%v behind it", x)
	case 7: // a field of 32 bits
		if at &^= 3; at+4 <= len(b) {
			copy(b[at:], Uint32([]uint32{0, 1, 1<<31 - 1, 1 << 31, 1<<32 - 1, rnd.Uint32()}[rnd.IntN(6)]))
		}
		return [][]byte{Seal(b)}, fmt.Sprintf("octets %d to %d: % x", at, at+3, b[at:min(at+4, len(b))])
	default:
		at = min(at, len(b)-1)
		b[at] ^= byte(1 + rnd.IntN(255))
		return [][]byte{Seal(b)}, fmt.Sprintf("octet %d", at)
	}
}
