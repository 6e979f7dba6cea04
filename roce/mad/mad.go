package mad

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What MADs are sent with.
const (
	QPN  = 1          // where they come from and go to
	QKey = 0x80010000 // of QP 1
	Len  = 256        // octets of a MAD, always
)

const (
	headerLen   = 24
	bodyLen     = Len - headerLen
	baseVersion = 1
	classCM     = 0x07
	classVer    = 2
	methodSend  = 0x03
)

// An Attribute says which message a MAD is.
type Attribute uint16

// The messages of connection management that there are here.
const (
	AttrREQ Attribute = 0x10 + iota
	AttrMRA
	AttrREJ
	AttrREP
	AttrRTU
	AttrDREQ
	AttrDREP
	AttrSIDRREQ
	AttrSIDRREP
)

// Why Parse refuses a MAD. None of them is answered.
var (
	ErrLength    = errors.New("a MAD has 256 octets")
	ErrClass     = errors.New("the MAD is no message of connection management")
	ErrAttribute = errors.New("the MAD is a message that is not known")
)

// A Message is one of *REQ, *MRA, *REJ, *REP, *RTU, *DREQ, *DREP, *SIDRREQ and *SIDRREP.
type Message interface {
	Attribute() Attribute
	// fields goes through what the message has, in either direction.
	fields(c *codec)
}

// Parse takes a MAD apart. transaction is the sender's, told back in answers. Private data are a
// part of b, and as long as the message has room for: how many of the octets mean something is not
// on the wire. Reserved fields are not looked at. An error wraps one of those above.
func Parse(b []byte) (transaction uint64, m Message, err error) {
	if len(b) != Len {
		return 0, nil, fmt.Errorf("%w, not %d", ErrLength, len(b))
	}
	if b[0] != baseVersion || b[1] != classCM || b[2] != classVer || b[3] != methodSend {
		return 0, nil, fmt.Errorf("%w: base version %d, class %#x version %d, method %#x", ErrClass, b[0],
			b[1], b[2], b[3])
	}
	if m = newMessage(Attribute(binary.BigEndian.Uint16(b[16:]))); m == nil {
		return 0, nil, fmt.Errorf("%w: %#x", ErrAttribute, b[16:18])
	}
	m.fields(&codec{b: b[headerLen:]})
	return binary.BigEndian.Uint64(b[8:]), m, nil
}

// Append adds m as a MAD. Private data that are longer than the message has room for are cut:
// MaxPrivate says how many octets that is.
func Append(b []byte, transaction uint64, m Message) []byte {
	from := len(b)
	b = append(b, make([]byte, Len)...)
	h := b[from:]
	h[0], h[1], h[2], h[3] = baseVersion, classCM, classVer, methodSend
	binary.BigEndian.PutUint64(h[8:], transaction)
	binary.BigEndian.PutUint16(h[16:], uint16(m.Attribute()))
	m.fields(&codec{b: h[headerLen:], put: true})
	return b
}

func newMessage(a Attribute) Message {
	switch a {
	case AttrREQ:
		return new(REQ)
	case AttrMRA:
		return new(MRA)
	case AttrREJ:
		return new(REJ)
	case AttrREP:
		return new(REP)
	case AttrRTU:
		return new(RTU)
	case AttrDREQ:
		return new(DREQ)
	case AttrDREP:
		return new(DREP)
	case AttrSIDRREQ:
		return new(SIDRREQ)
	case AttrSIDRREP:
		return new(SIDRREP)
	}
	return nil
}

// A codec reads a message's fields, or with put writes them, which is zero before.
type codec struct {
	b   []byte
	put bool
}

// number is n octets at off, big-endian.
func (c *codec) number(off, n int, v *uint64) {
	var w uint64
	for i := range n {
		if c.put {
			c.b[off+i] = byte(*v >> (8 * (n - 1 - i)))
		}
		w = w<<8 | uint64(c.b[off+i])
	}
	*v = w
}

func (c *codec) u64(off int, v *uint64) { c.number(off, 8, v) }

func (c *codec) u32(off int, v *uint32) { narrow(c, off, 4, v) }
func (c *codec) u24(off int, v *uint32) { narrow(c, off, 3, v) }
func (c *codec) u16(off int, v *uint16) { narrow(c, off, 2, v) }
func (c *codec) u8(off int, v *uint8)   { narrow(c, off, 1, v) }

func narrow[T uint8 | uint16 | uint32](c *codec, off, n int, v *T) {
	w := uint64(*v)
	c.number(off, n, &w)
	*v = T(w)
}

// bits is n bits of the octet at off, the lowest of which is bit shift.
func (c *codec) bits(off, shift, n int, v *uint8) {
	mask := uint8(1)<<n - 1
	if c.put {
		c.b[off] |= *v & mask << shift
	}
	*v = c.b[off] >> shift & mask
}

func (c *codec) bit(off, shift int, v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	c.bits(off, shift, 1, &b)
	*v = b != 0
}

func (c *codec) array(off int, v *[16]byte) {
	if c.put {
		copy(c.b[off:], v[:])
	}
	copy(v[:], c.b[off:])
}

// rest is the octets from off to end.
func (c *codec) rest(off, end int, v *[]byte) {
	if c.put {
		copy(c.b[off:end], *v)
		return
	}
	*v = c.b[off:end:end]
}
