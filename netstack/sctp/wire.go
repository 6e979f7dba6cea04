package sctp

import (
	"encoding/binary"
	"fmt"

	"github.com/vrnic/vrnic/internal/crc32c"
)

// A ChunkType is the first octet of a chunk. Its two top bits say what becomes of a chunk whose
// type is not known: RFC 9260, section 3.2.
type ChunkType uint8

const (
	chunkData             ChunkType = 0
	chunkInit             ChunkType = 1
	chunkInitAck          ChunkType = 2
	chunkSack             ChunkType = 3
	chunkHeartbeat        ChunkType = 4
	chunkHeartbeatAck     ChunkType = 5
	chunkAbort            ChunkType = 6
	chunkShutdown         ChunkType = 7
	chunkShutdownAck      ChunkType = 8
	chunkError            ChunkType = 9
	chunkCookieEcho       ChunkType = 10
	chunkCookieAck        ChunkType = 11
	chunkECNE             ChunkType = 12
	chunkCWR              ChunkType = 13
	chunkShutdownComplete ChunkType = 14
	chunkKnown                      = 15
)

var chunkNames = [chunkKnown]string{
	"DATA", "INIT", "INIT ACK", "SACK", "HEARTBEAT", "HEARTBEAT ACK", "ABORT", "SHUTDOWN",
	"SHUTDOWN ACK",
	"ERROR", "COOKIE ECHO", "COOKIE ACK", "ECNE", "CWR", "SHUTDOWN COMPLETE",
}

func (t ChunkType) String() string {
	if t < chunkKnown {
		return chunkNames[t]
	}
	return fmt.Sprintf("ChunkType(%#02x)", uint8(t))
}

// The two top bits of a type that is not known, of a chunk (section 3.2) or, 8 bits further up, of
// a parameter (section 3.2.1).
func (t ChunkType) skips() bool   { return t&0x80 != 0 }
func (t ChunkType) reports() bool { return t&0x40 != 0 }

const (
	headerLen = 12
	chunkLen  = 4  // header of a chunk
	dataLen   = 16 // header of a DATA chunk
	sackLen   = 16 // a SACK without blocks and duplicates
	initLen   = 20 // an INIT or INIT ACK without parameters
)

// A header is the common header: source port(2) destination port(2) verification tag(4)
// checksum(4). Section 3.1.
type header struct {
	srcPort, dstPort uint16
	tag              uint32
}

func parseHeader(b []byte) (header, bool) {
	if len(b) < headerLen+chunkLen {
		return header{}, false
	}
	return header{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]),
		binary.BigEndian.Uint32(b[4:])}, true
}

// append leaves the checksum for finish.
func (h header) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, h.srcPort)
	b = binary.BigEndian.AppendUint16(b, h.dstPort)
	b = binary.BigEndian.AppendUint32(b, h.tag)
	return append(b, 0, 0, 0, 0)
}

var zeros [4]byte

// checksum is the CRC32c of a packet with zeros for the checksum field. Appendix A.
func checksum(b []byte) uint32 {
	c := crc32c.Update(0, b[:8])
	c = crc32c.Update(c, zeros[:])
	return crc32c.Update(c, b[headerLen:])
}

// GoodChecksum says whether the CRC32c of a packet, common header included, is right. Whoever calls
// it outside of the Endpoint's owner sets Packet.Verified.
func GoodChecksum(b []byte) bool {
	// The low octet of the reflected CRC comes first.
	return len(b) >= headerLen && binary.LittleEndian.Uint32(b[8:]) == checksum(b)
}

// finish puts the checksum in.
func finish(b []byte) { binary.LittleEndian.PutUint32(b[8:], checksum(b)) }

// A chunk is one chunk without its padding: type(1) flags(1) length(2) value. It aliases the
// packet.
type chunk []byte

func (c chunk) typ() ChunkType { return ChunkType(c[0]) }
func (c chunk) flags() byte    { return c[1] }
func (c chunk) value() []byte  { return c[chunkLen:] }

