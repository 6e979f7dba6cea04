package rawpeer

import "encoding/binary"

// RDMAP opcodes: RFC 5040, figure 4; RFC 7306, figure 4.
const (
	OpWrite        = 0x0
	OpReadRequest  = 0x1
	OpReadResponse = 0x2
	OpSend         = 0x3
	OpSendInv      = 0x4
	OpSendSE       = 0x5
	OpSendSEInv    = 0x6
	OpTerminate    = 0x7
	OpImmediate    = 0x8
	OpImmediateSE  = 0x9
	OpAtomic       = 0xa
	OpAtomicResp   = 0xb
)

// Lengths of headers.
const (
	taggedLen   = 14
	untaggedLen = 18
	readLen     = 28
)

// A Seg is a DDP segment. RFC 5041, sections 4.2 and 4.3:
//
//	tagged:   T L Rsvd DV | RV Rsv Opcode | STag(4) TO(8) | Body
//	untagged: T L Rsvd DV | RV Rsv Opcode | Inv(4) QN(4) MSN(4) MO(4) | Body
//
// The T bit of DDP says which. The methods with a field's name give a copy with that field changed.
type Seg struct {
	DDP, RDMAP byte
	STag       uint32
	TO         uint64

	Inv, QN, MSN, MO uint32

	Body []byte
	Len  int // octets that are left of the segment; 0: all
}

const (
	bitT = 0x80
	bitL = 0x40

	lastTagged   = bitT | bitL | 1
	lastUntagged = bitL | 1
	version1     = 0x40 // RV
)

func tagged(op byte, stag uint32, to uint64, body []byte) Seg {
	return Seg{DDP: lastTagged, RDMAP: version1 | op, STag: stag, TO: to, Body: body}
}

func untagged(op byte, qn, msn, mo uint32, body []byte) Seg {
	return Seg{DDP: lastUntagged, RDMAP: version1 | op, QN: qn, MSN: msn, MO: mo, Body: body}
}

// Write is a whole RDMA Write.
func Write(stag uint32, to uint64, body []byte) Seg { return tagged(OpWrite, stag, to, body) }

// ReadResponse is a whole Read Response.
func ReadResponse(stag uint32, to uint64, body []byte) Seg {
	return tagged(OpReadResponse, stag, to, body)
}

// Send is the last segment of a Send, from mo on.
func Send(msn, mo uint32, body []byte) Seg { return untagged(OpSend, 0, msn, mo, body) }

// SendInv is a whole Send with Invalidate.
func SendInv(msn, stag uint32, body []byte) Seg {
	s := untagged(OpSendInv, 0, msn, 0, body)
	s.Inv = stag
	return s
}

// A Read is what a Read Request asks for: RFC 5040, section 4.4.
type Read struct {
	SinkSTag uint32
	SinkTO   uint64
	Size     uint32
	SrcSTag  uint32
	SrcTO    uint64
}

// ReadRequest is a whole Read Request.
func ReadRequest(msn uint32, r Read) Seg {
	b := binary.BigEndian.AppendUint32(nil, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SrcSTag)
	b = binary.BigEndian.AppendUint64(b, r.SrcTO)
	return untagged(OpReadRequest, 1, msn, 0, b)
}

// Read is what the Read Request s asks for.
func (s Seg) Read() (r Read, ok bool) {
	if s.RDMAP&0xf != OpReadRequest || len(s.Body) != readLen {
		return r, false
	}
	b := s.Body
	return Read{
		SinkSTag: binary.BigEndian.Uint32(b), SinkTO: binary.BigEndian.Uint64(b[4:]),
		Size:    binary.BigEndian.Uint32(b[12:]),
		SrcSTag: binary.BigEndian.Uint32(b[16:]), SrcTO: binary.BigEndian.Uint64(b[20:]),
	}, true
}

// Copies say which headers a Terminate repeats: its M, D and R bits (RFC 5040, section 4.8).
type Copies byte

const (
	Bare     Copies = 0x00 // M=D=R=0
	WithDDP  Copies = 0xc0 // the DDP header, and the length of the segment
	WithRead Copies = 0xe0 // and that of the Read Request
)

// Terminate is one for a fault of about, whose headers it repeats as c says.
func Terminate(layer, etype, code byte, c Copies, about Seg) Seg {
	b := []byte{layer<<4 | etype, code, byte(c), 0}
	u := about.ULPDU()
	if c != Bare {
		b = binary.BigEndian.AppendUint16(b, uint16(len(u)))
		b = append(b, u[:min(about.header(), len(u))]...)
	}
	if c == WithRead {
		b = append(b, about.Body...)
	}
	return untagged(OpTerminate, 2, 1, 0, b)
}

// Atomic operations: RFC 7306, section 5.2.1.
const (
	FetchAdd = 0
	CmpSwap  = 2
)

// An Atomic is what an Atomic Request asks for: RFC 7306, figure 5.
type Atomic struct {
	Op               uint32 // with the 28 reserved bits
	ID               uint32
	STag             uint32
	TO               uint64
	Data, Mask       uint64
	Compare, CmpMask uint64
}

