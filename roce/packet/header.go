package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Port is the UDP port that RoCEv2 packets go to.
const Port = 4791

// Octets of the headers, and of what is behind the payload.
const (
	BTHLen          = 12
	DETHLen         = 8
	RETHLen         = 16
	AtomicETHLen    = 28
	AETHLen         = 4
	AtomicAckETHLen = 8
	ImmDtLen        = 4
	IETHLen         = 4
	ICRCLen         = 4

	// MaxHeaderLen is the most octets of headers that a packet has: an atomic's.
	MaxHeaderLen = BTHLen + AtomicETHLen
)

// Multicast is the QP number of packets to a multicast group.
const Multicast QPN = 0xffffff

// DefaultPKey is the partition key of the partition that everybody is a full member of.
const DefaultPKey = 0xffff

// A QPN is the number of a queue pair: 24 bits.
type QPN uint32

// A PSN is a packet sequence number. They count modulo 2^24: one that is behind another in the
// circle's half is older.
type PSN uint32

const (
	psnBits = 24
	mask24  = 1<<psnBits - 1
)

// Add is the PSN n packets behind p.
func (p PSN) Add(n uint32) PSN { return PSN(uint32(p)+n) & mask24 }

// Sub is how far p is ahead of q, from -2^23 to 2^23 - 1; what it is below 0 for is older than q.
func (p PSN) Sub(q PSN) int { return int(int32(uint32(p-q)<<(32-psnBits)) >> (32 - psnBits)) }

// A Header is the headers of a packet, from the BTH on. What the Opcode has no header for is zero
// after Parse, and not looked at by Append.
type Header struct {
	Opcode    Opcode
	Solicited bool   // SE
	Migrated  bool   // M: nothing here has alternate paths, so that what is sent has it
	Pad       uint8  // octets behind the payload, 0 to 3
	PKey      uint16 // P_Key
	FECN      bool
	BECN      bool
	Dest      QPN
	AckReq    bool
	PSN       PSN

	// DETH.
	QKey   uint32
	Source QPN

	// RETH and AtomicETH: where at the responder, and for a RETH how many octets the whole message
	// has.
	Addr uint64
	RKey uint32 // also of an IETH: what is invalidated
	DMA  uint32

	// AtomicETH.
	Swap    uint64 // what is stored, or added
	Compare uint64

	// AETH.
	Syndrome Syndrome
	MSN      uint32 // messages that the responder has completed, 24 bits

	Original uint64 // AtomicAckETH: what was there before

	// Imm is immediate data, in the octets that the application gave: nobody swaps them.
	Imm [ImmDtLen]byte
}

// Why Parse refuses a packet.
var (
	ErrShort   = errors.New("the packet is shorter than its headers")
	ErrVersion = errors.New("the packet has a transport version other than 0")
	ErrOpcode  = errors.New("the packet's opcode is none of a transport here")
	ErrPad     = errors.New("the packet has more padding than octets behind its headers")
	ErrPayload = errors.New("the packet has a payload, which its opcode does not take")
)

// Parse takes a packet apart: b is what its UDP datagram carries, from the BTH to the ICRC, which
// is not checked: see Check. The payload, without padding, is a part of b. Reserved bits are not
// looked at, nor whether there may be padding at this place of a message. An error wraps one of
// those above, and h is worth nothing then.
func (h *Header) Parse(b []byte) (payload []byte, err error) {
	if len(b) < BTHLen+ICRCLen {
		return nil, fmt.Errorf("%w: %d octets", ErrShort, len(b))
	}
	s := Opcode(b[0]).shape()
	switch {
	case b[1]&0xf != 0:
		return nil, ErrVersion
	case s == 0:
		return nil, fmt.Errorf("%w: %#02x", ErrOpcode, b[0])
	}
	*h = Header{
		Opcode: Opcode(b[0]), Solicited: b[1]&0x80 != 0, Migrated: b[1]&0x40 != 0, Pad: b[1] >> 4 & 3,
		PKey: binary.BigEndian.Uint16(b[2:]), FECN: b[4]&0x80 != 0, BECN: b[4]&0x40 != 0,
		Dest: QPN(be24(b[5:])), AckReq: b[8]&0x80 != 0, PSN: PSN(be24(b[9:])),
	}
	n := h.Opcode.HeaderLen()
	if len(b) < n+ICRCLen {
		return nil, fmt.Errorf("%w: %v of %d octets", ErrShort, h.Opcode, len(b))
	}
	h.parseExtensions(s, b[BTHLen:n])
	payload = b[n : len(b)-ICRCLen]
	if len(payload) < int(h.Pad) {
		return nil, fmt.Errorf("%w: %d octets of it, %d behind the headers", ErrPad, h.Pad, len(payload))
	}
	payload = payload[:len(payload)-int(h.Pad)]
	if len(payload) > 0 && s&hasPayload == 0 {
		return nil, fmt.Errorf("%w: %v", ErrPayload, h.Opcode)
	}
	return payload, nil
}

