package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The messages of RFC 7306: atomics and immediate data.

// An AtomicOp is an AOpCode: RFC 7306, figure 5. All that are defined are supported (section 1.1).
type AtomicOp uint8

const (
	AtomicFetchAdd    AtomicOp = 0
	AtomicCompareSwap AtomicOp = 2
)

func (o AtomicOp) String() string {
	switch o {
	case AtomicFetchAdd:
		return "FetchAdd"
	case AtomicCompareSwap:
		return "CmpSwap"
	}
	return fmt.Sprintf("AOpCode(%d)", uint8(o))
}

func (o AtomicOp) known() bool { return o == AtomicFetchAdd || o == AtomicCompareSwap }

// An Atomic is what an Atomic Request asks for: a read-modify-write of the 8 octets at (STag, TO),
// whose address has to be a multiple of 8.
type Atomic struct {
	Op   AtomicOp
	STag STag
	TO   uint64
	Data uint64 // to add, or to swap in
	// Mask of a FetchAdd has the highest bit of each field that is added on its own; 0 is one
	// field. That of a CmpSwap has the bits that are swapped.
	Mask uint64
	// Compare and CompareMask, of a CmpSwap: it swaps if the old value is Compare in these bits.
	Compare, CompareMask uint64
}

// Apply is the new value of the target, which has the value old in the octet order of its memory.
func (a Atomic) Apply(old uint64) uint64 {
	if a.Op == AtomicCompareSwap {
		return CompareSwap(old, a.Compare, a.CompareMask, a.Data, a.Mask)
	}
	return FetchAdd(old, a.Data, a.Mask)
}

// FetchAdd adds add to old; the carry out of each bit that is set in mask is dropped. RFC 7306,
// section 5.1.1, and docs/decisions.md#A18.
func FetchAdd(old, add, mask uint64) uint64 {
	// Without the highest bits of the fields no carry leaves a field; those bits are then added
	// to what came up to them, without a carry.
	return (old&^mask + add&^mask) ^ (old^add)&mask
}

// CompareSwap puts the bits swapMask of swap into old if old is compare in the bits compareMask.
// RFC 7306, section 5.1.2.
func CompareSwap(old, compare, compareMask, swap, swapMask uint64) uint64 {
	if (old^compare)&compareMask != 0 {
		return old
	}
	return old&^swapMask | swap&swapMask
}

func (a Atomic) String() string {
	s := fmt.Sprintf("%v at stag=%#08x to=%#x", a.Op, uint32(a.STag), a.TO)
	if a.Op == AtomicCompareSwap {
		return s + fmt.Sprintf(" compare=%#x mask=%#x swap=%#x mask=%#x", a.Compare, a.CompareMask,
			a.Data, a.Mask)
	}
	return s + fmt.Sprintf(" add=%#x mask=%#x", a.Data, a.Mask)
}

// Lengths of the RDMAP headers of RFC 7306; docs/decisions.md#A11 for that of the response.
const (
	atomicRequestLen  = 52
	atomicResponseLen = 12
	immediateLen      = 8
)

var (
	errAtomicRequest  = errors.New("iwarp: an Atomic Request has 52 octets")
	errAtomicResponse = errors.New("iwarp: an Atomic Response has 12 octets")
)

// An AtomicRequest views the RDMAP header of an Atomic Request: Reserved(28 bits) AOpCode(4 bits)
// Request Identifier(4) Remote STag(4) Remote TO(8) Add or Swap Data(8) Add or Swap Mask(8)
// Compare Data(8) Compare Mask(8). RFC 7306, section 5.2.1.
type AtomicRequest []byte

// ParseAtomicRequest checks the length of p.
func ParseAtomicRequest(p []byte) (AtomicRequest, error) {
	if len(p) != atomicRequestLen {
		return nil, errAtomicRequest
	}
	return AtomicRequest(p), nil
}

// ID is the Request Identifier, which the response echoes.
func (r AtomicRequest) ID() uint32 { return binary.BigEndian.Uint32(r[4:]) }

// Atomic is what the request asks for. The reserved bits are ignored; fields that its operation
// does not use are there as they came.
func (r AtomicRequest) Atomic() Atomic {
	return Atomic{
		Op:          AtomicOp(r[3] & 0x0f),
		STag:        STag(binary.BigEndian.Uint32(r[8:])),
		TO:          binary.BigEndian.Uint64(r[12:]),
		Data:        binary.BigEndian.Uint64(r[20:]),
		Mask:        binary.BigEndian.Uint64(r[28:]),
		Compare:     binary.BigEndian.Uint64(r[36:]),
		CompareMask: binary.BigEndian.Uint64(r[44:]),
	}
}

func (r AtomicRequest) String() string {
	return fmt.Sprintf("id=%#x %v", r.ID(), r.Atomic())
}

func putAtomicRequest(b []byte, id uint32, a *Atomic) {
	_ = b[atomicRequestLen-1]
	compare, compareMask := a.Compare, a.CompareMask
	if a.Op == AtomicFetchAdd {
		compare, compareMask = 0, ^uint64(0)
	}
	binary.BigEndian.PutUint32(b, uint32(a.Op&0x0f))
	binary.BigEndian.PutUint32(b[4:], id)
	binary.BigEndian.PutUint32(b[8:], uint32(a.STag))
	binary.BigEndian.PutUint64(b[12:], a.TO)
	binary.BigEndian.PutUint64(b[20:], a.Data)
	binary.BigEndian.PutUint64(b[28:], a.Mask)
	binary.BigEndian.PutUint64(b[36:], compare)
	binary.BigEndian.PutUint64(b[44:], compareMask)
}

// AppendAtomicRequest appends the header of a request for a.
func AppendAtomicRequest(b []byte, id uint32, a Atomic) []byte {
	n := len(b)
	b = append(b, make([]byte, atomicRequestLen)...)
	putAtomicRequest(b[n:], id, &a)
	return b
}

// An AtomicResponse views the RDMAP header of an Atomic Response: Original Request Identifier(4)
// Original Remote Data Value(8). RFC 7306, section 5.2.2.
type AtomicResponse []byte

// ParseAtomicResponse checks the length of p.
func ParseAtomicResponse(p []byte) (AtomicResponse, error) {
	if len(p) != atomicResponseLen {
		return nil, errAtomicResponse
	}
	return AtomicResponse(p), nil
}

// ID is that of the request.
func (r AtomicResponse) ID() uint32 { return binary.BigEndian.Uint32(r) }

// Old is what the target held before.
func (r AtomicResponse) Old() uint64 { return binary.BigEndian.Uint64(r[4:]) }

func (r AtomicResponse) String() string { return fmt.Sprintf("id=%#x old=%#x", r.ID(), r.Old()) }

func putAtomicResponse(b []byte, id uint32, old uint64) {
	_ = b[atomicResponseLen-1]
	binary.BigEndian.PutUint32(b, id)
	binary.BigEndian.PutUint64(b[4:], old)
}

// AppendAtomicResponse appends the header of a response.
func AppendAtomicResponse(b []byte, id uint32, old uint64) []byte {
	n := len(b)
	b = append(b, make([]byte, atomicResponseLen)...)
	putAtomicResponse(b[n:], id, old)
	return b
}
