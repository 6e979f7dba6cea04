// Package crc32c computes CRC-32C (Castagnoli), the checksum of MPA (RFC 5044 section 4.4) and SCTP
// (RFC 9260 appendix A).
//
// hash/crc32 has the same sum. Its amd64 code is made for long buffers: what remains behind blocks
// of 1512 octets goes through one lane, a third as fast, and that is most of an FPDU of 1448. Here
// the lanes are as long as the buffer lets them be. Values are compatible: both start at 0 and may
// take turns.
package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Update adds the octets of p to the sum c; the sum of nothing is 0.
func Update(c uint32, p []byte) uint32 { return update(c, p) }
