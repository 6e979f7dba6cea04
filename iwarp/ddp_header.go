package iwarp

import (
	"encoding/binary"
	"errors"
)

// A DDPControl is the first octet of a segment: T(1) L(1) Rsvd(4) DV(2). RFC 5041, section 4.1.
type DDPControl uint8

const (
	ddpTagged  = 0x80
	ddpLast    = 0x40
	ddpVersion = 1
)

// Tagged is the T bit.
func (c DDPControl) Tagged() bool { return c&ddpTagged != 0 }

// Last is the L bit: the segment is the last of its message.
func (c DDPControl) Last() bool { return c&ddpLast != 0 }

// Version is DV; only 1 is defined.
func (c DDPControl) Version() uint8 { return uint8(c & 3) }

func ddpControl(tagged, last bool) byte {
	b := byte(ddpVersion)
	if tagged {
		b |= ddpTagged
	}
	if last {
		b |= ddpLast
	}
	return b
}

// Lengths of the DDP headers, the RDMAP control octet included.
const (
	TaggedHeaderLen   = 14
	UntaggedHeaderLen = 18
)

var errShortSegment = errors.New("iwarp: segment shorter than its DDP header")

// A TaggedHeader views the header of a tagged DDP segment: ctrl(1) RsvdULP(1) STag(4) TO(8).
// RFC 5041, section 4.2; the figure there is drawn 16 bits to the right, after MPA's length.
type TaggedHeader []byte

// ParseTagged splits seg. The accessors rely on its length check. The results alias seg.
func ParseTagged(seg []byte) (h TaggedHeader, payload []byte, err error) {
	if len(seg) < TaggedHeaderLen {
		return nil, nil, errShortSegment
	}
	return TaggedHeader(seg[:TaggedHeaderLen:TaggedHeaderLen]), seg[TaggedHeaderLen:], nil
}

func (h TaggedHeader) DDP() DDPControl     { return DDPControl(h[0]) }
func (h TaggedHeader) RDMAP() RDMAPControl { return RDMAPControl(h[1]) }
func (h TaggedHeader) STag() STag          { return STag(binary.BigEndian.Uint32(h[2:])) }
func (h TaggedHeader) TO() uint64          { return binary.BigEndian.Uint64(h[6:]) }

func putTagged(b []byte, last bool, op Opcode, stag STag, to uint64) {
	_ = b[TaggedHeaderLen-1]
	b[0], b[1] = ddpControl(true, last), rdmapControl(op)
	binary.BigEndian.PutUint32(b[2:], uint32(stag))
	binary.BigEndian.PutUint64(b[6:], to)
}

// AppendTagged appends the header of a tagged segment.
func AppendTagged(b []byte, last bool, op Opcode, stag STag, to uint64) []byte {
	n := len(b)
	b = append(b, make([]byte, TaggedHeaderLen)...)
	putTagged(b[n:], last, op, stag, to)
	return b
}

// An UntaggedHeader views the header of an untagged DDP segment:
// ctrl(1) RsvdULP(5: RDMAP control, STag to invalidate) QN(4) MSN(4) MO(4). RFC 5041, section 4.3.
type UntaggedHeader []byte

// ParseUntagged splits seg. The accessors rely on its length check. The results alias seg.
func ParseUntagged(seg []byte) (h UntaggedHeader, payload []byte, err error) {
	if len(seg) < UntaggedHeaderLen {
		return nil, nil, errShortSegment
	}
	return UntaggedHeader(seg[:UntaggedHeaderLen:UntaggedHeaderLen]), seg[UntaggedHeaderLen:], nil
}

func (h UntaggedHeader) DDP() DDPControl     { return DDPControl(h[0]) }
func (h UntaggedHeader) RDMAP() RDMAPControl { return RDMAPControl(h[1]) }

// Invalidate is the STag that a Send with Invalidate names; other messages carry nothing there.
func (h UntaggedHeader) Invalidate() STag { return STag(binary.BigEndian.Uint32(h[2:])) }
func (h UntaggedHeader) QN() uint32       { return binary.BigEndian.Uint32(h[6:]) }
func (h UntaggedHeader) MSN() MSN         { return MSN(binary.BigEndian.Uint32(h[10:])) }
func (h UntaggedHeader) MO() uint32       { return binary.BigEndian.Uint32(h[14:]) }

func putUntagged(b []byte, last bool, op Opcode, inv STag, msn MSN, mo uint32) {
	_ = b[UntaggedHeaderLen-1]
	b[0], b[1] = ddpControl(false, last), rdmapControl(op)
	if !opcodes[op&0xf].inv {
		inv = 0
	}
	binary.BigEndian.PutUint32(b[2:], uint32(inv))
	binary.BigEndian.PutUint32(b[6:], opcodes[op&0xf].qn)
	binary.BigEndian.PutUint32(b[10:], uint32(msn))
	binary.BigEndian.PutUint32(b[14:], mo)
}

// AppendUntagged appends the header of an untagged segment; the queue is the opcode's. inv is
// used by the kinds that invalidate only.
func AppendUntagged(b []byte, last bool, op Opcode, inv STag, msn MSN, mo uint32) []byte {
	n := len(b)
	b = append(b, make([]byte, UntaggedHeaderLen)...)
	putUntagged(b[n:], last, op, inv, msn, mo)
	return b
}