func (h *Header) parseExtensions(s shape, b []byte) {
	be := binary.BigEndian
	if s&hasDETH != 0 {
		h.QKey, h.Source = be.Uint32(b), QPN(be24(b[5:]))
		b = b[DETHLen:]
	}
	if s&hasRETH != 0 {
		h.Addr, h.RKey, h.DMA = be.Uint64(b), be.Uint32(b[8:]), be.Uint32(b[12:])
		b = b[RETHLen:]
	}
	if s&hasAtomic != 0 {
		h.Addr, h.RKey = be.Uint64(b), be.Uint32(b[8:])
		h.Swap, h.Compare = be.Uint64(b[12:]), be.Uint64(b[20:])
		b = b[AtomicETHLen:]
	}
	if s&hasAETH != 0 {
		h.Syndrome, h.MSN = Syndrome(b[0]), be24(b[1:])
		b = b[AETHLen:]
	}
	if s&hasAtomicAck != 0 {
		h.Original = be.Uint64(b)
		b = b[AtomicAckETHLen:]
	}
	if s&hasImm != 0 {
		h.Imm = [ImmDtLen]byte(b)
		b = b[ImmDtLen:]
	}
	if s&hasIETH != 0 {
		h.RKey = be.Uint32(b)
	}
}

// Append adds h to b, as it is sent: with version 0, and reserved bits 0. The payload follows, then
// h.Pad octets of zero and the ICRC. The Opcode must be Known.
func (h *Header) Append(b []byte) []byte {
	be := binary.BigEndian
	s := h.Opcode.shape()
	if s == 0 {
		panic(fmt.Sprintf("packet: a header with %v", h.Opcode))
	}
	b = append(b, uint8(h.Opcode), bit(h.Solicited, 0x80)|bit(h.Migrated, 0x40)|h.Pad&3<<4)
	b = be.AppendUint16(b, h.PKey)
	b = be.AppendUint32(b, uint32(bit(h.FECN, 0x80)|bit(h.BECN, 0x40))<<24|uint32(h.Dest)&mask24)
	b = be.AppendUint32(b, uint32(bit(h.AckReq, 0x80))<<24|uint32(h.PSN)&mask24)
	if s&hasDETH != 0 {
		b = be.AppendUint32(b, h.QKey)
		b = be.AppendUint32(b, uint32(h.Source)&mask24)
	}
	if s&(hasRETH|hasAtomic) != 0 {
		b = be.AppendUint64(b, h.Addr)
		b = be.AppendUint32(b, h.RKey)
	}
	if s&hasRETH != 0 {
		b = be.AppendUint32(b, h.DMA)
	}
	if s&hasAtomic != 0 {
		b = be.AppendUint64(b, h.Swap)
		b = be.AppendUint64(b, h.Compare)
	}
	if s&hasAETH != 0 {
		b = be.AppendUint32(b, uint32(h.Syndrome)<<24|h.MSN&mask24)
	}
	if s&hasAtomicAck != 0 {
		b = be.AppendUint64(b, h.Original)
	}
	if s&hasImm != 0 {
		b = append(b, h.Imm[:]...)
	}
	if s&hasIETH != 0 {
		b = be.AppendUint32(b, h.RKey)
	}
	return b
}

// String is h on one line, with what its Opcode has.
func (h *Header) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v qp %d psn %d", h.Opcode, h.Dest, h.PSN)
	for _, f := range []struct {
		on   bool
		name string
	}{{h.AckReq, "AckReq"}, {h.Solicited, "SE"}, {h.Migrated, "M"}, {h.FECN, "FECN"},
		{h.BECN, "BECN"}} {
		if f.on {
			b.WriteString(" " + f.name)
		}
	}
	s := h.Opcode.shape()
	if h.PKey != DefaultPKey {
		fmt.Fprintf(&b, " pkey %04x", h.PKey)
	}
	if s&hasDETH != 0 {
		fmt.Fprintf(&b, " qkey %08x from %d", h.QKey, h.Source)
	}
	if s&(hasRETH|hasAtomic) != 0 {
		fmt.Fprintf(&b, " va %x rkey %x", h.Addr, h.RKey)
	}
	if s&hasRETH != 0 {
		fmt.Fprintf(&b, " len %d", h.DMA)
	}
	switch h.Opcode {
	case CompareSwap:
		fmt.Fprintf(&b, " swap %x compare %x", h.Swap, h.Compare)
	case FetchAdd:
		fmt.Fprintf(&b, " add %x", h.Swap)
	default:
	}
	if s&hasAETH != 0 {
		fmt.Fprintf(&b, " %v msn %d", h.Syndrome, h.MSN)
	}
	if s&hasAtomicAck != 0 {
		fmt.Fprintf(&b, " original %x", h.Original)
	}
	if s&hasImm != 0 {
		fmt.Fprintf(&b, " imm %x", h.Imm)
	}
	if s&hasIETH != 0 {
		fmt.Fprintf(&b, " invalidate %x", h.RKey)
	}
	if h.Pad != 0 {
		fmt.Fprintf(&b, " pad %d", h.Pad)
	}
	return b.String()
}

// PadOf is the padding behind a payload of n octets, which makes it a multiple of four.
func PadOf(n int) uint8 { return uint8(-n & 3) }

func bit(on bool, b uint8) uint8 {
	if on {
		return b
	}
	return 0
}

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
