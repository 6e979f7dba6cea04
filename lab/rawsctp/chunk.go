package rawsctp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Protocol is SCTP's number in an IP header.
const Protocol = 132

// Chunk types: RFC 9260, section 3.2.
const (
	Data             = 0
	Init             = 1
	InitAck          = 2
	Sack             = 3
	Heartbeat        = 4
	HeartbeatAck     = 5
	Abort            = 6
	Shutdown         = 7
	ShutdownAck      = 8
	Error            = 9
	CookieEcho       = 10
	CookieAck        = 11
	ShutdownComplete = 14
)

// Flags of DATA (section 3.3.1), and T of ABORT and SHUTDOWN COMPLETE.
const (
	FlagE     = 1
	FlagB     = 2
	FlagU     = 4
	Unordered = FlagU | FlagB | FlagE // a whole message
	FlagT     = 1
)

// Parameters: sections 3.3.2 and 3.3.3; RFC 5061, section 4.2.6.
const (
	ParamHeartbeat  = 1
	ParamIPv4       = 5
	ParamIPv6       = 6
	ParamCookie     = 7
	ParamUnknown    = 8
	ParamHostName   = 11
	ParamAdaptation = 0xc006
)

// Causes: section 3.3.10.
const (
	CauseInvalidStream = 1
	CauseAddress       = 5
	CauseUnrecognized  = 6
	CauseNoUserData    = 9
	CauseNewAddresses  = 11
	CauseProtocol      = 13
	AnyCause           = -1 // for Peer.WantAbort
)

const (
	headerLen      = 12
	chunkHeaderLen = 4
	setupLen       = 16 // an INIT's fields behind the chunk's header
	dataFieldsLen  = 12
)

// PPIDs and functions of RFC 5043, section 5.2.
const (
	PPIDSegment = 16
	PPIDControl = 17

	Initiate  = 1
	Accept    = 2
	Reject    = 3
	Terminate = 4
)

// A Chunk is one with its header, as it was sent; without padding.
type Chunk []byte

// Type and Flags are those of its header, Value is what follows it.
func (c Chunk) Type() byte    { return c[0] }
func (c Chunk) Flags() byte   { return c[1] }
func (c Chunk) Value() []byte { return c[chunkHeaderLen:] }

func (c Chunk) String() string {
	return fmt.Sprintf("chunk %d flags %#x % x", c.Type(), c.Flags(), c.Value()[:min(24, len(c)-4)])
}

// Make makes a chunk of a type, with the right length.
func Make(typ, flags byte, value ...byte) Chunk {
	c := Chunk{typ, flags, 0, 0}
	c = append(c, value...)
	binary.BigEndian.PutUint16(c[2:], uint16(len(c)))
	return c
}

// Length gives a copy of c that says it is n octets long, header included.
func (c Chunk) Length(n int) Chunk {
	d := append(Chunk(nil), c...)
	binary.BigEndian.PutUint16(d[2:], uint16(n))
	return d
}

// Param makes a parameter or an error cause.
func Param(typ uint16, value ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	return append(b, value...)
}

// Uint32 is v in network order.
func Uint32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// Adaptation is the indication of RFC 5061 with a code.
func Adaptation(code uint32) []byte { return Param(ParamAdaptation, Uint32(code)...) }

// A Setup is what an INIT says.
type Setup struct {
	Tag, Window, TSN uint32
	Out, In          uint16
	Params           [][]byte
}

// Chunk is the INIT.
func (s Setup) Chunk() Chunk {
	b := append(Uint32(s.Tag), Uint32(s.Window)...)
	b = binary.BigEndian.AppendUint16(b, s.Out)
	b = binary.BigEndian.AppendUint16(b, s.In)
	b = append(b, Uint32(s.TSN)...)
	for _, p := range s.Params {
		b = append(pad(b), p...)
	}
	return Make(Init, 0, b...)
}

// DataChunk is a DATA chunk.
func DataChunk(flags byte, tsn uint32, stream, ssn uint16, ppid uint32, data []byte) Chunk {
	b := Uint32(tsn)
	b = binary.BigEndian.AppendUint16(b, stream)
	b = binary.BigEndian.AppendUint16(b, ssn)
	return Make(Data, flags, append(append(b, Uint32(ppid)...), data...)...)
}

// SackChunk is a SACK with gap ack blocks, pairs of offsets.
func SackChunk(cum, window uint32, blocks ...uint16) Chunk {
	b := append(Uint32(cum), Uint32(window)...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(blocks)/2))
	b = binary.BigEndian.AppendUint16(b, 0)
	for _, x := range blocks {
		b = binary.BigEndian.AppendUint16(b, x)
	}
	return Make(Sack, 0, b...)
}

// Control is a session control message: DDP-SSN(2) function(2) private data.
func Control(ssn, function uint16, privateData ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, ssn)
	return append(binary.BigEndian.AppendUint16(b, function), privateData...)
}

// Segment is a message with a DDP segment: DDP-SSN(2) segment.
func Segment(ssn uint16, segment []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, ssn), segment...)
}

// pad fills b up to a multiple of four octets.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// Packet is a packet of chunks, with the right checksum.
func Packet(src, dst uint16, tag uint32, chunks ...Chunk) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = append(append(b, Uint32(tag)...), 0, 0, 0, 0)
	for _, c := range chunks {
		b = append(pad(b), c...)
	}
	return Seal(pad(b))
}

// Seal makes the checksum of a packet right: appendix A.
func Seal(b []byte) []byte {
	clear(b[8:headerLen])
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// parse takes a packet apart. It is strict: what a daemon sends has no fault.
func parse(b []byte) (tag uint32, chunks []Chunk, err error) {
	if len(b) < headerLen+chunkHeaderLen || len(b)%4 != 0 {
		return 0, nil, fmt.Errorf("a packet of %d octets", len(b))
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	if binary.LittleEndian.Uint32(Seal(append([]byte(nil), b...))[8:]) != sum {
		return 0, nil, fmt.Errorf("a wrong checksum: % x", b)
	}
	for rest := b[headerLen:]; len(rest) > 0; {
		if len(rest) < chunkHeaderLen {
			return 0, nil, fmt.Errorf("%d octets behind the last chunk", len(rest))
		}
		n := int(binary.BigEndian.Uint16(rest[2:]))
		if n < chunkHeaderLen || n > len(rest) {
			return 0, nil, fmt.Errorf("a chunk of %d octets in %d", n, len(rest))
		}
		chunks = append(chunks, Chunk(rest[:n:n]))
		rest = rest[(n+3)&^3:]
	}
	return binary.BigEndian.Uint32(b[4:]), chunks, nil
}

// Causes gives the error causes of an ABORT or ERROR.
func (c Chunk) Causes() (causes []uint16) {
	for v := c.Value(); len(v) >= 4; {
		n := int(binary.BigEndian.Uint16(v[2:]))
		causes = append(causes, binary.BigEndian.Uint16(v))
		if n < 4 || n > len(v) {
			return append(causes, 0xffff) // malformed: no cause has that code
		}
		v = v[min((n+3)&^3, len(v)):]
	}
	return causes
}