// AtomicRequest is a whole Atomic Request.
func AtomicRequest(msn uint32, a Atomic) Seg {
	b := binary.BigEndian.AppendUint32(nil, a.Op)
	b = binary.BigEndian.AppendUint32(b, a.ID)
	b = binary.BigEndian.AppendUint32(b, a.STag)
	for _, v := range []uint64{a.TO, a.Data, a.Mask, a.Compare, a.CmpMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return untagged(OpAtomic, 1, msn, 0, b)
}

// AtomicResponse is a whole Atomic Response: RFC 7306, figure 6.
func AtomicResponse(msn, id uint32, value uint64) Seg {
	b := binary.BigEndian.AppendUint32(nil, id)
	return untagged(OpAtomicResp, 3, msn, 0, binary.BigEndian.AppendUint64(b, value))
}

// Immediate is a whole Immediate Data message: RFC 7306, figure 7.
func Immediate(msn uint32, data []byte) Seg { return untagged(OpImmediate, 0, msn, 0, data) }

// header is the length of the DDP header.
func (s Seg) header() int {
	if s.DDP&bitT != 0 {
		return taggedLen
	}
	return untaggedLen
}

// ULPDU is the segment's octets.
func (s Seg) ULPDU() []byte {
	b := make([]byte, 0, untaggedLen+len(s.Body))
	b = append(b, s.DDP, s.RDMAP)
	if s.DDP&bitT != 0 {
		b = binary.BigEndian.AppendUint32(b, s.STag)
		b = binary.BigEndian.AppendUint64(b, s.TO)
	} else {
		for _, v := range []uint32{s.Inv, s.QN, s.MSN, s.MO} {
			b = binary.BigEndian.AppendUint32(b, v)
		}
	}
	b = append(b, s.Body...)
	if s.Len > 0 {
		b = b[:s.Len]
	}
	return b
}

// ParseSeg reads a segment; ok: it is as long as its header.
func ParseSeg(u []byte) (s Seg, ok bool) {
	if len(u) < 2 {
		return s, false
	}
	s.DDP, s.RDMAP = u[0], u[1]
	if len(u) < s.header() {
		return s, false
	}
	if s.DDP&bitT != 0 {
		s.STag, s.TO = binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint64(u[6:])
	} else {
		s.Inv, s.QN = binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint32(u[6:])
		s.MSN, s.MO = binary.BigEndian.Uint32(u[10:]), binary.BigEndian.Uint32(u[14:])
	}
	s.Body = u[s.header():]
	return s, true
}

// Op is the opcode.
func (s Seg) Op() byte { return s.RDMAP & 0xf }

// Last says whether L is set.
func (s Seg) Last() bool { return s.DDP&bitL != 0 }

// More clears L.
func (s Seg) More() Seg { s.DDP &^= bitL; return s }

// FlipT turns T over; the header takes the other form.
func (s Seg) FlipT() Seg { s.DDP ^= bitT; return s }

// DDPVersion sets DV.
func (s Seg) DDPVersion(v byte) Seg { s.DDP = s.DDP&^3 | v; return s }

// DDPReserved sets the four reserved bits of octet 0.
func (s Seg) DDPReserved(v byte) Seg { s.DDP = s.DDP&^0x3c | v<<2; return s }

// RDMAPVersion sets RV.
func (s Seg) RDMAPVersion(v byte) Seg { s.RDMAP = s.RDMAP&^0xc0 | v<<6; return s }

// RDMAPReserved sets the two reserved bits of octet 1.
func (s Seg) RDMAPReserved(v byte) Seg { s.RDMAP = s.RDMAP&^0x30 | v<<4; return s }

// Opcode sets the opcode.
func (s Seg) Opcode(op byte) Seg { s.RDMAP = s.RDMAP&^0xf | op; return s }

// QueueNumber sets QN.
func (s Seg) QueueNumber(qn uint32) Seg { s.QN = qn; return s }

// Sequence sets MSN.
func (s Seg) Sequence(msn uint32) Seg { s.MSN = msn; return s }

// Offset sets MO.
func (s Seg) Offset(mo uint32) Seg { s.MO = mo; return s }

// Reserved sets the octets 2 to 5 of an untagged segment, which the invalidating Sends use.
func (s Seg) Reserved(v uint32) Seg { s.Inv = v; return s }

// Cut leaves the first n octets of the segment.
func (s Seg) Cut(n int) Seg { s.Len = n; return s }

// Longer puts octets behind the segment.
func (s Seg) Longer(b ...byte) Seg {
	s.Body = append(append([]byte(nil), s.Body...), b...)
	return s
}

// Split cuts an untagged message into segments with bodies of at most n octets.
func (s Seg) Split(n int) (segs []Seg) {
	for off := 0; ; off += n {
		part := s
		part.MO, part.TO = s.MO+uint32(off), s.TO+uint64(off)
		if off+n >= len(s.Body) {
			part.Body = s.Body[off:]
			return append(segs, part)
		}
		part.Body = s.Body[off : off+n]
		segs = append(segs, part.More())
	}
}
