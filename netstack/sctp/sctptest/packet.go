package sctptest

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	headerLen      = 12
	chunkHeaderLen = 4
)

// A Chunk is one of a packet's, without the padding behind it.
type Chunk []byte

// Type is that of the chunk: 0 is DATA, 3 is SACK.
func (c Chunk) Type() byte { return c[0] }

// Flags are those of its header.
func (c Chunk) Flags() byte { return c[1] }

// Body is what stands behind its header.
func (c Chunk) Body() []byte { return c[chunkHeaderLen:] }

// PPID is a DATA chunk's.
func (c Chunk) PPID() uint32 { return binary.BigEndian.Uint32(c[12:]) }

// Chunks takes a packet apart, up to a chunk whose length is wrong.
func Chunks(packet []byte) (out []Chunk) {
	for b := packet[headerLen:]; len(b) >= chunkHeaderLen; {
		n := int(binary.BigEndian.Uint16(b[2:]))
		if n < chunkHeaderLen || n > len(b) {
			break
		}
		out = append(out, Chunk(b[:n]))
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}

// Seal makes the checksum of a packet right again.
func Seal(packet []byte) {
	clear(packet[8:headerLen])
	sum := crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(packet[8:], sum)
}
