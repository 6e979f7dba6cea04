package ping

import (
	"encoding/binary"
	"fmt"
)

// infoLen is the length of every message of the protocol.
const infoLen = 16

// An info names a buffer of the client. On the wire, big-endian and packed:
//
//	0                   8           12          16
//	+-------------------+-----------+-----------+
//	|      address      |    key    |   size    |
//	+-------------------+-----------+-----------+
type info struct {
	addr uint64
	key  uint32
	size uint32
}

func (i info) put(b []byte) {
	_ = b[infoLen-1]
	binary.BigEndian.PutUint64(b, i.addr)
	binary.BigEndian.PutUint32(b[8:], i.key)
	binary.BigEndian.PutUint32(b[12:], i.size)
}

// parseInfo reads a whole message: any other length than infoLen is an error.
func parseInfo(b []byte) (info, error) {
	if len(b) != infoLen {
		return info{}, fmt.Errorf("a message of %d octets, want %d: the peer does not speak rping's "+
			"protocol", len(b), infoLen)
	}
	return info{
		addr: binary.BigEndian.Uint64(b),
		key:  binary.BigEndian.Uint32(b[8:]),
		size: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

func (i info) String() string {
	return fmt.Sprintf("%d octets at %#x, key %#08x", i.size, i.addr, i.key)
}
