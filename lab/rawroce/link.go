package rawroce

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// A Link carries packets, from the IP header on, to one endpoint and back.
type Link interface {
	Send(packet []byte) error
	// Receive is the next that has come; os.ErrDeadlineExceeded: none has till then.
	Receive(by time.Time) ([]byte, error)
	Close() error
}

// identify gives an IPv4 packet, whose header the kernel has kept for itself, the identification
// and the flag with which its ICRC is right. If there are none, it is left as it is.
func identify(b []byte) {
	n := len(b) - 4
	want := binary.LittleEndian.Uint32(b[n:])
	of := func(id uint16, flags byte) uint32 {
		binary.BigEndian.PutUint16(b[4:], id)
		b[6] = flags
		return icrc(b[:n])
	}
	for _, flags := range []byte{0x40, 0} {
		// A CRC is linear: what a bit of the identification changes in it is the same whatever the
		// others are.
		base := of(0, flags)
		var bit [16]uint32
		for i := range bit {
			bit[i] = of(1<<i, flags) ^ base
		}
		crc, id := base, uint16(0)
		for i := 0; ; i++ { // Gray's code: one bit changes at a time
			if crc == want {
				of(id, flags)
				return
			}
			if i == 1<<16-1 {
				break
			}
			k := bits.TrailingZeros(uint(i + 1))
			crc ^= bit[k]
			id ^= 1 << k
		}
	}
	of(0, 0x40)
}