// nextChunk cuts the first chunk off b. The length does not count the padding; some count it all
// the same, and then there is none (section 3.2). ok is false at the end and at a chunk that is
// cut, which "MUST" be dropped (section 6.10).
func nextChunk(b []byte) (c chunk, rest []byte, ok bool) {
	if len(b) < chunkLen {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < chunkLen || n > len(b) {
		return nil, nil, false
	}
	return chunk(b[:n:n]), b[min(padded(n), len(b)):], true
}

// padded is n and the padding behind n octets.
func padded(n int) int { return (n + 3) &^ 3 }

// appendPadding fills b up to a multiple of four octets from its octet from on.
func appendPadding(b []byte, from int) []byte { return append(b, zeros[:-(len(b)-from)&3]...) }

// beginChunk appends the header of a chunk; endChunk sets its length and pads.
func beginChunk(b []byte, t ChunkType, flags byte) []byte { return append(b, byte(t), flags, 0, 0) }

func endChunk(b []byte, at int) []byte {
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return appendPadding(b, at)
}

func appendChunk(b []byte, t ChunkType, flags byte, value []byte) []byte {
	at := len(b)
	b = append(beginChunk(b, t, flags), value...)
	return endChunk(b, at)
}

// Flags of a DATA chunk (section 3.3.1).
const (
	flagE    = 1 // last fragment
	flagB    = 2 // first fragment
	flagU    = 4 // unordered
	flagI    = 8 // asks for a SACK at once
	flagT    = 1 // of ABORT and SHUTDOWN COMPLETE: the tag is reflected
	flagData = flagE | flagB | flagU | flagI
)

// A dataChunk views a DATA chunk:
// header(4) TSN(4) stream identifier(2) stream sequence number(2) PPID(4) user data.
type dataChunk chunk

func parseData(c chunk) (dataChunk, bool) { return dataChunk(c), len(c) >= dataLen }

func (d dataChunk) flags() byte    { return d[1] & flagData }
func (d dataChunk) tsn() TSN       { return TSN(binary.BigEndian.Uint32(d[4:])) }
func (d dataChunk) stream() uint16 { return binary.BigEndian.Uint16(d[8:]) }
func (d dataChunk) ssn() uint16    { return binary.BigEndian.Uint16(d[10:]) }
func (d dataChunk) ppid() uint32   { return binary.BigEndian.Uint32(d[12:]) }
func (d dataChunk) data() []byte   { return d[dataLen:] }

// appendDataHeader appends all of a DATA chunk but the n octets of user data and their padding.
func appendDataHeader(b []byte, flags byte, tsn TSN, stream, ssn uint16, ppid uint32,
	n int) []byte {
	b = append(b, byte(chunkData), flags)
	b = binary.BigEndian.AppendUint16(b, uint16(dataLen+n))
	b = binary.BigEndian.AppendUint32(b, uint32(tsn))
	b = binary.BigEndian.AppendUint16(b, stream)
	b = binary.BigEndian.AppendUint16(b, ssn)
	return binary.BigEndian.AppendUint32(b, ppid)
}

// A TSN numbers DATA chunks. It wraps: use before, never <. Section 1.6.
type TSN uint32

func (t TSN) before(u TSN) bool { return int32(t-u) < 0 }

// ssnBefore compares stream sequence numbers, which wrap too.
func ssnBefore(a, b uint16) bool { return int16(a-b) < 0 }

// A sack views a SACK:
// header(4) cumulative TSN ack(4) a_rwnd(4) number of blocks(2) of duplicates(2) blocks(4 each)
// duplicates(4 each). Section 3.3.4.
type sack chunk

// parseSack refuses a SACK whose numbers say more than there is.
func parseSack(c chunk) (sack, bool) {
	if len(c) < sackLen {
		return nil, false
	}
	s := sack(c)
	return s, sackLen+4*s.blocks()+4*s.dups() <= len(c)
}

func (s sack) cum() TSN      { return TSN(binary.BigEndian.Uint32(s[4:])) }
func (s sack) rwnd() uint32  { return binary.BigEndian.Uint32(s[8:]) }
func (s sack) blocks() int   { return int(binary.BigEndian.Uint16(s[12:])) }
func (s sack) dups() int     { return int(binary.BigEndian.Uint16(s[14:])) }
func (s sack) dup(i int) TSN { return TSN(binary.BigEndian.Uint32(s[sackLen+4*s.blocks()+4*i:])) }

// block gives the offsets of block i from the cumulative TSN, both included.
func (s sack) block(i int) (start, end uint16) {
	b := s[sackLen+4*i:]
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
}

// A gap is a gap ack block: offsets from the cumulative TSN.
type gap struct{ start, end uint16 }

func appendSack(b []byte, cum TSN, rwnd uint32, gaps []gap, dups []TSN) []byte {
	at := len(b)
	b = beginChunk(b, chunkSack, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(cum))
	b = binary.BigEndian.AppendUint32(b, rwnd)
	b = binary.BigEndian.AppendUint16(b, uint16(len(gaps)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(dups)))
	for _, g := range gaps {
		b = binary.BigEndian.AppendUint16(b, g.start)
		b = binary.BigEndian.AppendUint16(b, g.end)
	}
	for _, d := range dups {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	return endChunk(b, at)
}

// parseShutdown gives the cumulative TSN ack of a SHUTDOWN. Section 3.3.8.
func parseShutdown(c chunk) (TSN, bool) {
	if len(c) < 8 {
		return 0, false
	}
	return TSN(binary.BigEndian.Uint32(c[4:])), true
}

func appendShutdown(b []byte, cum TSN) []byte {
	at := len(b)
	return endChunk(binary.BigEndian.AppendUint32(beginChunk(b, chunkShutdown, 0), uint32(cum)), at)
}
