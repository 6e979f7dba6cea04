package iwarp

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/internal/crc32c"
)

// An FPDU is ULPDU_Length(2) ULPDU pad(0-3) CRC(4). RFC 5044, section 4.1.
const (
	fpduHeaderLen = 2
	fpduCRCLen    = 4
	// MaxFPDU is the length of the longest FPDU that a receiver takes: the limit of 64768 binds
	// senders only (docs/decisions.md#M7).
	MaxFPDU = fpduHeaderLen + 65535 + 3 + fpduCRCLen
)

// Limits of MULPDU. RFC 5044, section 3.
const (
	MinMULPDU = 128
	MaxMULPDU = 64768
)

// FPDULen is the length of an FPDU with a ULPDU of n octets, without markers.
func FPDULen(n int) int { return (n+fpduHeaderLen+3)&^3 + fpduCRCLen }

// MULPDU is how long a ULPDU may be so that its FPDU fits into one TCP segment of emss octets,
// without markers: EMSS - (6 + EMSS mod 4), within 128..64768. RFC 5044, section 4.5.
func MULPDU(emss int) int {
	return min(max(emss-(6+emss&3), MinMULPDU), MaxMULPDU)
}

// sealFPDU completes b, a whole FPDU whose ULPDU of n octets is in place: length, pad and CRC.
// With CRCs off the field is sent as zero, as the pad always is (docs/decisions.md#M11).
func sealFPDU(b []byte, n int, crc bool) CRC {
	binary.BigEndian.PutUint16(b, uint16(n))
	end := len(b) - fpduCRCLen
	clear(b[fpduHeaderLen+n : end])
	if !crc {
		clear(b[end:])
		return 0
	}
	c := CRC(0).Add(b[:end])
	c.Put(b[end:])
	return c
}

// AppendFPDU appends the FPDU of ulpdu, at most 65535 octets. With crc false its CRC field is zero.
func AppendFPDU(b, ulpdu []byte, crc bool) []byte {
	start := len(b)
	b = append(b, 0, 0)
	b = append(b, ulpdu...)
	b = append(b, make([]byte, FPDULen(len(ulpdu))-fpduHeaderLen-len(ulpdu))...)
	sealFPDU(b[start:], len(ulpdu), crc)
	return b
}

// SoundFPDU reports whether b, a whole FPDU, ends with its CRC.
func SoundFPDU(b []byte) bool {
	end := len(b) - fpduCRCLen
	return end >= fpduHeaderLen && CRC(0).Add(b[:end]) == crcAt(b[end:])
}

// A CRC is a CRC32c (RFC 5044, section 4.4) over pieces. The zero value has seen nothing.
type CRC uint32

// Add returns the CRC of what c has seen with p behind it.
func (c CRC) Add(p []byte) CRC { return CRC(crc32c.Update(uint32(c), p)) }

// Put writes the CRC as it stands behind an FPDU: least significant octet first, as for iSCSI
// digests.
func (c CRC) Put(b []byte) { binary.LittleEndian.PutUint32(b, uint32(c)) }

// crcAt reads the CRC field b.
func crcAt(b []byte) CRC { return CRC(binary.LittleEndian.Uint32(b)) }
