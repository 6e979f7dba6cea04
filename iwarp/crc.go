package iwarp

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/internal/crc32c"
)

// A CRC is a CRC32c (RFC 5044, section 4.4) over pieces. The zero value has seen nothing.
type CRC uint32

// Add returns the CRC of what c has seen with p behind it.
func (c CRC) Add(p []byte) CRC { return CRC(crc32c.Update(uint32(c), p)) }

// Put writes the CRC as it stands behind an FPDU: least significant octet first, as for iSCSI digests.
func (c CRC) Put(b []byte) { binary.LittleEndian.PutUint32(b, uint32(c)) }

// crcAt reads the CRC field b.
func crcAt(b []byte) CRC { return CRC(binary.LittleEndian.Uint32(b)) }
